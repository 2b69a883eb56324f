#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_range.h"
#include "base/unique_fd.h"
#include "verbs_backend/verbs_api.h"

namespace troupe::verbs::testing {

/// Memory that a device reaches where the processor does not, as the kernel knows it: a file to map, and where the
/// bytes begin in it. No file: it is not known.
struct DeviceBytes {
    UniqueFd file;
    std::uint64_t offset = 0;
    int device = -1;  ///< The number of that which it is of.
};

/// Whether the processor can read all of a range.
bool isReadable(const ByteRange& range);

/// A strict device in software for the error paths that no real device can be brought to: it refuses what the
/// InfiniBand specification refuses, remembers it as a violation where a real device would corrupt or hang, and fails,
/// loses, holds and repeats on demand. All nodes of a test share one; it is the fabric, too. Any thread; one lock for
/// everything.
class SoftVerbs final : public VerbsApi {
  public:
    /// Devices named so, with the addresses 10.9.0.1, 10.9.0.2, ... at GID 1, and fe80::1, fe80::2, ... at GID 0.
    explicit SoftVerbs(const std::vector<std::string>& devices);
    ~SoftVerbs() override;

    // --- what tests do ---------------------------------------------------------------------------------------------
    /// The next `count` calls of a function of VerbsApi, after `skip` that succeed, fail with `error`. "destroyQp s0"
    /// and "modifyQpToError s0": of that device alone.
    void fail(const std::string& call, int error, int count = 1, int skip = 0);
    /// The next work request ends so.
    void completeWith(ibv_wc_status status);
    /// The next connection request ends in this event of rdma_cm, which stands for a failure.
    void answerConnect(const std::string& name, int status);
    /// What a refusal says may be looked at and changed.
    void tapRejects(std::function<void(std::vector<std::byte>&)> tap);
    /// Every connection of a device hears that it is being removed.
    void announceRemoval(const std::string& device);
    /// Work that is posted from now on stays where it is until this is called with false, or its pair breaks.
    void hold(bool held);
    /// From now on what is held of a pair that breaks was on its way already: deliver() hands the WRITEs of it to the
    /// pairs that they were for, as far as those are still there.
    void linger() { lingers_ = true; }
    /// How many of them were applied.
    std::size_t deliver();
    /// Whether connection requests to a device find no way to it (ENETUNREACH). What is connected goes on.
    void cutOff(const std::string& device, bool is_cut_off);
    /// From now on an end of a connection says nothing to the other one.
    void loseGoodbyes() { goodbyes_are_lost_ = true; }
    void loseCompletions(int count);
    void repeatCompletions(int count);
    /// From now on a port that has a connection message to send while it is down never hears another one, as
    /// Soft-RoCE's.
    void deafens() { deafens_ = true; }
    /// A port hears no connection message any more.
    void deafen(const std::string& device);
    /// Whether what is sent to a device, other than messages of connections, gets lost.
    void loseData(const std::string& device, bool is_lost);
    /// The kernel there finds no route back to who asks for a connection, and rejects it.
    void loseWayBack(const std::string& device);
    /// Takes a port down, or up, without the event. So many questions after its state have the answer of before.
    void setPortUntold(const std::string& device, bool up, int stale_answers = 0);
    /// With the asynchronous event.
    void setPort(const std::string& device, bool up, std::uint8_t port = 1);
    /// From now on the device has two ports. The second one has the addresses 10.9.1.1, 10.9.1.2, ... and fe80::1:1 ...
    void addSecondPort(const std::string& device);
    /// How many READs the device serves or asks for at once.
    void setReads(const std::string& device, int reads);

    /// What the ports of a device have in their tables from now on. Nobody is told.
    void setGids(const std::string& device, std::vector<ibv_gid_entry> gids);
    /// The entry 1 of the port's P_Key table.
    void setPkey(const std::string& device, std::uint16_t pkey);
    void setMaxMrSize(const std::string& device, std::uint64_t bytes);
    /// Whose the dma-bufs of this machine are: says what is behind a descriptor. Without one a memory file is its own
    /// dma-buf. What they hold is read and written where it is, not at the addresses that it is registered for.
    void setDmabufs(std::function<DeviceBytes(int fd)> exporter);
    /// A driver that lends memory of a device by its addresses (nvidia-peermem) is loaded from now on; null: none is.
    void setPeerMemory(std::function<DeviceBytes(const ByteRange&)> driver);
    /// From now on what is written to memory of other devices (setDmabufs, setPeerMemory) is on its way for ever,
    /// though it is completed: until it is flushed, or the device that wrote it reads there, which no read on the bus
    /// does before the writes ahead of it.
    void delayDeviceWrites();
    /// What is on its way to memory of that device is there.
    void flushDeviceWrites(int device);
    /// Addresses are registered whatever is there, for tests that let no device look into them. Otherwise what the
    /// processor cannot read is refused with EFAULT, unless a driver lends it.
    void registerUnseen() { unseen_ = true; }
    /// An asynchronous event of a port. With DEVICE_FATAL the device refuses everything from then on, but that what is
    /// there be destroyed.
    void raise(const std::string& device, ibv_event_type type, std::uint8_t port = 1);
    /// Takes the device out of the machine. It is dead from then on, and its descriptor of events at its end, as that
    /// of the kernel is then. `told`: an event says so before.
    void remove(const std::string& device, bool told);
    /// How often it was asked for an event.
    std::size_t eventsAsked(const std::string& device) const;
    /// The same of each queue pair there that is ready: they carry nothing more, and nothing is flushed.
    /// `with_work`: only those that hold any.
    void raiseOnPairs(const std::string& device, ibv_event_type type, bool with_work = false);
    /// The completion queues of a device bring nothing more. `told`: that is an event, and else polling them fails.
    void breakQueues(const std::string& device, bool told);
    static ibv_gid_entry gid(const std::string& address, std::uint32_t index, ibv_gid_type type = IBV_GID_TYPE_ROCE_V2);
    void setMtu(const std::string& device, ibv_mtu mtu);
    /// From now on its ports are InfiniBand's, with this LID.
    void setLid(const std::string& device, std::uint16_t lid);
    /// It is another kind of device from now on, of which nothing may be asked.
    void setTransport(const std::string& device, ibv_transport_type transport);
    /// Its ports take and send no packet without a global route header from now on.
    void requireGrh(const std::string& device);
    /// How long it takes to find that there is no way from a port to a GID.
    void setSearchTime(std::chrono::milliseconds time);
    /// No way leads from this GID to anywhere.
    void cutRoute(const std::string& device, std::uint32_t gid_index);

    /// Whether a remote key of a device gives all of a range.
    bool covers(std::uint32_t key, const std::string& device, const ByteRange& range) const;
    /// Work requests that wait because of `hold`.
    std::size_t held() const;
    /// Queue pairs that have any of it.
    std::size_t busyPairs() const;
    std::vector<std::string> violations() const;
    /// "2 qp, 1 mr", or "" when nothing is left.
    std::string leftovers() const;
    std::size_t count(const std::string& kind) const;
    /// Queue pairs on a device, and what the last one made ready there was given.
    std::size_t pairsOn(const std::string& device) const;
    /// Connections of a device that both ends know to stand.
    std::size_t connectionsOf(const std::string& device) const;
    ibv_qp_attr lastRoute(const std::string& device) const;
    /// What the last pair that may send was given.
    ibv_qp_attr lastReady(const std::string& device) const;
    /// Rights of the last registration.
    int lastAccess() const;
    /// How often work was posted: each time a list of work requests, with one doorbell.
    std::size_t lists() const;
    /// Connection requests that were sent to a device.
    std::size_t requestsTo(const std::string& device) const;
    /// Descriptors of dma-bufs that were registered, one entry for each call.
    std::vector<int> dmabufs() const;
    /// Work requests that brought their data along (inline).
    std::size_t inlined() const;

    // --- VerbsApi --------------------------------------------------------------------------------------------------
    int openDevices(const std::function<bool(const std::string&)>& wanted, std::vector<Opened>& devices) override;
    int closeDevice(ibv_context* context) override;
    int queryDevice(ibv_context* context, ibv_device_attr& attributes) override;
    int queryPort(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) override;
    int queryGids(ibv_context* context, std::vector<ibv_gid_entry>& gids) override;
    int queryPkey(ibv_context* context, std::uint8_t port, int index, std::uint16_t& pkey) override;
    bool nextAsyncEvent(ibv_context* context, AsyncEvent& event) override;
    ibv_pd* allocPd(ibv_context* context) override;
    int deallocPd(ibv_pd* pd) override;
    ibv_mr* regMr(ibv_pd* pd, void* addr, std::size_t length, int access) override;
    ibv_mr* regDmabufMr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                        int access) override;
    int deregMr(ibv_mr* mr) override;
    ibv_comp_channel* createChannel(ibv_context* context) override;
    int destroyChannel(ibv_comp_channel* channel) override;
    ibv_cq* createCq(ibv_context* context, int entries, ibv_comp_channel* channel) override;
    int destroyCq(ibv_cq* cq) override;
    int requestNotify(ibv_cq* cq) override;
    unsigned drainChannel(ibv_comp_channel* channel) override;
    int pollCq(ibv_cq* cq, std::span<ibv_wc> completions) override;
    ibv_qp* createQp(ibv_pd* pd, ibv_qp_init_attr& attributes) override;
    int modifyQp(ibv_qp* qp, ibv_qp_attr& attributes, int mask) override;
    int queryQp(ibv_qp* qp, ibv_qp_attr& attributes, int mask) override;
    int destroyQp(ibv_qp* qp) override;
    int postSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** first_bad) override;
    CmChannel cmOpen() override;
    int cmDescriptor(CmChannel channel) override;
    void cmClose(CmChannel channel) override;
    CmId cmCreate(CmChannel channel) override;
    void cmDestroy(CmId id) override;
    int cmListen(CmId id, const SocketAddress& address, int backlog, std::uint16_t& port) override;
    int cmResolveAddress(CmId id, const SocketAddress& from, const SocketAddress& to, int timeout_ms) override;
    int cmResolveRoute(CmId id, int timeout_ms) override;
    int cmConnect(CmId id, const CmParameters& parameters) override;
    int cmAccept(CmId id, const CmParameters& parameters) override;
    int cmReject(CmId id, std::span<const std::byte> private_data) override;
    int cmEstablish(CmId id) override;
    int cmDisconnect(CmId id) override;
    int cmQpAttributes(CmId id, ibv_qp_attr& attributes, int& mask) override;
    std::string cmDevice(CmId id) override;
    std::uint8_t cmPort(CmId id) override;
    bool cmNextEvent(CmChannel channel, CmEvent& event) override;

  private:
    struct Port {
        bool up = true;
        bool deaf = false;
        int stale_answers = 0;
        std::uint16_t lid = 0;
        std::uint16_t pkeys[2] = {0xffff, 0xffff};
    };
    struct Hardware {
        std::string name;
        std::size_t number = 0;  ///< From 1.
        std::vector<Port> ports = std::vector<Port>(1);
        std::vector<ibv_gid_entry> gids;  ///< Of all ports.
        std::vector<std::uint32_t> cut;
        ibv_mtu mtu = IBV_MTU_4096;
        int reads = 16;  ///< That it serves or asks for at once.
        std::uint64_t max_mr_size = std::uint64_t{1} << 40;
        ibv_qp_attr last_route{};
        ibv_qp_attr last_ready{};
        std::size_t requests = 0;
        std::size_t events_asked = 0;
        bool needs_grh = false;
        bool has_no_way_back = false;
        bool loses_data = false;
        ibv_transport_type transport = IBV_TRANSPORT_IB;
        bool dead = false;
        bool cut_off = false;

        Port& at(std::size_t port) { return ports.at(port - 1); }
        const Port& at(std::size_t port) const { return ports.at(port - 1); }
        const ibv_gid_entry* gidAt(std::size_t port, std::uint32_t index) const;
    };
    /// A GID with where it is.
    struct Place {
        Hardware* hardware = nullptr;
        ibv_gid_entry gid{};
    };
    struct Context : ibv_context {
        Hardware* hardware = nullptr;
        UniqueFd events_fd;
        std::deque<AsyncEvent> events;
    };
    struct Work {
        std::uint64_t id = 0;
        ibv_wr_opcode opcode{};
        bool signaled = false;
        std::uint64_t remote = 0;
        std::uint32_t rkey = 0;
        std::vector<ibv_sge> pieces;
        bool is_inline = false;
        std::vector<std::byte> data;  ///< Of one that is inline.
    };
    struct Channel : ibv_comp_channel {
        UniqueFd owned;
        unsigned events = 0;
    };
    struct Queue : ibv_cq {
        std::deque<ibv_wc> completions;
        bool armed = false;
        bool broken = false;
        bool poll_fails = false;
    };
    struct Pair : ibv_qp {
        ibv_qp_cap cap{};
        int access = 0;
        std::uint32_t remote = 0;      ///< Number of the pair at the other end.
        std::uint32_t sends_from = 0;  ///< Its first packet's number.
        std::uint32_t takes_from = 0;  ///< The first number that it takes.
        std::uint32_t taken = 0;       ///< Packets that came since.
        ibv_mtu mtu{};                 ///< Of its packets, which the other end must have, too.
        bool dead = false;             ///< Its device has given it up, and completes nothing of it.
        std::uint8_t reads = 0;        ///< That it may have outstanding at once,
        std::uint8_t serves = 0;       ///< and that it has room to serve.
        std::uint8_t port = 1;
        std::uint16_t pkey_index = 0;
        std::uint16_t pkey = 0;  ///< As these were when it was made ready.
        std::uint16_t lid = 0;
        ibv_gid_entry gid{};
        bool is_global = false;
        ibv_ah_attr way{};
        std::deque<Work> waiting;
        /// Work requests that the program has not seen the end of, oldest first: what fills the send queue.
        std::deque<std::uint64_t> occupied;
    };
    struct Registration : ibv_mr {
        ~Registration();
        Registration() = default;
        Registration(const Registration&) = delete;
        Registration& operator=(const Registration&) = delete;
        int access = 0;
        int device = -1;             ///< Whose memory it is; -1: the host's.
        std::byte* bytes = nullptr;  ///< Where they are in this process.
        void* mapped = nullptr;      ///< What was mapped for it, and how long; null: they are at `addr` itself.
        std::size_t mapped_bytes = 0;
        std::byte* at(std::uint64_t address) const { return bytes + (address - reinterpret_cast<std::uint64_t>(addr)); }
    };
    enum class CmState { New, Listening, Addressed, Routed, Requested, Pending, Accepted, Connected, Ended };
    struct Id {
        CmChannel channel = 0;
        CmState state = CmState::New;
        Place own;
        Place remote;
        SocketAddress to;
        std::uint16_t port = 0;  ///< Of a listener.
        CmId other = 0;
        std::uint32_t remote_qp = 0;
        /// As the kernel keeps them: what this end asked for, and from the answer on what both agreed to.
        std::uint8_t responder_resources = 0;
        std::uint8_t initiator_depth = 0;
    };
    struct EventChannel {
        UniqueFd fd;
        std::deque<CmEvent> events;
    };

    static constexpr int kMaxQpWr = 4096;
    static constexpr int kMaxSge = 4;
    /// Bytes of private data that rdma_cm takes with an answer and with a refusal (IBTA 12.6.8, 12.6.7).
    static constexpr std::size_t kMostAccepted = 196;
    static constexpr std::size_t kMostRejected = 148;
    /// What belongs to a pointer of the program's, or null.
    template <class Map, class Key>
    static typename Map::mapped_type::element_type* lookUp(Map& map, Key* key) {
        const auto found = map.find(key);
        return found == map.end() ? nullptr : found->second.get();
    }
    int fault(const std::string& call);
    int fault(const std::string& call, const ibv_context* context);
    void violate(const std::string& what) { violations_.push_back(what); }
    void execute(Pair& pair);
    ibv_wc_status run(Pair& pair, const Work& work);
    /// By the device whose registration it is.
    void write(const Registration& to, std::byte* at, const std::byte* from, std::size_t bytes);
    void read(const Registration& from);
    template <class Which>
    void land(Which&& which);
    static std::size_t readsUnderWay(const Pair& pair);
    int takeAlong(const ibv_send_wr& work, std::vector<std::byte>& data);
    void complete(Pair& pair, const Work& work, ibv_wc_status status);
    void toError(Pair& pair);
    void putOnItsWay(const Pair& pair, const Work& work);
    int checkRoute(const Pair& pair, const ibv_qp_attr& attributes);
    ibv_wc_status checkWay(const Pair& pair, const Pair& target) const;
    Hardware* find(const std::string& device) const;
    Place find(const SocketAddress& address) const;
    bool isDead(const ibv_context* context) const;
    void raise(const std::string& device, const AsyncEvent& event);
    /// Of null what is at the address itself is registered.
    ibv_mr* add(ibv_pd* pd, std::uint64_t addr, std::size_t length, int access, const DeviceBytes* from);
    int checkRegistration(const ibv_pd* pd, std::uint64_t length, int access) const;
    const Registration* registration(std::uint32_t key, std::uint64_t addr, std::uint64_t length,
                                     const ibv_pd* pd) const;
    void put(CmChannel channel, CmEvent event);
    void endConnection(Id& id);
    bool sendMessage(const Place& from, const Place& to);
    static void ring(int fd);

    mutable std::recursive_mutex mutex_;
    std::vector<std::unique_ptr<Hardware>> hardware_;
    std::map<const ibv_context*, std::unique_ptr<Context>> contexts_;
    std::map<const ibv_pd*, std::unique_ptr<ibv_pd>> pds_;
    std::map<const ibv_mr*, std::unique_ptr<Registration>> registrations_;
    std::map<const ibv_comp_channel*, std::unique_ptr<Channel>> channels_;
    std::map<const ibv_cq*, std::unique_ptr<Queue>> queues_;
    std::map<const ibv_qp*, std::unique_ptr<Pair>> pairs_;
    std::map<CmChannel, std::unique_ptr<EventChannel>> event_channels_;
    std::map<CmId, Id> ids_;
    std::uint32_t next_key_ = 100;
    std::uint32_t next_qp_ = 17;
    std::uintptr_t next_cm_ = 1;
    std::uint16_t next_port_ = 20000;

    struct Fault {
        int error = 0;
        int count = 0;
        int skip = 0;
    };
    std::map<std::string, Fault> faults_;
    /// In a switch.
    struct Packet {
        std::uint32_t to = 0;  ///< Number of the pair.
        std::uint64_t remote = 0;
        std::uint32_t rkey = 0;
        std::vector<std::byte> data;
    };
    std::vector<Packet> fabric_;
    std::function<void(std::vector<std::byte>&)> on_reject_;
    bool lingers_ = false;
    bool goodbyes_are_lost_ = false;
    bool deafens_ = false;
    std::optional<ibv_wc_status> next_status_;
    std::optional<CmEvent> next_answer_;
    int last_access_ = 0;
    std::size_t lists_ = 0;
    std::chrono::milliseconds search_time_{0};
    std::function<DeviceBytes(int)> dmabuf_exporter_;
    std::function<DeviceBytes(const ByteRange&)> peer_memory_;
    bool unseen_ = false;
    /// On the bus.
    struct LateWrite {
        const Registration* to = nullptr;
        std::byte* at = nullptr;
        std::vector<std::byte> data;
    };
    std::vector<LateWrite> late_;
    bool delays_ = false;
    std::size_t inlined_ = 0;
    bool held_ = false;
    int lose_ = 0;
    int repeat_ = 0;
    std::vector<std::string> violations_;
    std::vector<int> dmabufs_;
};

/// When this ends, so does a test: what is left over on the device, or was done against its rules, is a failure. To be
/// declared after the device and before whatever uses it.
class CleanEnd {
  public:
    explicit CleanEnd(std::shared_ptr<SoftVerbs> soft) : soft_(std::move(soft)) {}
    ~CleanEnd();
    CleanEnd(const CleanEnd&) = delete;
    CleanEnd& operator=(const CleanEnd&) = delete;
    /// The test has broken the device for good.
    void giveUp() { soft_.reset(); }

  private:
    std::shared_ptr<SoftVerbs> soft_;
};

}  // namespace troupe::verbs::testing
