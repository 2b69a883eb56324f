// VerbsApi on libibverbs and librdmacm: no decisions here, only calls.

#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_backend/verbs_api.h"

namespace troupe::verbs {

namespace {

int setNonBlocking(int fd) {
    const int flags = ::fcntl(fd, F_GETFL);
    return flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
}

/// Functions of librdmacm return -1 and set errno.
int outcome(int result) { return result == 0 ? 0 : errno; }

rdma_cm_id* idOf(CmId id) { return reinterpret_cast<rdma_cm_id*>(id); }
rdma_event_channel* channelOf(CmChannel channel) { return reinterpret_cast<rdma_event_channel*>(channel); }

rdma_conn_param toNative(const CmParameters& parameters) {
    rdma_conn_param native{};
    native.private_data = parameters.private_data.data();
    native.private_data_len = static_cast<std::uint8_t>(parameters.private_data.size());
    native.qp_num = parameters.qp_number;
    native.responder_resources = parameters.responder_resources;
    native.initiator_depth = parameters.initiator_depth;
    native.retry_count = parameters.retry_count;
    native.rnr_retry_count = parameters.rnr_retry_count;
    return native;
}

CmEvent::Kind kindOf(rdma_cm_event_type type) {
    switch (type) {
        case RDMA_CM_EVENT_ADDR_RESOLVED: return CmEvent::Kind::AddressResolved;
        case RDMA_CM_EVENT_ROUTE_RESOLVED: return CmEvent::Kind::RouteResolved;
        case RDMA_CM_EVENT_CONNECT_REQUEST: return CmEvent::Kind::ConnectRequest;
        case RDMA_CM_EVENT_CONNECT_RESPONSE: return CmEvent::Kind::ConnectResponse;
        case RDMA_CM_EVENT_ESTABLISHED: return CmEvent::Kind::Established;
        case RDMA_CM_EVENT_REJECTED: return CmEvent::Kind::Rejected;
        case RDMA_CM_EVENT_DISCONNECTED: return CmEvent::Kind::Disconnected;
        case RDMA_CM_EVENT_ADDR_ERROR:
        case RDMA_CM_EVENT_ROUTE_ERROR:
        case RDMA_CM_EVENT_CONNECT_ERROR:
        case RDMA_CM_EVENT_UNREACHABLE:
        case RDMA_CM_EVENT_DEVICE_REMOVAL: return CmEvent::Kind::Failed;
        default: return CmEvent::Kind::Other;
    }
}

/// libibverbs looks for the file of a device elsewhere when it may not open it, and then says that there is none. Some
/// drivers fail without saying why.
int whyNotOpened(const ibv_device& device, int error) {
    const std::string path = std::string("/dev/infiniband/") + device.dev_name;
    if (::faccessat(AT_FDCWD, path.c_str(), R_OK | W_OK, AT_EACCESS) != 0 && errno == EACCES) return EACCES;
    return error != 0 ? error : ENODEV;
}

/// The kernel lists no device of the context's name any more.
bool isGone(const ibv_context* context) {
    const std::string name = ibv_get_device_name(context->device);
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (list == nullptr) return false;
    const bool found =
        std::any_of(list, list + count, [&](ibv_device* each) { return name == ibv_get_device_name(each); });
    ibv_free_device_list(list);
    return !found;
}

class SystemVerbs final : public VerbsApi {
  public:
    int openDevices(const std::function<bool(const std::string&)>& wanted, std::vector<Opened>& devices) override {
        int count = 0;
        ibv_device** list = ibv_get_device_list(&count);
        if (list == nullptr) return errno;
        for (int i = 0; i < count; ++i) {
            Opened opened;
            opened.name = ibv_get_device_name(list[i]);
            if (!wanted(opened.name)) continue;
            opened.transport = list[i]->transport_type;
            if (opened.transport != IBV_TRANSPORT_IB) {
                devices.push_back(std::move(opened));
                continue;
            }
            errno = 0;
            opened.context = ibv_open_device(list[i]);
            if (opened.context == nullptr) opened.error = whyNotOpened(*list[i], errno);
            if (opened.context != nullptr) opened.error = setNonBlocking(opened.context->async_fd);
            devices.push_back(std::move(opened));
        }
        ibv_free_device_list(list);
        return 0;
    }
    int closeDevice(ibv_context* context) override {
        const bool gone = isGone(context);
        const int error = outcome(ibv_close_device(context));
        // librdmacm has a context of its own for each device that had an id, and closes that of a device which is gone
        // when it looks at the list of devices the next time; the removal of the device waits for it.
        if (gone) {
            if (ibv_context** contexts = rdma_get_devices(nullptr)) rdma_free_devices(contexts);
        }
        return error;
    }
    int queryDevice(ibv_context* context, ibv_device_attr& attributes) override {
        return ibv_query_device(context, &attributes);
    }
    int queryPort(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) override {
        return ibv_query_port(context, port, &attributes);
    }
    int queryGids(ibv_context* context, std::vector<ibv_gid_entry>& gids) override {
        gids.resize(1024);
        const ssize_t count = ibv_query_gid_table(context, gids.data(), gids.size(), 0);
        if (count < 0) return static_cast<int>(-count);
        gids.resize(static_cast<std::size_t>(count));
        return 0;
    }
    int queryPkey(ibv_context* context, std::uint8_t port, int index, std::uint16_t& pkey) override {
        __be16 read = 0;
        errno = 0;
        if (ibv_query_pkey(context, port, index, &read) != 0) return errno != 0 ? errno : EINVAL;
        pkey = be16toh(read);
        return 0;
    }
    bool nextAsyncEvent(ibv_context* context, AsyncEvent& event) override {
        ibv_async_event native{};
        if (ibv_get_async_event(context, &native) != 0) return false;
        event = {};
        event.type = native.event_type;
        event.name = ibv_event_type_str(native.event_type);
        switch (native.event_type) {
            case IBV_EVENT_QP_FATAL:
            case IBV_EVENT_QP_REQ_ERR:
            case IBV_EVENT_QP_ACCESS_ERR:
            case IBV_EVENT_COMM_EST:
            case IBV_EVENT_SQ_DRAINED:
            case IBV_EVENT_PATH_MIG:
            case IBV_EVENT_PATH_MIG_ERR:
            case IBV_EVENT_QP_LAST_WQE_REACHED: event.qp = native.element.qp; break;
            case IBV_EVENT_CQ_ERR: event.cq = native.element.cq; break;
            case IBV_EVENT_PORT_ACTIVE:
            case IBV_EVENT_PORT_ERR:
            case IBV_EVENT_LID_CHANGE:
            case IBV_EVENT_PKEY_CHANGE:
            case IBV_EVENT_SM_CHANGE:
            case IBV_EVENT_CLIENT_REREGISTER:
            case IBV_EVENT_GID_CHANGE: event.port = static_cast<std::uint32_t>(native.element.port_num); break;
            default: break;
        }
        ibv_ack_async_event(&native);
        return true;
    }

    ibv_pd* allocPd(ibv_context* context) override { return ibv_alloc_pd(context); }
    int deallocPd(ibv_pd* pd) override { return ibv_dealloc_pd(pd); }
    ibv_mr* regMr(ibv_pd* pd, void* addr, std::size_t length, int access) override {
        return ibv_reg_mr(pd, addr, length, static_cast<unsigned>(access));
    }
    ibv_mr* regDmabufMr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                        int access) override {
        return ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access);
    }
    int deregMr(ibv_mr* mr) override { return ibv_dereg_mr(mr); }

    ibv_comp_channel* createChannel(ibv_context* context) override {
        ibv_comp_channel* channel = ibv_create_comp_channel(context);
        if (channel == nullptr) return nullptr;
        if (const int error = setNonBlocking(channel->fd); error != 0) {
            ibv_destroy_comp_channel(channel);
            errno = error;
            return nullptr;
        }
        return channel;
    }
    int destroyChannel(ibv_comp_channel* channel) override { return ibv_destroy_comp_channel(channel); }
    ibv_cq* createCq(ibv_context* context, int entries, ibv_comp_channel* channel) override {
        return ibv_create_cq(context, entries, nullptr, channel, 0);
    }
    int destroyCq(ibv_cq* cq) override { return ibv_destroy_cq(cq); }
    int requestNotify(ibv_cq* cq) override { return ibv_req_notify_cq(cq, 0); }
    unsigned drainChannel(ibv_comp_channel* channel) override {
        unsigned events = 0;
        ibv_cq* cq = nullptr;
        void* context = nullptr;
        while (ibv_get_cq_event(channel, &cq, &context) == 0) {
            // Destroying a CQ waits for its events to be acknowledged.
            ibv_ack_cq_events(cq, 1);
            ++events;
        }
        return events;
    }
    int pollCq(ibv_cq* cq, std::span<ibv_wc> completions) override {
        return ibv_poll_cq(cq, static_cast<int>(completions.size()), completions.data());
    }
    ibv_qp* createQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override { return ibv_create_qp(pd, &attributes); }
    int modifyQp(ibv_qp* qp, ibv_qp_attr& attributes, int mask) override {
        return ibv_modify_qp(qp, &attributes, mask);
    }
    int queryQp(ibv_qp* qp, ibv_qp_attr& attributes, int mask) override {
        ibv_qp_init_attr made{};
        return ibv_query_qp(qp, &attributes, mask, &made);
    }
    int destroyQp(ibv_qp* qp) override { return ibv_destroy_qp(qp); }
    int postSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** first_bad) override {
        return ibv_post_send(qp, list, first_bad);
    }

    CmChannel cmOpen() override {
        rdma_event_channel* channel = rdma_create_event_channel();
        if (channel == nullptr) return 0;
        if (const int error = setNonBlocking(channel->fd); error != 0) {
            rdma_destroy_event_channel(channel);
            errno = error;
            return 0;
        }
        return reinterpret_cast<CmChannel>(channel);
    }
    int cmDescriptor(CmChannel channel) override { return channelOf(channel)->fd; }
    void cmClose(CmChannel channel) override { rdma_destroy_event_channel(channelOf(channel)); }
    CmId cmCreate(CmChannel channel) override {
        rdma_cm_id* id = nullptr;
        return rdma_create_id(channelOf(channel), &id, nullptr, RDMA_PS_TCP) == 0 ? reinterpret_cast<CmId>(id) : 0;
    }
    void cmDestroy(CmId id) override { rdma_destroy_id(idOf(id)); }
    int cmListen(CmId id, const SocketAddress& address, int backlog, std::uint16_t& port) override {
        SocketAddress copy = address;
        if (rdma_bind_addr(idOf(id), reinterpret_cast<sockaddr*>(&copy.storage)) != 0) return errno;
        if (rdma_listen(idOf(id), backlog) != 0) return errno;
        port = be16toh(rdma_get_src_port(idOf(id)));
        return 0;
    }
    int cmResolveAddress(CmId id, const SocketAddress& from, const SocketAddress& to, int timeout_ms) override {
        SocketAddress source = from;
        SocketAddress target = to;
        return outcome(rdma_resolve_addr(idOf(id), reinterpret_cast<sockaddr*>(&source.storage),
                                         reinterpret_cast<sockaddr*>(&target.storage), timeout_ms));
    }
    int cmResolveRoute(CmId id, int timeout_ms) override { return outcome(rdma_resolve_route(idOf(id), timeout_ms)); }
    int cmConnect(CmId id, const CmParameters& parameters) override {
        rdma_conn_param native = toNative(parameters);
        return outcome(rdma_connect(idOf(id), &native));
    }
    int cmAccept(CmId id, const CmParameters& parameters) override {
        rdma_conn_param native = toNative(parameters);
        return outcome(rdma_accept(idOf(id), &native));
    }
    int cmReject(CmId id, std::span<const std::byte> private_data) override {
        return outcome(rdma_reject(idOf(id), private_data.data(), static_cast<std::uint8_t>(private_data.size())));
    }
    int cmEstablish(CmId id) override { return outcome(rdma_establish(idOf(id))); }
    int cmDisconnect(CmId id) override { return outcome(rdma_disconnect(idOf(id))); }
    int cmQpAttributes(CmId id, ibv_qp_attr& attributes, int& mask) override {
        if (rdma_init_qp_attr(idOf(id), &attributes, &mask) != 0) return errno;
        // The kernel also names attributes of its own (IB_QP_SMAC and its neighbours), which user space may not set;
        // librdmacm masks them the same way.
        mask &= ~0xe00000;
        return 0;
    }
    std::string cmDevice(CmId id) override {
        const rdma_cm_id* native = idOf(id);
        return native->verbs != nullptr ? ibv_get_device_name(native->verbs->device) : "";
    }
    std::uint8_t cmPort(CmId id) override { return idOf(id)->port_num; }
    bool cmNextEvent(CmChannel channel, CmEvent& event) override {
        rdma_cm_event* native = nullptr;
        if (rdma_get_cm_event(channelOf(channel), &native) != 0) return false;
        event = {};
        event.kind = kindOf(native->event);
        event.id = reinterpret_cast<CmId>(native->id);
        event.listener = reinterpret_cast<CmId>(native->listen_id);
        event.status = native->status;
        event.name = rdma_event_str(native->event);
        const rdma_conn_param& connection = native->param.conn;
        if (connection.private_data != nullptr && connection.private_data_len != 0) {
            const auto* bytes = static_cast<const std::byte*>(connection.private_data);
            event.private_data.assign(bytes, bytes + connection.private_data_len);
        }
        event.responder_resources = connection.responder_resources;
        event.initiator_depth = connection.initiator_depth;
        // Acknowledged at once: destroying an id waits for its events.
        rdma_ack_cm_event(native);
        return true;
    }
};

}  // namespace

std::shared_ptr<VerbsApi> systemVerbs() { return std::make_shared<SystemVerbs>(); }

}  // namespace troupe::verbs
