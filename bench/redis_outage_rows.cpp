// What an outage of Redis costs: transfers while it is away beside transfers while it is there, and the time from its
// return until everything is as before.

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "apps/faults/network.h"
#include "apps/support/redis_server.h"
#include "bench/memory.h"
#include "bench/redis_rows.h"
#include "bench/stats.h"
#include "engine/transfer_engine.h"
#include "metadata/segment_desc.h"

namespace troupe::bench {

namespace {

using apps::RedisSentinel;
using apps::RedisServer;
using apps::faults::Network;
using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kBlock = 4096;
constexpr const char* kOwner = "owner";
constexpr const char* kPassword = "hunter2";
/// How long the server is away: longer than the time-outs and the longest pause, so that the engines are in the middle
/// of trying when it returns.
constexpr auto kAway = std::chrono::seconds(4);
constexpr auto kPatience = std::chrono::seconds(30);

/// The servers of an outage, and what happens to them.
struct Scene {
    std::optional<Network> network;  ///< Outlives what runs inside.
    std::unique_ptr<RedisServer> server;
    std::unique_ptr<RedisServer> other;
    std::unique_ptr<RedisSentinel> sentinel;
    std::string uri;
    std::string password;  ///< That the engines know.
    std::function<Status(Scene&)> begin;
    std::function<Status(Scene&)> end;  ///< Returns at the moment from which the return counts.
    SteadyClock::duration away = kAway;
    bool moves = false;   ///< The records are the other server's afterwards.
    bool is_cut = false;  ///< The server does not hear that its clients have left.

    const RedisServer& after() const { return moves ? *other : *server; }
};

using MakeScene = std::function<Status(Scene&)>;

template <class Done>
Status await(const char* what, Done done) {
    const auto limit = SteadyClock::now() + kPatience;
    while (!done()) {
        if (SteadyClock::now() > limit) return {Code::Timeout, what};
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return Status::ok();
}

/// Sends a command whose answer must be this.
Status tell(const RedisServer& server, const std::vector<std::string>& words, const std::string& answer = "OK") {
    const auto reply = server.command(words);
    if (!reply) return reply.status();
    return *reply == answer ? Status::ok() : Status(Code::ProtocolError, words[0] + " was answered with " + *reply);
}

Status startServer(Scene& scene, RedisServer::Options options = {}) {
    auto server = RedisServer::start(std::move(options));
    if (!server) return server.status();
    scene.server = std::move(*server);
    scene.uri = scene.server->uri();
    return Status::ok();
}

/// A server, and two engines that found each other through it and transfer by TCP.
class OutageRig {
  public:
    static Result<std::unique_ptr<OutageRig>> make(const Settings& settings, const MakeScene& make_scene) {
        std::unique_ptr<OutageRig> rig(new OutageRig());
        if (Status status = make_scene(rig->scene); !status) return status;
        auto config = configOf(settings);
        if (!config) return config.status();
        EngineOptions options;
        options.config = std::move(*config);
        options.config.host_peers = false;
        options.config.redis_password = rig->scene.password;
        options.log = makeSilentLogger();
        for (auto [engine, name] : {std::pair(&rig->owner_, kOwner), std::pair(&rig->user_, "user")}) {
            *engine = std::make_unique<TransferEngine>(options);
            if (Status status = (*engine)->init(rig->scene.uri, name, "127.0.0.1"); !status) return status;
            if (auto tcp = (*engine)->installTransport("tcp"); !tcp) return tcp.status();
        }
        for (Memory* memory : {&rig->local_, &rig->remote_, &rig->more_}) {
            auto made = Memory::populated(kBlock);
            if (!made) return made.status();
            *memory = std::move(*made);
        }
        if (Status status = rig->user_->registerLocalMemory(rig->local_.data(), kBlock); !status) return status;
        if (Status status = rig->owner_->registerLocalMemory(rig->remote_.data(), kBlock); !status) return status;
        const auto segment = rig->user_->openSegment(kOwner);
        if (!segment) return segment.status();
        rig->segment_ = *segment;
        return rig;
    }
    ~OutageRig() {
        user_.reset();
        owner_.reset();
    }

    /// One write after the other until `until`; the time of each in microseconds is added to `samples`.
    Status write(SteadyClock::time_point until, std::vector<double>& samples) {
        TransferRequest request;
        request.opcode = Opcode::Write;
        request.source = local_.data();
        request.target_id = segment_;
        request.target_offset = reinterpret_cast<std::uint64_t>(remote_.data());
        request.length = kBlock;
        for (auto begin = SteadyClock::now(); begin < until;) {
            const auto batch = user_->allocateBatchID(1);
            if (!batch) return batch.status();
            if (Status status = user_->submitTransfer(*batch, {request}); !status) return status;
            const auto done = user_->waitTransfer(*batch, kPatience);
            if (!done) return done.status();
            if (done->s != TransferStatusEnum::COMPLETED) return done->error;
            if (Status status = user_->freeBatchID(*batch); !status) return status;
            const auto now = SteadyClock::now();
            samples.push_back(std::chrono::duration<double, std::micro>(now - begin).count());
            begin = now;
        }
        return Status::ok();
    }
    /// Something to publish.
    Status change() { return owner_->registerLocalMemory(more_.data(), kBlock); }

    /// Both records are there, the owner's with its change, and both engines are subscribed.
    bool isAsBefore(SteadyClock::time_point since) const {
        const RedisServer& server = scene.after();
        const auto record = server.command({"GET", "mooncake/ram/owner"});
        const auto desc = decodeSegmentDesc(record ? *record : std::string());
        if (!desc || desc->buffers.size() != 2) return false;
        const auto other = server.command({"EXISTS", "mooncake/ram/user"});
        if (!other || *other != "1") return false;
        return subscribers(server, since) == 2;
    }

    Scene scene;

  private:
    OutageRig() = default;

    /// Engines that are subscribed. After a cut, by connections that are not older than its end: of the others the
    /// server does not know yet that they are gone.
    long subscribers(const RedisServer& server, SteadyClock::time_point since) const {
        const auto clients = server.command({"CLIENT", "LIST", "TYPE", "pubsub"});
        const auto youth = std::chrono::duration_cast<std::chrono::seconds>(SteadyClock::now() - since).count() + 1;
        long count = 0;
        for (std::size_t at = 0; clients && (at = clients->find(" age=", at)) != std::string::npos; ++at)
            count += !scene.is_cut || std::atol(clients->c_str() + at + 5) <= youth ? 1 : 0;
        return count;
    }

    Memory local_;
    Memory remote_;
    Memory more_;
    std::unique_ptr<TransferEngine> owner_;
    std::unique_ptr<TransferEngine> user_;
    SegmentID segment_ = kInvalidSegmentID;
};

Result<Figures> outage(const Settings& settings, const MakeScene& make_scene) {
    auto made = OutageRig::make(settings, make_scene);
    if (!made) return made.status();
    OutageRig& rig = **made;
    Scene& scene = rig.scene;
    const auto quiet = [&](std::vector<double>& samples) { return rig.write(SteadyClock::now() + kAway / 2, samples); };
    std::vector<double> warm_up;
    std::vector<double> there;
    std::vector<double> away;
    if (Status status = rig.write(SteadyClock::now() + std::chrono::milliseconds(500), warm_up); !status) return status;
    if (Status status = quiet(there); !status) return status;
    if (Status status = scene.begin(scene); !status) return status;
    if (Status status = rig.write(SteadyClock::now() + scene.away / 2, away); !status) return status;
    if (Status status = rig.change(); !status) return status;
    if (Status status = rig.write(SteadyClock::now() + scene.away / 2, away); !status) return status;
    if (Status status = scene.end(scene); !status) return status;
    const auto back = SteadyClock::now();
    if (Status status = await("the records do not come back", [&] { return rig.isAsBefore(back); }); !status)
        return status;
    const std::chrono::duration<double, std::milli> took = SteadyClock::now() - back;
    // The other half afterwards: a machine that drifts, drifts for both.
    if (Status status = quiet(there); !status) return status;
    return Figures{{"back", took.count()},
                   {"p50", percentile(away, 0.5)},
                   {"p99", percentile(away, 0.99)},
                   {"p50 there", percentile(there, 0.5)},
                   {"p99 there", percentile(there, 0.99)}};
}

// --- the outages -------------------------------------------------------------------------------------------------

/// With its dump it comes back as it was.
Status killed(Scene& scene) {
    scene.begin = [](Scene& it) {
        const Status saved = tell(*it.server, {"SAVE"});
        it.server->kill();
        return saved;
    };
    scene.end = [](Scene& it) { return it.server->launch(); };
    return startServer(scene);
}

Status emptied(Scene& scene) {
    scene.begin = [](Scene& it) {
        it.server->kill();
        return Status::ok();
    };
    scene.end = [](Scene& it) { return it.server->launch(); };
    return startServer(scene);
}

Status protectedByPassword(Scene& scene) {
    scene.password = kPassword;
    scene.begin = [](Scene& it) {
        it.server->kill();
        return Status::ok();
    };
    scene.end = [](Scene& it) {
        it.server->options().arguments = {"--requirepass", kPassword};
        it.server->options().password = kPassword;
        return it.server->launch();
    };
    return startServer(scene);
}

Status stopped(Scene& scene) {
    scene.away = std::chrono::seconds(20);
    scene.begin = [](Scene& it) {
        it.server->stop();
        return Status::ok();
    };
    scene.end = [](Scene& it) {
        it.server->proceed();
        return Status::ok();
    };
    return startServer(scene);
}

/// Of an empty server: it loses what it had.
Status madeReplica(Scene& scene) {
    RedisServer::Options empty;
    empty.arguments = {"--repl-diskless-sync-delay", "0"};
    auto other = RedisServer::start(std::move(empty));
    if (!other) return other.status();
    scene.other = std::move(*other);
    scene.begin = [](Scene& it) {
        const auto port = std::to_string(it.other->port());
        if (Status told = tell(*it.server, {"REPLICAOF", "127.0.0.1", port}); !told) return told;
        return await("it does not become a replica", [&] { return tell(*it.server, {"DBSIZE"}, "0").isOk(); });
    };
    scene.end = [](Scene& it) { return tell(*it.server, {"REPLICAOF", "NO", "ONE"}); };
    return startServer(scene);
}

Status loading(Scene& scene) {
    scene.begin = [](Scene& it) {
        if (Status saved = tell(*it.server, {"SAVE"}); !saved) return saved;
        it.server->kill();
        // 20,000 keys, 500 us each: longer than it is looked at.
        it.server->options().arguments = {"--key-load-delay", "500", "--loading-process-events-interval-bytes", "1024"};
        return it.server->launch();
    };
    scene.end = [](Scene& it) {
        if (Status hurried = tell(*it.server, {"CONFIG", "SET", "key-load-delay", "0"}); !hurried) return hurried;
        return await("it does not end loading", [&] { return tell(*it.server, {"PING"}, "PONG").isOk(); });
    };
    if (Status started = startServer(scene); !started) return started;
    return tell(*scene.server, {"DEBUG", "POPULATE", "20000"});
}

Status full(Scene& scene) {
    scene.begin = [](Scene& it) { return tell(*it.server, {"CONFIG", "SET", "maxmemory", "1mb"}); };
    scene.end = [](Scene& it) { return tell(*it.server, {"CONFIG", "SET", "maxmemory", "0"}); };
    return startServer(scene);
}

Status cutOff(Scene& scene) {
    auto network = Network::create();
    if (!network) return network.status();
    scene.network.emplace(std::move(*network));
    scene.is_cut = true;
    scene.begin = [](Scene& it) { return it.network->setDrop(true); };
    scene.end = [](Scene& it) { return it.network->setDrop(false); };
    RedisServer::Options options;
    options.wrapper = scene.network->wrapper();
    options.bind = scene.network->thereAddress();
    return startServer(scene, std::move(options));
}

/// The master dies; the return counts from the moment that the Sentinel names the other one, which is master then.
Status failedOver(Scene& scene) {
    if (Status started = startServer(scene); !started) return started;
    RedisServer::Options replica;
    replica.arguments = {"--replicaof", "127.0.0.1", std::to_string(scene.server->port())};
    auto other = RedisServer::start(std::move(replica));
    if (!other) return other.status();
    scene.other = std::move(*other);
    auto sentinel = RedisSentinel::start(scene.server->port());
    if (!sentinel) return sentinel.status();
    scene.sentinel = std::move(*sentinel);
    scene.uri = fmt::format("redis+sentinel://127.0.0.1:{}/main", scene.sentinel->port());
    scene.moves = true;
    // It is over when the Sentinel says so, in about a second.
    scene.away = std::chrono::milliseconds(500);
    scene.begin = [](Scene& it) {
        it.server->kill();
        return Status::ok();
    };
    scene.end = [](Scene& it) {
        return await("no new master is named", [&] {
            const auto role = it.other->command({"INFO", "replication"});
            return it.sentinel->names(it.other->port()) && role && role->find("role:master") != std::string::npos;
        });
    };
    return await("the Sentinel does not find the replica",
                 [&] { return scene.sentinel->knowsReplica(scene.other->port()); });
}

Row outageRow(const std::string& name, const std::string& about, const MakeScene& make_scene) {
    Row row;
    row.name = "redis.outage." + name;
    row.about = fmt::format(
        "the server is {}: from its return to records and subscriptions; 4 KiB writes by TCP "
        "meanwhile, beside before and after",
        about);
    row.contenders = {{"troupe", [=](const Settings& settings) { return outage(settings, make_scene); }}};
    row.comparisons = {{".back", "ms", "troupe", "back", "", "", Target::valueAtMost(2000)},
                       {".write.p50", "us", "troupe", "p50", "troupe", "p50 there", Target::ratioAtMost(1.2)},
                       {".write.p99", "us", "troupe", "p99", "troupe", "p99 there", {}}};
    return row;
}

}  // namespace

std::vector<Row> redisOutageRows() {
    std::vector<Row> rows;
    rows.push_back(outageRow("killed", "killed, and restarted with what it had", killed));
    rows.push_back(outageRow("empty", "killed, and restarted empty", emptied));
    rows.push_back(
        outageRow("password", "killed, and restarted with a password that the engines know", protectedByPassword));
    rows.push_back(outageRow("stopped", "stopped by SIGSTOP for 20 s", stopped));
    rows.push_back(outageRow("replica", "made a read-only replica of an empty one", madeReplica));
    rows.push_back(outageRow("loading", "killed, and restarted with a dump that takes 10 s to load", loading));
    rows.push_back(outageRow("full", "filled to maxmemory", full));
    rows.push_back(outageRow("cut", "cut off silently in a network namespace (needs root)", cutOff));
    rows.push_back(outageRow("failover", "killed, and another one made master by a Sentinel", failedOver));
    return rows;
}

}  // namespace troupe::bench
