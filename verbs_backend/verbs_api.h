#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/endpoint.h"

namespace troupe::verbs {

/// A connection identifier of rdma_cm; 0 is none.
using CmId = std::uintptr_t;
/// An event channel of rdma_cm.
using CmChannel = std::uintptr_t;

/// What rdma_cm has to say, copied out and acknowledged.
struct CmEvent {
    enum class Kind {
        AddressResolved,
        RouteResolved,
        ConnectRequest,   ///< `id` is new; `listener` took it.
        ConnectResponse,  ///< The peer accepted; establish() tells it so.
        Established,      ///< The initiator said so.
        Rejected,
        Disconnected,
        Failed,  ///< Resolving or connecting ended; `status` says how.
        Other,   ///< Of no interest.
    };
    Kind kind = Kind::Other;
    CmId id = 0;
    CmId listener = 0;
    int status = 0;    ///< As rdma_cm gives it: a negative errno, or the reason of a rejection.
    std::string name;  ///< "RDMA_CM_EVENT_UNREACHABLE", for messages.
    std::vector<std::byte> private_data;
    std::uint8_t responder_resources = 0;  ///< READs that the other end wants to have outstanding here.
    std::uint8_t initiator_depth = 0;      ///< READs that it takes from here.
};

/// Of a connect or accept.
struct CmParameters {
    std::span<const std::byte> private_data;
    std::uint32_t qp_number = 0;
    std::uint8_t responder_resources = 0;
    std::uint8_t initiator_depth = 0;
    std::uint8_t retry_count = 0;
    std::uint8_t rnr_retry_count = 0;
};

/// Every call that this backend makes into libibverbs and librdmacm, so that tests can put a strict software device in
/// their place. The calls keep the meaning of the functions they are named after; a call that fails returns an errno
/// (0: success), or null or -1 with errno set. Thread-safe as the libraries are: objects may be used by several threads
/// at once, except that an object may not be destroyed under a running call.
///
/// Connections use ids without a QP attached: the QP is the caller's, and so are its transitions (with the attributes
/// that cmQpAttributes gives), so that it lives on the context that its owner opened.
class VerbsApi {
  public:
    virtual ~VerbsApi() = default;

    // --- devices ---------------------------------------------------------------------------------------------------
    /// One that is there and can be opened, or why it cannot.
    struct Opened {
        std::string name;
        ibv_context* context = nullptr;
        int error = 0;
        /// What it speaks. Only InfiniBand's, which RoCE is, is opened.
        ibv_transport_type transport = IBV_TRANSPORT_IB;
    };
    /// Opens every device whose name is wanted. errno by result when there is no list.
    virtual int openDevices(const std::function<bool(const std::string&)>& wanted, std::vector<Opened>& devices) = 0;
    virtual int closeDevice(ibv_context* context) = 0;
    virtual int queryDevice(ibv_context* context, ibv_device_attr& attributes) = 0;
    virtual int queryPort(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) = 0;
    /// All GIDs of all ports.
    virtual int queryGids(ibv_context* context, std::vector<ibv_gid_entry>& gids) = 0;
    /// An entry of a port's P_Key table.
    virtual int queryPkey(ibv_context* context, std::uint8_t port, int index, std::uint16_t& pkey) = 0;
    /// The next asynchronous event, or false when none waits; acknowledged already. The descriptor is
    /// `context->async_fd`.
    struct AsyncEvent {
        ibv_event_type type{};
        std::uint32_t port = 0;      ///< Of a port's event.
        const ibv_qp* qp = nullptr;  ///< Of a QP's event; only to compare.
        const ibv_cq* cq = nullptr;  ///< Of a CQ's event; only to compare.
        std::string name;
    };
    virtual bool nextAsyncEvent(ibv_context* context, AsyncEvent& event) = 0;

    // --- memory ----------------------------------------------------------------------------------------------------
    virtual ibv_pd* allocPd(ibv_context* context) = 0;
    virtual int deallocPd(ibv_pd* pd) = 0;
    virtual ibv_mr* regMr(ibv_pd* pd, void* addr, std::size_t length, int access) = 0;
    /// Memory of a device: `length` bytes of the dma-buf from `offset` on, which keys know at the address `iova`.
    virtual ibv_mr* regDmabufMr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                                int access) = 0;
    virtual int deregMr(ibv_mr* mr) = 0;

    // --- queues ----------------------------------------------------------------------------------------------------
    /// With a non-blocking descriptor.
    virtual ibv_comp_channel* createChannel(ibv_context* context) = 0;
    virtual int destroyChannel(ibv_comp_channel* channel) = 0;
    virtual ibv_cq* createCq(ibv_context* context, int entries, ibv_comp_channel* channel) = 0;
    virtual int destroyCq(ibv_cq* cq) = 0;
    virtual int requestNotify(ibv_cq* cq) = 0;
    /// Takes and acknowledges the events that wait on the channel; returns how many.
    virtual unsigned drainChannel(ibv_comp_channel* channel) = 0;
    virtual int pollCq(ibv_cq* cq, std::span<ibv_wc> completions) = 0;
    virtual ibv_qp* createQp(ibv_pd* pd, ibv_qp_init_attr& attributes) = 0;
    virtual int modifyQp(ibv_qp* qp, ibv_qp_attr& attributes, int mask) = 0;
    virtual int queryQp(ibv_qp* qp, ibv_qp_attr& attributes, int mask) = 0;
    virtual int destroyQp(ibv_qp* qp) = 0;
    /// `first_bad` is set when it fails: nothing from there on was posted.
    virtual int postSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** first_bad) = 0;

    // --- connections -----------------------------------------------------------------------------------------------
    /// Returns 0 with errno set. Its descriptor is non-blocking.
    virtual CmChannel cmOpen() = 0;
    virtual int cmDescriptor(CmChannel channel) = 0;
    virtual void cmClose(CmChannel channel) = 0;
    /// Returns 0 with errno set.
    virtual CmId cmCreate(CmChannel channel) = 0;
    /// Ends the connection, too. Its events that wait are dropped.
    virtual void cmDestroy(CmId id) = 0;
    /// Binds to `address` (port 0: one is chosen) and listens; `port` is where.
    virtual int cmListen(CmId id, const SocketAddress& address, int backlog, std::uint16_t& port) = 0;
    virtual int cmResolveAddress(CmId id, const SocketAddress& from, const SocketAddress& to, int timeout_ms) = 0;
    virtual int cmResolveRoute(CmId id, int timeout_ms) = 0;
    virtual int cmConnect(CmId id, const CmParameters& parameters) = 0;
    virtual int cmAccept(CmId id, const CmParameters& parameters) = 0;
    virtual int cmReject(CmId id, std::span<const std::byte> private_data) = 0;
    virtual int cmEstablish(CmId id) = 0;
    virtual int cmDisconnect(CmId id) = 0;
    /// What takes the QP of this connection to `attributes.qp_state`.
    virtual int cmQpAttributes(CmId id, ibv_qp_attr& attributes, int& mask) = 0;
    /// The name of the device that the id is bound to; empty when it is bound to none.
    virtual std::string cmDevice(CmId id) = 0;
    virtual std::uint8_t cmPort(CmId id) = 0;
    /// False when none waits.
    virtual bool cmNextEvent(CmChannel channel, CmEvent& event) = 0;
};

/// libibverbs and librdmacm.
std::shared_ptr<VerbsApi> systemVerbs();

}  // namespace troupe::verbs
