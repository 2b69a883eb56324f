// TransferEngine: init and freeEngine.

#include <algorithm>
#include <functional>
#include <future>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <caf/actor_cast.hpp>

#include "actors/supervisor.h"
#include "base/endpoint.h"
#include "engine/engine_core.h"
#include "engine/listen_address.h"
#include "engine/store_factory.h"
#include "metadata/faulty_store.h"
#include "topology/local_matrix.h"
#include "topology/machine.h"

namespace troupe {

namespace {

/// Work that nothing but copies of a GPU can still touch: of the Nics that move bytes by themselves, whose names begin
/// with their transports'. RDMA devices have names of their own.
bool isOfCopies(const QuarantineEntry& entry) {
    return entry.holder.empty() && (entry.nic.rfind("host", 0) == 0 || entry.nic.rfind("tcp", 0) == 0);
}

// How long freeEngine waits for running transfers to end, and then for the actors.
constexpr auto kDrainBound = std::chrono::seconds(2);
constexpr auto kActorsEndBound = std::chrono::seconds(5);

/// Null with p2p.
Result<std::unique_ptr<MetadataStore>> makeStore(const std::string& conn, const EngineOptions& options,
                                                 const std::shared_ptr<const ClusterAuth>& auth) {
    if (isP2p(conn)) return std::unique_ptr<MetadataStore>();
    if (conn.rfind("inproc://", 0) == 0) {
        if (!options.inproc_store) return {Code::InvalidArgument, "'" + conn + "' needs EngineOptions::inproc_store"};
        return options.inproc_store();
    }
    return makeStore(conn, options.config, options.log, auth);
}

/// Once per engine. Of a loopback address only this machine's own processes may come, so it is no warning there.
void sayWhoMayCome(const ClusterAuth& auth, bool loopback, spdlog::logger& log) {
    if (auth.hasKey()) return;
    log.log(loopback ? spdlog::level::info : spdlog::level::warn,
            "no cluster key is set (auth.key_file): whoever reaches the ports of this engine can read and write the "
            "memory that is registered for peers; docs/security.md");
}

/// Whoever is believed at the control port may stop this engine for a minute, again and again.
void sayWhoMayBreak(const Config& settings, const ClusterAuth& auth, spdlog::logger& log) {
    if (!settings.faults_remote) return;
    log.warn("faults.remote is on: whoever {} can break this engine on purpose; docs/security.md",
             auth.hasKey() ? "has the cluster key" : "reaches its control port");
}

/// Runs `function` in a thread of its own. Making a caf::actor_system, and spawning in it, leaves its logger behind as
/// the thread's, for as long as that lives; and ~actor_system waits until nobody has it.
Status callInOwnThread(const std::function<Status()>& function) {
    Status result;
    try {
        std::thread([&] { result = function(); }).join();
    } catch (const std::system_error& error) {
        return {Code::ResourceExhausted, std::string("start a thread: ") + error.what()};
    }
    return result;
}

/// CAF cannot be stopped half-started: when a thread is refused to it, the process ends. So first it is seen whether
/// there is room for them.
Status checkThreadsForCaf() {
    constexpr int kThreads = 3;  // CAF 0.17.6: a scheduler of one thread, its clock, the logger.
    std::promise<void> end;
    const std::shared_future<void> ended = end.get_future().share();
    std::vector<std::thread> threads;
    Status room;
    try {
        for (int i = 0; i < kThreads; ++i) threads.emplace_back([ended] { ended.wait(); });
    } catch (const std::system_error& error) {
        room = Status(Code::ResourceExhausted, std::string("start the threads of an actor system: ") + error.what() +
                                                   "; raise the limit on threads (ulimit -u, pids.max)");
    }
    end.set_value();
    for (std::thread& thread : threads) thread.join();
    return room;
}

/// Asks by way of the directory, which knows the peers' monitors.
class DirectoryExchange final : public ControlExchange {
  public:
    explicit DirectoryExchange(caf::actor directory) : directory_(std::move(directory)) {}
    void ask(std::uint32_t peer, const Incarnation& whom, const std::string& transport, std::string question,
             TimePoint deadline, Answered answered) override {
        caf::anon_send(directory_, AskPeer{peer, whom, transport, std::move(question), deadline, std::move(answered)});
    }

  private:
    caf::actor directory_;
};

}  // namespace

TransferEngine::TransferEngine(EngineOptions options) : core_(std::make_unique<EngineCore>(std::move(options))) {}

TransferEngine::~TransferEngine() {
    const bool told = core_->life.load() == EngineCore::Life::Ended;
    const Status ended = freeEngine();
    // Nobody else hears of it, and what is in foreign hands is the caller's memory.
    if (!ended && !told) core_->options.log->error("~TransferEngine: {}", ended.toString());
}

// --- init --------------------------------------------------------------------------------------------------------

Status TransferEngine::init(const std::string& metadata_conn, const std::string& local_server_name,
                            const std::string& ip_or_host, std::uint16_t rpc_port) {
    EngineCore& core = *core_;
    // Without a look at this engine's own loops, which another thread may be making.
    if (Loop::onSomeTurn())
        return Status(Code::InvalidArgument,
                      "init waits, and on a loop of an engine would stop that one; call it from a thread of your own");
    const std::lock_guard lock(core.life_mutex);
    if (!core.init_failed)
        return Status(
            Code::AlreadyExists,
            "init failed before, and what it had begun has ended; make another engine: " + core.init_failed.toString());
    if (core.life.load() != EngineCore::Life::New)
        return Status(Code::AlreadyExists, "init was called before; make another engine");
    if (local_server_name.size() > kMaxSegmentName)
        return Status(Code::InvalidArgument,
                      "local_server_name has more than " + std::to_string(kMaxSegmentName) + " bytes");
    if (const Status sound = checkConfig(core.settings()); !sound) return sound.withContext("EngineOptions::config");
    const Machine machine = discoverMachine();
    auto matrix = localMatrix(core.settings(), machine);
    if (!matrix) return matrix.status();
    const auto auth = ClusterAuth::load(core.settings());
    if (!auth) return auth.status();
    auto store = makeStore(metadata_conn, core.options, *auth);
    if (!store) return store.status();
    if (!isP2p(metadata_conn) && local_server_name.empty())
        return Status(Code::InvalidArgument,
                      "with a metadata store the segment needs a name: local_server_name is empty");

    const auto port = chooseControlPort(rpc_port, local_server_name, isP2p(metadata_conn));
    if (!port) return port.status();
    const auto host = chooseListenAddress(ip_or_host, local_server_name, isP2p(metadata_conn));
    if (!host) return host.status();
    const auto address = SocketAddress::fromNumeric(*host, *port);
    if (!address) return address.status();
    auto listener = listenOn(*address);
    if (!listener) return listener.status().withContext("control port");
    const auto bound = SocketAddress::local(listener->get());
    if (!bound) return bound.status();

    sayWhoMayCome(**auth, bound->isLoopback(), *core.options.log);
    sayWhoMayBreak(core.settings(), **auth, *core.options.log);
    core.auth = *auth;
    core.local.auth = *auth;
    core.incarnation = Incarnation::random();
    core.local.incarnation = core.incarnation;
    core.local.boot_id = readBootId();
    core.local.control = Endpoint{*host, bound->port()};
    core.local.name = isP2p(metadata_conn) ? core.local.control.toString() : local_server_name;
    core.local.matrix = std::move(matrix->matrix);
    core.device_memory.setMachine(machine.gpus);
    core.numa_nodes.clear();
    for (const NumaNode& node : machine.nodes) core.numa_nodes.push_back(node.id);
    core.listener = std::move(*listener);
    const Status started = callInOwnThread([&] { return start(std::move(*store)); });
    if (!started) {
        // It may have been usable for a moment; what others submit from here on would be ended by nobody.
        core.init_failed = started;
        core.life.store(EngineCore::Life::Ended);
        // Nothing is registered that anybody could hold.
        static_cast<void>(stop());
    }
    return started;
}

/// With everything chosen: loops, actors, the same-process transport, the first publish.
Status TransferEngine::start(std::unique_ptr<MetadataStore> store) {
    EngineCore& core = *core_;
    if (core.options.system == nullptr) {
        if (const Status room = checkThreadsForCaf(); !room) return room;
        core.own_system_config = std::make_unique<caf::actor_system_config>();
        // The engine's actors live on its loops; CAF's own scheduler has next to nothing to do.
        core.own_system_config->set("scheduler.policy", caf::atom("sharing"));
        core.own_system_config->set("scheduler.max-threads", 1);
        core.own_system = std::make_unique<caf::actor_system>(*core.own_system_config);
    }
    caf::actor_system& system = core.own_system ? *core.own_system : *core.options.system;
    const Config& settings = core.settings();

    core.control_loop =
        std::make_unique<Loop>(system, Loop::Options{"troupe.ctl", {}, false, {}, core.faults.get(), core.options.log});
    if (const Status started = core.control_loop->start(); !started) return started;
    for (unsigned i = 0; i < dataLoopCount(settings); ++i) {
        Loop::Options options;
        options.name = "troupe.data" + std::to_string(i);
        options.spin = settings.spin;
        options.drivable = settings.waiter_drives;
        options.drive_grace = settings.drive_grace;
        options.faults = core.faults.get();
        options.log = core.options.log;
        core.data_loops.push_back(std::make_unique<Loop>(system, std::move(options)));
        if (const Status started = core.data_loops.back()->start(); !started) return started;
    }
    core.batches = std::make_unique<BatchTable>(settings.max_batches);
    core.staging = makeStagingPool(settings, static_cast<unsigned>(core.data_loops.size()), core.options.log);

    if (core.faults) {
        std::vector<Reactor*> loops;
        for (const auto& loop : core.data_loops) loops.push_back(loop.get());
        core.faults->attach(*core.control_loop, loops);
        if (store) store = std::make_unique<FaultyStore>(std::move(store), *core.faults);
    }
    if (store) {
        if (const Status ready = store->start(*core.control_loop); !ready) return ready;
    }
    Supervisor::Plan plan;
    plan.control_loop = core.control_loop.get();
    for (const auto& loop : core.data_loops) plan.data_loops.push_back(loop.get());
    plan.local = core.local;
    plan.store = std::move(store);
    plan.listener = makeListener(*core.control_loop, std::move(core.listener));
    plan.regions = &core.regions;
    plan.batches = core.batches.get();
    plan.board = &core.segments;
    plan.quarantine = &core.quarantine;
    plan.settings = &settings;
    core.actors_ended = std::make_shared<std::promise<Status>>();
    plan.on_ended = [ended = core.actors_ended](const Status& held) { ended->set_value(held); };
    plan.on_data_plane_gone = [&core](const Status& why) {
        core.batches->endAll(
            why, [&core](const ByteRange& source) { return core.quarantine.heldIn(source, Clock::now()).isOk(); });
    };
    plan.on_fatal = [&core](const Status& why) {
        if (core.failed.load()) return;
        core.fatal = why;
        core.failed.store(true, std::memory_order_seq_cst);
    };
    core.supervisor = spawnHosted<Supervisor>(*core.control_loop, std::move(plan), core.options.log);
    const auto* root = static_cast<Supervisor*>(caf::actor_cast<caf::abstract_actor*>(core.supervisor));
    core.directory = root->directory();
    core.trackers = root->trackers();
    core.exchange = std::make_unique<DirectoryExchange>(core.directory);
    core.actor_api = std::make_unique<ActorApi>(*this, core);

    core.life.store(EngineCore::Life::Running, std::memory_order_release);
    if (const auto host = installTransport("host"); !host) return host.status();
    return updateLocalSegmentDesc();
}

// --- end ---------------------------------------------------------------------------------------------------------

Status TransferEngine::freeEngine() {
    EngineCore& core = *core_;
    // Before init has made them, which it may be doing, nobody is on their turn.
    if (core.begun() && core.onAnyTurn())
        return Status(Code::InvalidArgument, "freeEngine on a loop of the engine would wait for itself");
    const std::lock_guard lock(core.life_mutex);
    // What is still in foreign hands stays so when it is asked again: there is nobody left to look. Copies of GPUs are
    // looked at.
    if (core.life.exchange(EngineCore::Life::Ended) == EngineCore::Life::Running) {
        core.end = stop();
    } else if (core.ended_beside_copies) {
        const Status copies = core.staging->copying();
        if (copies) {
            core.ended_beside_copies = false;
            core.quarantine.proveAll();
        }
        core.end = copies ? copies : Status(copies.code(), "the engine has ended, but " + copies.message());
    }
    return core.end;
}

Status TransferEngine::stop() {
    EngineCore& core = *core_;
    Status held;
    if (core.faults) core.faults->detach();
    // A submit that saw the engine running brings its tasks before the trackers are told to end them all.
    while (core.batches && core.batches->anySubmits()) std::this_thread::yield();
    // A blocking call that the actor API has under way ends with the transfers it waits for, so they come first.
    if (core.supervisor) caf::anon_send(core.supervisor, Shutdown{Clock::now() + kDrainBound});
    if (core.actor_api) core.actor_api->endCalls();
    Status unknown;
    if (core.supervisor) {
        auto ended = core.actors_ended->get_future();
        if (ended.wait_for(kDrainBound + kActorsEndBound) == std::future_status::ready) {
            held = ended.get();
            if (!held) held = Status(held.code(), "the engine has ended, but " + held.message());
        } else {
            unknown =
                Status(Code::Internal, "the actors of the engine did not end in time; what they did is not known");
            held = unknown;
            core.options.log->critical("freeEngine: {}", held.message());
        }
    }
    // The Nics are gone by now, and so nothing moves the bytes of what the actor is still to answer.
    if (core.actor_api) core.actor_api->end(unknown);
    // The Nics have ended, so this is what even that did not prove.
    if (const Status left = core.quarantine.heldIn({0, UINT64_MAX}, Clock::now()); !left && held)
        held = Status(left.code(), "the engine has ended, but what follows is not proven: " + left.message());
    for (const auto& loop : core.data_loops) loop->stop();
    if (core.control_loop) core.control_loop->stop();
    // The handles stay: a call that began before may still use them. ~EngineCore lets them go.
    core.listener.reset();
    // Of actors that did not end, nobody knows what they still touch.
    if (core.batches)
        core.batches->endAll(Status(Code::Canceled, "the engine ended"),
                             [known = unknown.isOk()](const ByteRange&) { return known; });
    if (!held && unknown && core.staging && !core.staging->copying()) {
        const auto left = core.quarantine.list().entries;
        core.ended_beside_copies = std::all_of(left.begin(), left.end(), isOfCopies);
    }
    // Their ends may take as long as a GPU is busy: without the locks.
    std::vector<EngineCore::InstalledHere> gone;
    {
        const std::unique_lock lock(core.transports_mutex);
        const std::lock_guard listing(core.transports_list_mutex);
        gone.swap(core.transports);
    }
    return held;
}

Quarantined TransferEngine::quarantine() const { return core_->quarantine.list(); }

std::string TransferEngine::localSegmentName() const { return core_->begun() ? core_->local.name : std::string(); }

Incarnation TransferEngine::incarnation() const { return core_->begun() ? core_->incarnation : Incarnation(); }

AuthCounts TransferEngine::authCounts() const {
    return core_->begun() && core_->auth ? core_->auth->counts() : AuthCounts{};
}

ActorApi* TransferEngine::actorApi() { return core_->begun() ? core_->actor_api.get() : nullptr; }

Result<FaultInjector*> TransferEngine::faults() {
    if (core_->faults) return core_->faults.get();
    return {Code::AccessDenied,
            "this engine may not be broken on purpose; set faults.enabled (TROUPE_FAULTS_ENABLED=1) before it is made"};
}

}  // namespace troupe
