// What an outage of Redis costs: transfers while it is away beside transfers while it is there, and the time from its
// return until everything is as before.

#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/memory.h"
#include "bench/redis_server.h"
#include "bench/stats.h"
#include "engine/transfer_engine.h"
#include "metadata/segment_desc.h"

namespace troupe::bench {

namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::size_t kBlock = 4096;
constexpr const char* kOwner = "owner";
/// How long the server is away: longer than the time-outs and the longest pause, so that the engines are in the middle
/// of trying when it returns.
constexpr auto kAway = std::chrono::seconds(5);
constexpr auto kPatience = std::chrono::seconds(30);

/// A server, and two engines that found each other through it and transfer by TCP.
class OutageRig {
  public:
    static Result<std::unique_ptr<OutageRig>> make(const Settings& settings) {
        auto server = RedisServer::start();
        if (!server) return server.status();
        std::unique_ptr<OutageRig> rig(new OutageRig());
        rig->server = std::move(*server);
        ConfigLoader loader;
        for (const auto& [key, value] : settings.config)
            if (Status status = loader.set(key, value, "--set"); !status) return status;
        EngineOptions options;
        options.config = loader.config();
        options.config.host_peers = false;
        options.log = makeSilentLogger();
        for (auto [engine, name] : {std::pair(&rig->owner_, kOwner), std::pair(&rig->user_, "user")}) {
            *engine = std::make_unique<TransferEngine>(options);
            if (Status status = (*engine)->init(rig->server->uri(), name, "127.0.0.1"); !status) return status;
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
    bool isAsBefore() const {
        const std::unique_ptr<redisContext, decltype(&redisFree)> context(redisConnect("127.0.0.1", server->port()),
                                                                          &redisFree);
        if (!context || context->err != 0) return false;
        const auto ask = [&](const char* command) {
            return std::unique_ptr<redisReply, decltype(&freeReplyObject)>(
                static_cast<redisReply*>(redisCommand(context.get(), command)), &freeReplyObject);
        };
        const auto record = ask("GET mooncake/ram/owner");
        if (!record || record->type != REDIS_REPLY_STRING) return false;
        const auto desc = decodeSegmentDesc(std::string(record->str, record->len));
        if (!desc || desc->buffers.size() != 2) return false;
        const auto other = ask("EXISTS mooncake/ram/user");
        if (!other || other->integer != 1) return false;
        const auto heard = ask("PUBSUB NUMSUB mooncake/ram/#changes");
        return heard && heard->elements == 2 && heard->element[1]->integer == 2;
    }

    std::unique_ptr<RedisServer> server;

  private:
    OutageRig() = default;
    Memory local_;
    Memory remote_;
    Memory more_;
    std::unique_ptr<TransferEngine> owner_;
    std::unique_ptr<TransferEngine> user_;
    SegmentID segment_ = kInvalidSegmentID;
};

using Act = std::function<Status(RedisServer&)>;

Result<Figures> outage(const Settings& settings, const Act& begin, const Act& end) {
    auto made = OutageRig::make(settings);
    if (!made) return made.status();
    OutageRig& rig = **made;
    const auto quiet = [&](std::vector<double>& samples) { return rig.write(SteadyClock::now() + kAway / 2, samples); };
    std::vector<double> warm_up;
    std::vector<double> there;
    std::vector<double> away;
    if (Status status = rig.write(SteadyClock::now() + std::chrono::milliseconds(500), warm_up); !status) return status;
    if (Status status = quiet(there); !status) return status;
    if (Status status = begin(*rig.server); !status) return status;
    if (Status status = rig.write(SteadyClock::now() + kAway, away); !status) return status;
    if (Status status = rig.change(); !status) return status;
    if (Status status = end(*rig.server); !status) return status;
    const auto back = SteadyClock::now();
    while (!rig.isAsBefore()) {
        if (SteadyClock::now() - back > kPatience) return {Code::Timeout, "the records do not come back"};
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const std::chrono::duration<double, std::milli> took = SteadyClock::now() - back;
    // The other half afterwards: a machine that drifts, drifts for both.
    if (Status status = quiet(there); !status) return status;
    return Figures{{"back", took.count()},
                   {"p50", percentile(away, 0.5)},
                   {"p99", percentile(away, 0.99)},
                   {"p50 there", percentile(there, 0.5)},
                   {"p99 there", percentile(there, 0.99)}};
}

Row outageRow(const std::string& name, const std::string& about, const Act& begin, const Act& end) {
    Row row;
    row.name = "redis.outage." + name;
    row.about = fmt::format(
        "the server is {}: from its return to records and subscriptions; 4 KiB writes by TCP "
        "meanwhile, beside before and after",
        about);
    row.contenders = {{"troupe", [=](const Settings& settings) { return outage(settings, begin, end); }}};
    row.comparisons = {{".back", "ms", "troupe", "back", "", "", Target::valueAtMost(2000)},
                       {".write.p50", "us", "troupe", "p50", "troupe", "p50 there", Target::ratioAtMost(1.1)},
                       {".write.p99", "us", "troupe", "p99", "troupe", "p99 there", {}}};
    return row;
}

}  // namespace

std::vector<Row> redisOutageRows() {
    std::vector<Row> rows;
    rows.push_back(outageRow(
        "killed", "killed, and restarted empty",
        [](RedisServer& server) {
            server.kill();
            return Status::ok();
        },
        [](RedisServer& server) { return server.restart(); }));
    rows.push_back(outageRow(
        "stopped", "stopped by SIGSTOP",
        [](RedisServer& server) {
            server.stop();
            return Status::ok();
        },
        [](RedisServer& server) {
            server.proceed();
            return Status::ok();
        }));
    return rows;
}

}  // namespace troupe::bench
