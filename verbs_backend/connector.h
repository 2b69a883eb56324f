#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "security/refusal_log.h"
#include "transports/control_exchange.h"
#include "verbs_backend/device.h"
#include "verbs_backend/exchange_messages.h"
#include "verbs_backend/gid_route.h"
#include "verbs_backend/handshake.h"
#include "verbs_backend/mailbox.h"
#include "verbs_backend/sealed_handshake.h"
#include "verbs_backend/verbs_api.h"

namespace troupe::verbs {

/// Makes and ends every queue pair of an engine, on a thread of its own, because to create, change and destroy one are
/// system calls (milliseconds on some hardware) that no data loop should wait for. It also is the end that answers
/// connection requests, and hears of ports and pairs that break (asynchronous events).
///
/// The two ends of a pair find each other by rdma_cm, or where a port has no IP address by an exchange over the control
/// connection. The greeting, what becomes of a lane's earlier attempts, and the transitions are the same; only where
/// the attributes of the other end come from differs (Link).
///
/// A pair has one direction: the initiator posts on it, the target only lets it touch its memory. Engines that use each
/// other have a pair for each direction, so there is no simultaneous open to be decided.
///
/// Public calls: any thread. Everything else runs on the thread.
class Connector {
  public:
    /// A way to reach the peer: one of its devices, through one of ours.
    struct Candidate {
        SocketAddress address;     ///< With the port.
        std::string device;        ///< Its name in the descriptor. Of a fence by exchange: none.
        std::size_t own = 0;       ///< Index of the own device, in the order given to start().
        bool by_exchange = false;  ///< Not by rdma_cm; `address` is for people then.
    };
    /// What a Nic wants.
    struct Order {
        std::size_t device = 0;             ///< Of the Nic: whose mailbox hears of it.
        Greeting greeting;                  ///< `attempt` is the pair's number, unless it is a fence.
        std::vector<Candidate> candidates;  ///< Tried in this order, > 0 of them.
        std::size_t ways = 0;               ///< That there are, when only some of them are given.
        std::string peer;                   ///< For messages: "segment 'b'".
        std::uint32_t peer_index = 0;       ///< Peer::index.
    };

    /// `config`, `exchange`, `described_anew` and what `incarnation` means as in TransportContext; what is referred to
    /// outlives this.
    Connector(std::shared_ptr<VerbsApi> api, const Config& config, Incarnation incarnation, Logger log,
              ControlExchange* exchange = nullptr, std::shared_ptr<const ClusterAuth> auth = nullptr,
              std::function<void()> described_anew = {});
    /// Ends every pair. No Nic may still hold one.
    ~Connector();

    /// Listens on every device at an address of the family of the first one, and starts the thread. Returns the port; 0
    /// when there is no rdma_cm, or no device for it, and pairs are made by exchange.
    Result<std::uint16_t> start(const std::vector<std::shared_ptr<Device>>& devices);

    /// Where events of the pairs of a device go; null: nowhere, and all of its pairs are destroyed when this returns.
    /// Not Ok: one that could not be, so that the device may go on with what is posted there.
    Status attach(std::size_t device, std::shared_ptr<Mailbox> mailbox);

    /// Begins to make a pair; Up or Failed follows. Returns its number, which grows and is never used again in this
    /// process, not even after rdma was installed anew: peers know the lanes of its incarnation. With
    /// `greeting.fence` no pair is made: the target is told to end the lane's connections up to `greeting.attempt`, of
    /// which the own end must be quiesced; Fenced follows. It may be told by exchange whatever made those.
    std::uint32_t connect(Order order);
    /// Puts a pair into the error state, so that everything posted on it is flushed. Broken follows unless it was sent.
    void breakPair(std::uint32_t pair, const Status& cause);
    /// Ends a pair in whatever state. Destroyed follows; with an error it follows once more should a later try succeed.
    void destroy(std::uint32_t pair);

    /// The device's completion queue can no longer be read: all of its pairs end and it gets another one, or is put out
    /// of use. Nothing happens when `queue` is not its queue any more.
    void queueLost(std::size_t device, std::shared_ptr<const CompletionQueue> queue, const Status& cause);
    /// Lets go of a queue on the thread, as closing one is a call to the device.
    void release(std::shared_ptr<const CompletionQueue> queue);

    /// Answers an Offer, and what to do when the connection of who made one has ended, or that to a peer (Peer::index)
    /// who was made one. Any thread.
    void answer(const Asker& asker, std::string question, std::function<void(Result<std::string>)> reply);
    void askerLeft(std::uint64_t connection);
    void peerLeft(std::uint32_t peer);
    bool usesCm() const { return port_ != 0; }
    bool canExchange() const { return exchange_ != nullptr && config_.rdma_connect != "cm"; }
    /// Whether peers can be asked for a fence without any device.
    bool canAsk() const { return exchange_ != nullptr; }

    /// Pairs that peers have to this engine.
    std::size_t served() const { return served_count_.load(std::memory_order_relaxed); }

  private:
    /// Destroying an id sends a message to its peer. On a port that is down, or that came up and has no route yet, that
    /// message fails, and with Soft-RoCE (kernel 6.1) the port never sends a connection message again.
    static constexpr std::chrono::seconds kSettle{1};
    /// How often a port that is down is asked for its state: events may be lost, or come in another order.
    static constexpr std::chrono::seconds kLookPause{1};

    enum class Step : std::uint8_t { Resolving, Routing, Connecting, Up, Broken };

    /// A pair of which this is the initiator.
    struct Pair {
        std::uint32_t number = 0;
        Order order;
        Step step = Step::Resolving;
        std::size_t candidate = 0;
        CmId id = 0;
        ibv_qp* qp = nullptr;
        ibv_qp_init_attr made{};                       ///< What the QP can hold.
        TimePoint deadline = kForever;                 ///< Of the candidate.
        std::uint64_t asked = 0;                       ///< By exchange: number of the last question; 0: none was sent.
        std::uint32_t offered_qp = 0;                  ///< By exchange: the queue pair that it was about.
        std::vector<ibv_gid_entry> gids;               ///< By exchange: those of the own port that may still serve.
        std::uint32_t psn = 0;                         ///< By exchange: number of the first packet.
        std::optional<ibv_gid_entry> gid;              ///< Of the own port, that its packets carry.
        std::shared_ptr<const CompletionQueue> queue;  ///< Of `qp`.
        std::optional<Candidate> unanswered;           ///< The first that is kept for an exchange; used once.
        Status first_failure;
    };
    /// A pair of which this is the target.
    struct Served {
        CmId id = 0;
        ibv_qp* qp = nullptr;
        std::size_t device = 0;
        Greeting greeting;
        std::uint64_t order = 0;           ///< Grows with each one accepted, or seen in use.
        std::uint32_t psn = 0;             ///< Packet that was due next when it was last looked at.
        std::uint64_t connection = 0;      ///< By exchange: Asker::connection. Its key is none of rdma_cm's ids then.
        std::uint32_t peer_qp = 0;         ///< By exchange.
        std::optional<ibv_gid_entry> gid;  ///< As of Pair.
        std::shared_ptr<const CompletionQueue> queue;  ///< Of `qp`.
    };
    /// What a pair goes by, as far as it was asked for.
    struct Way {
        std::uint32_t mtu = 0;  ///< Of the path, bytes.
        std::optional<ibv_gid_entry> gid;
    };
    /// Where the attributes of a pair's transitions come from.
    struct Link {
        // NOLINTNEXTLINE(google-explicit-constructor): each of them is a link.
        Link(CmId cm) : id(cm) {}
        // NOLINTNEXTLINE(google-explicit-constructor)
        Link(const ExchangedRoute& exchanged) : route(&exchanged) {}
        CmId id = 0;
        const ExchangedRoute* route = nullptr;
    };
    /// Lets answers in that may come when this is gone.
    struct Inlet {
        std::mutex mutex;
        Connector* to = nullptr;
    };
    struct Own {
        std::shared_ptr<Device> device;
        std::shared_ptr<Mailbox> mailbox;
        bool port_down = false;
        Status out;                    ///< Not Ok: the device is out of use, and why.
        TimePoint quiet_until{};       ///< No connection message may be sent before; kForever while the port is down.
        TimePoint look_at = kForever;  ///< While it is down: when it is asked whether it still is.
    };

    /// A queue pair that the device did not let go of. It is tried again, with growing pauses.
    struct Stuck {
        static constexpr std::size_t kNobody = SIZE_MAX;  ///< A peer's; its keys are what ends its access.
        std::uint32_t number = 0;
        std::size_t owner = kNobody;  ///< Device of the Nic that hears of it.
        ibv_qp* qp = nullptr;
        std::shared_ptr<const CompletionQueue> queue;
        Status cause;
        Duration pause{};
        TimePoint next{};
        Greeting greeting;           ///< A peer's: whose it is.
        bool takes_nothing = false;  ///< A peer's: it is in the error state, or has never left the state RESET.
    };

    Status listen(const std::vector<std::shared_ptr<Device>>& devices);
    void run();
    void runCommands();
    void command(std::function<void()> work);
    void handleCm(CmEvent& event);
    void runDeadlines(TimePoint now);
    TimePoint nextDeadline() const;

    // connector_events.cpp
    void handleAsync(std::size_t device);
    std::vector<std::size_t> portsOf(const ibv_context* context, std::uint32_t port) const;
    void portLost(std::size_t device, const Status& cause);
    void portActive(std::size_t device);
    void lookAtPort(std::size_t device);
    void lookAtLostPorts(TimePoint now);
    void renewQueue(std::size_t device, const ibv_cq* failed, const Status& why);
    void putOut(std::size_t device, const Status& cause);
    using WhichGid = std::function<bool(const std::optional<ibv_gid_entry>&)>;
    void endInitiated(std::size_t device, const Status& cause, const WhichGid& which);
    void endPairs(std::size_t device, const Status& cause, const WhichGid& which);
    void tellPort(std::size_t device, PairEvent::Kind kind, const Status& cause);
    void tellQueue(std::size_t device);
    void pairFailed(const ibv_qp* qp, const std::string& name);

    // connector_initiator.cpp
    void tryCandidate(Pair& pair);
    void giveUpCandidate(Pair& pair, const Status& why, bool retryable = true);
    /// rdma_cm leads nowhere by this candidate, whose ports may carry data all the same: it is tried by exchange when
    /// all others have failed.
    void keepForExchange(Pair& pair);
    void dropConnection(Pair& pair);
    Own& via(const Pair& pair) { return own_[pair.order.candidates[pair.candidate].own]; }
    const Own& via(const Pair& pair) const { return own_[pair.order.candidates[pair.candidate].own]; }
    /// False: it is asked over the control connection alone.
    static bool takesDevice(const Pair& pair) {
        return !(pair.order.greeting.fence && pair.order.candidates[pair.candidate].by_exchange);
    }
    void onResolved(Pair& pair);
    void onRoute(Pair& pair);
    Result<Answer> readAnswer(const Pair& pair, const CmEvent& event) const;
    void onResponse(Pair& pair, const CmEvent& event);
    void onRejected(Pair& pair, const CmEvent& event);
    void onFenced(Pair& pair);
    void breakNow(Pair& pair, const Status& cause, bool by_peer = false);
    void destroyNow(std::uint32_t number);
    Stuck& getStuck(std::uint32_t number, std::size_t owner, ibv_qp* qp, std::shared_ptr<const CompletionQueue> queue,
                    const Status& cause);
    void tryStuck(const std::function<bool(const Stuck&)>& which, TimePoint now);
    std::string describe(const Pair& pair) const;
    Pair* findPair(CmId id);
    void tell(const Pair& pair, PairEvent event);
    void retire(CmId id, std::size_t device);
    void buryRetired();
    std::optional<bool> askPort(const Own& own) const;
    bool isActive(const Own& own) const { return askPort(own).value_or(true); }
    bool maySpeak(Own& own);

    // connector_exchange.cpp
    void offer(Pair& pair);
    void offerFence(Pair& pair);
    void ask(Pair& pair, const Offer& offer);
    void onFenceReply(Pair& pair, const Result<std::string>& said);
    void onReply(std::uint32_t number, std::uint64_t asked, const Result<std::string>& said);
    Status checkReply(const Pair& pair, const OfferReply& reply) const;
    void withdraw(Pair& pair);
    OfferReply onOffer(const Asker& asker, const std::string& question);
    OfferReply serve(const Asker& asker, const Offer& offer);
    OfferReply refusal(Code code, const std::string& why) const;

    // connector_target.cpp
    Status admit(const Greeting& greeting);
    void onRequest(const CmEvent& event);
    Status serve(const CmEvent& event, const Greeting& greeting, std::size_t device);
    void reject(const CmEvent& event, Code code, const std::string& why);
    void endPredecessors(const Greeting& greeting, const char* why);
    bool endServed(CmId id, const char* why);
    bool destroyServed(const Device& device, ibv_qp* qp, std::shared_ptr<const CompletionQueue> queue,
                       const Greeting& greeting);
    bool stillServes(const Greeting& greeting) const;

    // connector_room.cpp
    void makeRoom();
    std::uint32_t nextPsn(ibv_qp* qp) const;

    // connector_queue_pair.cpp
    ibv_qp* createQp(const Device& device, bool initiator, ibv_qp_init_attr& attributes) const;
    Status prepare(Pair& pair, const Link& link);
    void up(Pair& pair, const std::string& device, const std::string& way);
    int attributesOf(const Link& link, const Device& device, bool initiator, ibv_qp_attr& attributes, int& mask) const;
    Status modify(const Link& link, ibv_qp* qp, ibv_qp_state state, const Device& device, bool initiator,
                  std::uint32_t mtu_cap, Way* way = nullptr) const;
    static Status toError(const Device& device, ibv_qp* qp);

    const std::shared_ptr<VerbsApi> api_;
    const Config& config_;
    const Incarnation incarnation_;
    const Logger log_;
    const std::shared_ptr<const ClusterAuth> auth_;
    SeenGreetings seen_;
    RefusalLog refusals_;
    ControlExchange* const exchange_;
    const std::function<void()> described_anew_;
    const std::shared_ptr<Inlet> inlet_;

    std::vector<Own> own_;
    CmChannel channel_ = 0;
    CmId listener_ = 0;
    std::uint16_t port_ = 0;
    std::map<std::uint32_t, Pair> pairs_;
    std::map<CmId, std::uint32_t> pair_of_id_;
    std::map<CmId, Served> served_;
    struct Retired {
        CmId id;
        std::size_t device;
    };
    std::vector<Retired> retired_;  ///< Ids that are of no use any more, to be destroyed when it may be said aloud.
    std::vector<Stuck> stuck_;
    std::uint64_t served_order_ = 0;
    std::uint64_t questions_ = 0;
    std::uint64_t next_exchanged_;  ///< Key of the next pair that is served without rdma_cm.
    std::minstd_rand random_;       ///< Of packet numbers, which are no secret.
    std::atomic<std::size_t> served_count_{0};

    std::mutex mutex_;  ///< Of the commands.
    std::vector<std::function<void()>> commands_;
    UniqueFd wake_;
    bool ending_ = false;  ///< The thread's.
    std::thread thread_;
};

}  // namespace troupe::verbs
