#include "actors/supervisor.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include <caf/behavior.hpp>
#include <caf/exit_reason.hpp>
#include <caf/system_messages.hpp>

#include "actors/batch_tracker.h"
#include "actors/nic_worker.h"
#include "topology/selection.h"

namespace troupe {

namespace {

// Pause before a control server that failed is started again; doubled for each failure, up to 64 times.
constexpr auto kRestartPause = std::chrono::milliseconds(10);

/// How long the end waits for processes that hold memory of this one. One that runs lets go in less than a millisecond,
/// so it is one that was stopped for which this is spent.
constexpr auto kReleaseBound = std::chrono::milliseconds(500);
/// And then for the workers' answers. Only a loop that stands still, or a worker that is gone, lets this pass.
constexpr auto kAnswerBound = std::chrono::seconds(1);

// The whole address space: what AwaitSourceIdle means by "any task".
constexpr ByteRange kEverything{0, UINT64_MAX};

/// Calls `done` when every one of the parts has called `part()`.
class Countdown {
  public:
    Countdown(std::size_t parts, std::function<void()> finish) : left_(parts), finish_(std::move(finish)) {}
    void part() {
        if (--left_ == 0) finish_();
    }

  private:
    std::size_t left_;
    std::function<void()> finish_;
};

/// What to do about a process that holds on, for whoever can ask again.
Status askAgain(const Status& held) {
    return {held.code(), held.message() + ". End it or let it go on, then try again"};
}

}  // namespace

Supervisor::Supervisor(caf::actor_config& config, Loop& loop, Plan plan, Logger log)
    : HostedActor(config, loop, std::move(log)), plan_(std::move(plan)) {
    directory_ = spawnHosted<SegmentDirectory>(loop, plan_.local, std::move(plan_.store), std::cref(*plan_.regions),
                                               std::ref(*plan_.board), std::cref(*plan_.settings), log_);
    const RetryBudget::Limits retries{plan_.settings->retry_budget_percent, plan_.settings->retry_budget_floor};
    for (std::uint32_t i = 0; i < plan_.data_loops.size(); ++i)
        trackers_.push_back(spawnHosted<BatchTracker>(*plan_.data_loops[i], i, std::cref(*plan_.regions),
                                                      std::cref(*plan_.batches), directory_, retries, log_));
}

Supervisor::~Supervisor() = default;

caf::behavior Supervisor::make_behavior() {
    set_down_handler([this](const caf::down_msg& down) { ended(down); });
    monitor(directory_);
    for (const caf::actor& tracker : trackers_) monitor(tracker);
    alive_ = 1 + trackers_.size();
    startControlServer();
    tellDirectory();
    return {
        [this](const InstallTransport& request) { install(request); },
        [this](const UninstallTransport& request) { uninstall(request); },
        [this](const QuiesceRanges& request) { quiesce(request); },
        [this](const Shutdown& request) { shutDown(request); },
    };
}

void Supervisor::atEnd() {
    loop().cancelTimer(restart_timer_);
    loop().cancelTimer(drain_timer_);
    loop().cancelTimer(release_timer_);
    if (actors_told_ && alive_ == 0) return letGo();
    endWithAll();
}

/// The last thing that is done: nobody else is left.
void Supervisor::letGo() {
    directory_ = nullptr;
    control_server_ = nullptr;
    trackers_.clear();
    workers_.clear();
    transports_.clear();
    plan_.listener.reset();
    if (plan_.on_ended) plan_.on_ended(held_);
}

void Supervisor::startControlServer() {
    restart_timer_ = 0;
    ControlServer::Identity identity{plan_.local.incarnation, plan_.local.name, plan_.local.auth};
    control_server_ = spawnHosted<ControlServer>(loop(), plan_.listener, std::move(identity),
                                                 std::cref(*plan_.settings), directory_, log_);
    monitor(control_server_);
    ++alive_;
}

// --- transports --------------------------------------------------------------------------------------------------

void Supervisor::install(const InstallTransport& request) {
    if (ending_) return request.reply(Status(Code::Canceled, "the engine ends"));
    InstalledTransport entry;
    entry.transport = request.transport;
    entry.preference = request.preference;
    for (auto& placed : request.transport->takeNics()) {
        const auto index = static_cast<std::uint32_t>(workers_.size());
        Loop& home = *plan_.data_loops[placed.loop % plan_.data_loops.size()];
        const NicInfo info = placed.nic->info();
        auto worker =
            spawnHosted<NicWorker>(home, index, std::move(placed.nic), trackers_, std::ref(*plan_.quarantine), log_);
        monitor(worker);
        ++alive_;
        workers_.push_back(worker);
        entry.workers.push_back(index);
        entry.nics.push_back(info.name);
        WorkerJoined joined;
        joined.index = index;
        joined.worker = worker;
        joined.nic = info;
        joined.loop = placed.loop;
        // A port is named after its device.
        joined.far_from = locationsFarFrom(plan_.local.matrix, info.name.substr(0, info.name.find(':')));
        for (const caf::actor& tracker : trackers_) send(tracker, joined);
    }
    transports_.push_back(std::move(entry));
    tellDirectory();
    afterDirectory(request.reply);
}

void Supervisor::uninstall(const UninstallTransport& request) {
    const auto find = [this, name = request.name] {
        return std::find_if(transports_.begin(), transports_.end(),
                            [&](const InstalledTransport& entry) { return entry.transport->name() == name; });
    };
    const auto found = find();
    if (found == transports_.end())
        return request.reply(Status(Code::NotFound, "transport '" + request.name + "' is not installed"));
    // First what other processes were given is taken back: without the Nic nobody would know any more that one of them
    // still has it. Nobody is given anything from here on, so this holds until the Nic is gone.
    const TimePoint deadline = saturatedAdd(loop().now(), plan_.settings->unregister_timeout);
    closeToPeers(found->workers, deadline,
                 [this, self = caf::strong_actor_ptr(ctrl()), find, reply = request.reply](const Status& held) {
                     const auto entry = find();
                     if (ending_ || entry == transports_.end()) return reply(Status(Code::Canceled, "the engine ends"));
                     const auto workers = entry->workers;
                     if (held) {
                         transports_.erase(entry);
                         return remove(workers, reply);
                     }
                     for (const std::uint32_t index : workers)
                         if (workers_[index]) send(workers_[index], OpenToPeers{});
                     reply(askAgain(held));
                 });
}

/// Sends each of the workers what `ask` makes of its reply; `answered` hears the first answer that is not Ok, or Ok,
/// once all have answered. Those that are gone count as answered.
template <class Ask>
void Supervisor::askWorkers(const std::vector<std::uint32_t>& workers, Ask&& ask,
                            std::function<void(const Status&)> answered) {
    const auto outcome = std::make_shared<Status>();
    const auto left =
        std::make_shared<Countdown>(1 + workers.size(), [outcome, finish = std::move(answered)] { finish(*outcome); });
    for (const std::uint32_t index : workers) {
        if (index >= workers_.size() || !workers_[index]) {
            left->part();
            continue;
        }
        // Workers answer on their own loops; what they say is put together here.
        send(workers_[index], ask([left, outcome, home = home()](const Status& status) {
                 home.post([left, outcome, status] {
                     if (*outcome) *outcome = status;
                     left->part();
                 });
             }));
    }
    left->part();
}

std::vector<std::uint32_t> Supervisor::allWorkers() const {
    std::vector<std::uint32_t> all(workers_.size());
    std::iota(all.begin(), all.end(), 0u);
    return all;
}

void Supervisor::closeToPeers(const std::vector<std::uint32_t>& workers, TimePoint deadline,
                              std::function<void(const Status&)> closed) {
    askWorkers(
        workers,
        [deadline](auto reply) {
            return CloseToPeers{deadline, std::move(reply)};
        },
        std::move(closed));
}

/// Of a transport that is not among the installed ones any more.
void Supervisor::remove(const std::vector<std::uint32_t>& leaving, std::function<void(Status)> removed) {
    tellDirectory();
    // First no tracker may use the workers any more, then what a submit brought them meanwhile is waited for, then they
    // end, then the caller hears of it. Replies may come from other loops and after this actor's end; `self` keeps its
    // memory.
    afterDirectory([this, self = caf::strong_actor_ptr(ctrl()), leaving, reply = std::move(removed)](const Status&) {
        afterTrackers([this, self, leaving, reply] {
            afterFlights(leaving,
                         [this, self, leaving, reply] { endWorkers(leaving, [reply] { reply(Status::ok()); }); });
        });
    });
}

/// Calls `reached` once the directory has handled what was sent to it before, and so has told the trackers; whether the
/// store has the change yet does not matter. The local segment is synced at once.
void Supervisor::afterDirectory(std::function<void(Status)> reached) {
    send(directory_, SyncSegments{plan_.local.name, kForever, std::move(reached)});
}

void Supervisor::afterTrackers(std::function<void()> reached) {
    const auto barrier = std::make_shared<Countdown>(1 + trackers_.size(), std::move(reached));
    for (const caf::actor& tracker : trackers_)
        send(tracker, AwaitSourceIdle{ByteRange{}, 0, kForever, [barrier, home = home()](const std::vector<BatchID>&) {
                                          home.post([barrier] { barrier->part(); });
                                      }});
    barrier->part();
}

/// Calls `reached` once the workers have no flights any more, or after the bound that unregistering has, too.
void Supervisor::afterFlights(const std::vector<std::uint32_t>& workers, std::function<void()> reached) {
    const TimePoint deadline = saturatedAdd(loop().now(), plan_.settings->unregister_timeout);
    askWorkers(
        workers,
        [deadline](auto reply) {
            return AwaitFlights{deadline, [reply] { reply(Status::ok()); }};
        },
        [reached = std::move(reached)](const Status&) { reached(); });
}

/// Gone means gone: the Nic, its port and its sockets.
void Supervisor::endWorkers(const std::vector<std::uint32_t>& leaving, std::function<void()> gone) {
    std::vector<caf::actor> ending;
    for (const std::uint32_t index : leaving) {
        if (index >= workers_.size() || !workers_[index]) continue;
        // What trackers keep of it goes, too.
        for (const caf::actor& tracker : trackers_) send(tracker, WorkerJoined{index, nullptr, NicInfo{}, 0, {}});
        ending.push_back(std::exchange(workers_[index], nullptr));
    }
    leaving_.insert(leaving_.end(), ending.begin(), ending.end());
    std::vector<caf::actor_id> ids;
    for (const caf::actor& worker : ending) ids.push_back(worker.id());
    afterEnds(ending, [this, self = caf::strong_actor_ptr(ctrl()), ids, done = std::move(gone)] {
        std::erase_if(leaving_, [&](const caf::actor& worker) {
            return std::find(ids.begin(), ids.end(), worker.id()) != ids.end();
        });
        done();
    });
    for (const caf::actor& worker : ending) send_exit(worker, caf::exit_reason::user_shutdown);
}

/// Calls `gone` once these have ended.
void Supervisor::afterEnds(const std::vector<caf::actor>& actors, std::function<void()> gone) {
    const auto left = std::make_shared<Countdown>(1 + actors.size(), std::move(gone));
    for (const caf::actor& actor : actors)
        actor->attach_functor([left, home = home()](const caf::error&) { home.post([left] { left->part(); }); });
    left->part();
}

void Supervisor::tellDirectory() {
    send(directory_, DataPlane{trackers_, workers_});
    send(directory_, TransportsChanged{transports_});
}

// --- regions -----------------------------------------------------------------------------------------------------

void Supervisor::quiesce(const QuiesceRanges& request) {
    struct Gather {
        std::size_t left;
        std::vector<BatchID> users;
    };
    const auto gather = std::make_shared<Gather>(Gather{trackers_.size(), {}});
    // Trackers answer on their own loops; what they say is put together here. `self` keeps this actor's memory.
    const caf::strong_actor_ptr self(ctrl());
    for (const caf::actor& tracker : trackers_) {
        send(tracker, AwaitSourceIdle{request.ranges, request.version, request.deadline,
                                      [this, self, gather, request, home = home()](const std::vector<BatchID>& users) {
                                          home.post([this, self, gather, request, users] {
                                              gather->users.insert(gather->users.end(), users.begin(), users.end());
                                              if (--gather->left != 0) return;
                                              if (gather->users.empty())
                                                  quiescePeers(request);
                                              else
                                                  request.reply(gather->users);
                                          });
                                      }});
    }
}

void Supervisor::quiescePeers(const QuiesceRanges& request) {
    askWorkers(
        allWorkers(),
        [&](auto reply) {
            return AwaitPeersIdle{request.ranges, request.deadline, std::move(reply)};
        },
        [request, quarantine = plan_.quarantine, clock = &loop()](const Status& held) {
            if (!held) return request.reply(askAgain(held));
            // No task and no peer uses it; what became of earlier tasks' buffers there is the last question. All of
            // them have ended, so nothing comes in any more.
            for (const ByteRange& range : request.ranges.ranges())
                if (const Status quarantined = quarantine->heldIn(range, clock->now()); !quarantined)
                    return request.reply(quarantined);
            request.reply(std::vector<BatchID>());
        });
}

// --- the end -----------------------------------------------------------------------------------------------------

void Supervisor::shutDown(const Shutdown& request) {
    if (std::exchange(ending_, true)) return;
    loop().cancelTimer(restart_timer_);
    const caf::strong_actor_ptr self(ctrl());
    const auto idle = std::make_shared<Countdown>(trackers_.size(), [this, self] { releasePeers(); });
    for (const caf::actor& tracker : trackers_) {
        send(tracker, EndAll{Status(Code::Canceled, "the engine ends")});
        send(tracker,
             AwaitSourceIdle{kEverything, 0, request.deadline, [idle, home = home()](const std::vector<BatchID>&) {
                                 home.post([idle] { idle->part(); });
                             }});
    }
    // A tracker that is gone answers nothing.
    drain_timer_ = loop().runAt(request.deadline, [this] { releasePeers(); });
}

/// The Nics are closed to peers, and who does not let go is remembered for on_ended.
void Supervisor::releasePeers() {
    if (std::exchange(releasing_, true)) return;
    const TimePoint deadline = loop().now() + kReleaseBound;
    release_timer_ = loop().runAt(deadline + kAnswerBound, [this] {
        if (actors_told_) return;
        held_ = Status(Code::Timeout,
                       "a data loop did not answer at the end, so whether other processes of this host still hold "
                       "registered memory is not known");
        endActors();
    });
    closeToPeers(allWorkers(), deadline, [this, self = caf::strong_actor_ptr(ctrl())](const Status& held) {
        if (actors_told_) return;
        held_ = held;
        endActors();
    });
}

void Supervisor::endActors() {
    if (std::exchange(actors_told_, true)) return;
    if (control_server_) send(control_server_, Shutdown{});
    send(directory_, Shutdown{});
    for (const caf::actor& worker : workers_)
        if (worker) send_exit(worker, caf::exit_reason::user_shutdown);
    for (const caf::actor& tracker : trackers_) send_exit(tracker, caf::exit_reason::user_shutdown);
    if (alive_ == 0) quit();
}

void Supervisor::ended(const caf::down_msg& down) {
    --alive_;
    const bool by_defect = down.reason && down.reason != caf::exit_reason::user_shutdown;
    if (actors_told_) {
        if (alive_ == 0) quit();
        return;
    }
    if (control_server_ && down.source == control_server_.address()) {
        control_server_ = nullptr;
        if (ending_) return;
        const auto pause = kRestartPause * (1 << std::min(server_failures_++, 6u));
        restart_timer_ = loop().runAt(loop().now() + pause, [this] { startControlServer(); });
        return;
    }
    if (!by_defect || std::exchange(failed_, true)) return;
    log_->critical("an actor of the data plane ended; all transfers end with it");
    const Status cause(Code::Internal, "an actor of the engine ended by a defect; see the log");
    if (plan_.on_fatal) plan_.on_fatal(cause);
    endDataPlane(cause, [] {});
}

void Supervisor::endDataPlane(const Status& cause, std::function<void()> gone) {
    const caf::strong_actor_ptr self(ctrl());
    endWorkers(allWorkers(), [] {});
    // Also those that were leaving already.
    afterEnds(leaving_, [this, self, cause, done = std::move(gone)] {
        // A tracker ends what it still reaches; what a defect left is ended when no tracker can meet it any more.
        afterEnds(trackers_, [this, self, cause, done] {
            if (plan_.on_data_plane_gone) plan_.on_data_plane_gone(cause);
            done();
        });
        for (const caf::actor& tracker : trackers_) {
            send(tracker, EndAll{cause});
            send_exit(tracker, caf::exit_reason::user_shutdown);
        }
    });
}

/// By a defect of its own. It hears of nobody's end any more, so each is asked for.
void Supervisor::endWithAll() {
    const Status cause(Code::Internal, "the engine's supervisor ended by a defect; see the log");
    if (plan_.on_fatal) plan_.on_fatal(cause);
    held_ = cause;
    endDataPlane(cause, [this, self = caf::strong_actor_ptr(ctrl())] {
        std::vector<caf::actor> others{directory_};
        if (control_server_) others.push_back(control_server_);
        afterEnds(others, [this, self] { letGo(); });
        for (const caf::actor& other : others) send(other, Shutdown{});
    });
}

}  // namespace troupe
