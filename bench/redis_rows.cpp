// Finding segments in Redis, beside a bare GET of the same records over a blocking hiredis connection.

#include "bench/redis_rows.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>

#include "actors/loop.h"
#include "apps/support/redis_server.h"
#include "bench/memory.h"
#include "bench/row.h"
#include "bench/stats.h"
#include "engine/store_factory.h"
#include "engine/transfer_engine.h"
#include "metadata/metadata_store.h"

namespace troupe::bench {

namespace {

using apps::RedisServer;

constexpr std::size_t kNames = 1000;
constexpr std::size_t kManyRegions = 10'000;
constexpr auto kTimeout = std::chrono::seconds(10);

std::string nameOf(std::size_t i) { return fmt::format("segment{}", i % kNames); }

SegmentDesc makeSegment(const std::string& name, const Incarnation& incarnation, std::uint64_t version,
                        std::size_t regions) {
    SegmentDesc desc;
    desc.name = name;
    desc.incarnation = incarnation;
    desc.version = version;
    desc.boot_id = "01234567-89ab-cdef-0123-456789abcdef";
    desc.control = {"10.0.0.1", 17000};
    desc.transports = {"tcp"};
    desc.lane_ports = {17001};
    desc.tcp_data_port = 17001;
    desc.timestamp = "2026-01-01 00:00:00";
    for (std::size_t i = 0; i < regions; ++i) {
        BufferDesc buffer;
        buffer.location = "cpu:0";
        buffer.addr = 0x7f0000000000 + i * 0x100000;
        buffer.length = 0x100000;
        buffer.generation = i + 1;
        desc.buffers.push_back(std::move(buffer));
    }
    return desc;
}

/// Two stores on a loop as the engine has it, used from this thread.
class StoreRig {
  public:
    static Result<std::unique_ptr<StoreRig>> make(const Settings& settings) {
        auto server = RedisServer::start();
        if (!server) return server.status();
        std::unique_ptr<StoreRig> rig(new StoreRig());
        rig->server = std::move(*server);
        rig->system_config_.set("scheduler.policy", caf::atom("sharing"));
        rig->system_config_.set("scheduler.max-threads", 1);
        rig->system_ = std::make_unique<caf::actor_system>(rig->system_config_);
        rig->loop = std::make_unique<Loop>(*rig->system_, Loop::Options{"troupe.ctl", {}, false, {}});
        if (const Status started = rig->loop->start(); !started) return started;
        const auto config = configOf(settings);
        if (!config) return config.status();
        for (auto* store : {&rig->store, &rig->other}) {
            auto made = makeStore(rig->server->uri(), *config, makeSilentLogger());
            if (!made) return made.status();
            *store = std::move(*made);
            const Status started = rig->ask<Status>([&](auto answer) { answer((*store)->start(*rig->loop)); });
            if (!started) return started;
        }
        return rig;
    }
    ~StoreRig() {
        if (store)
            static_cast<void>(ask<Status>([this](auto answer) {
                store.reset();
                other.reset();
                answer(Status::ok());
            }));
        if (loop) loop->stop();
    }

    template <class T, class Begin>
    T ask(Begin begin) {
        const auto promise = std::make_shared<std::promise<T>>();
        auto answer = promise->get_future();
        loop->post([&begin, promise] { begin([promise](T value) { promise->set_value(std::move(value)); }); });
        return answer.get();
    }
    Status publish(const SegmentDesc& desc) {
        return ask<Status>([&](auto answer) { store->publish(desc, std::chrono::minutes(10), answer); });
    }
    Result<SegmentDesc> resolve(const std::string& name) {
        return ask<Result<SegmentDesc>>([&](auto answer) { store->resolve(name, kTimeout, answer); });
    }
    Status publishAll() {
        const Incarnation incarnation = Incarnation::random();
        for (std::size_t i = 0; i < kNames; ++i)
            if (Status status = publish(makeSegment(nameOf(i), incarnation, 1, 1)); !status) return status;
        return Status::ok();
    }

  private:
    StoreRig() = default;
    caf::actor_system_config system_config_;
    std::unique_ptr<caf::actor_system> system_;

  public:
    std::unique_ptr<RedisServer> server;
    std::unique_ptr<Loop> loop;
    std::unique_ptr<MetadataStore> store;
    std::unique_ptr<MetadataStore> other;
};

Figures percentiles(std::vector<double>& samples) {
    return Figures{{"p50", percentile(samples, 0.5)}, {"p99", percentile(samples, 0.99)}};
}

/// Calls `once(i)` and takes the time of each call in microseconds.
template <class Once>
Result<Figures> timeEach(std::size_t count, Once once) {
    std::vector<double> samples;
    samples.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        if (Status status = once(i); !status) return status;
        samples.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    return percentiles(samples);
}

std::size_t samplesOf(const Settings& settings) { return std::max<std::size_t>(settings.latency_samples / 4, 500); }

Result<Figures> bareGet(const Settings& settings) {
    auto rig = StoreRig::make(settings);
    if (!rig) return rig.status();
    if (Status status = (*rig)->publishAll(); !status) return status;
    const std::unique_ptr<redisContext, decltype(&redisFree)> context(redisConnect("127.0.0.1", (*rig)->server->port()),
                                                                      &redisFree);
    if (!context || context->err != 0) return {Code::ConnectionRefused, "hiredis cannot connect"};
    return timeEach(samplesOf(settings), [&](std::size_t i) {
        const std::string key = "mooncake/ram/" + nameOf(i);
        auto* reply = static_cast<redisReply*>(redisCommand(context.get(), "GET %s", key.c_str()));
        const bool good = reply != nullptr && reply->type == REDIS_REPLY_STRING;
        if (reply != nullptr) freeReplyObject(reply);
        return good ? Status::ok() : Status(Code::ProtocolError, "GET failed");
    });
}

Result<Figures> resolveNames(const Settings& settings) {
    auto rig = StoreRig::make(settings);
    if (!rig) return rig.status();
    if (Status status = (*rig)->publishAll(); !status) return status;
    return timeEach(samplesOf(settings), [&](std::size_t i) { return (*rig)->resolve(nameOf(i)).status(); });
}

/// As the directory asks: on the loop, from the call to the callback.
Result<Figures> resolveOnLoop(const Settings& settings) {
    auto rig = StoreRig::make(settings);
    if (!rig) return rig.status();
    if (Status status = (*rig)->publishAll(); !status) return status;
    std::vector<double> samples;
    for (std::size_t i = 0; i < samplesOf(settings); ++i) {
        const auto took = (*rig)->ask<Result<double>>([&](auto answer) {
            const auto begin = std::chrono::steady_clock::now();
            (*rig)->store->resolve(nameOf(i), kTimeout, [begin, answer](const Result<SegmentDesc>& desc) {
                if (!desc) return answer(desc.status());
                answer(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
            });
        });
        if (!took) return took.status();
        samples.push_back(*took);
    }
    return percentiles(samples);
}

/// Two engines of this process that find each other by a Redis of their own.
struct TwoEngines {
    /// The owner is called "owner", the other one "peer"; both have tcp.
    static Result<std::unique_ptr<TwoEngines>> start(const EngineOptions& options) {
        auto server = RedisServer::start();
        if (!server) return server.status();
        auto made = std::make_unique<TwoEngines>(options, std::move(*server));
        for (auto [each, name] : {std::pair(&made->owner, "owner"), std::pair(&made->peer, "peer")}) {
            if (Status status = each->init(made->server->uri(), name, "127.0.0.1"); !status) return status;
            if (auto tcp = each->installTransport("tcp"); !tcp) return tcp.status();
        }
        return made;
    }
    TwoEngines(const EngineOptions& options, std::unique_ptr<RedisServer> redis)
        : server(std::move(redis)), owner(options), peer(options) {}

    std::unique_ptr<RedisServer> server;
    TransferEngine owner;
    TransferEngine peer;
};

/// From openSegment to its return: resolve, connect, handshake, descriptor.
Result<Figures> openSegments(const Settings& settings) {
    auto config = configOf(settings);
    if (!config) return config.status();
    EngineOptions options;
    options.config = std::move(*config);
    auto engines = TwoEngines::start(options);
    if (!engines) return engines.status();
    TransferEngine& engine = (*engines)->peer;
    std::vector<double> samples;
    for (std::size_t i = 0; i < std::min<std::size_t>(samplesOf(settings), 1000); ++i) {
        const auto begin = std::chrono::steady_clock::now();
        const auto segment = engine.openSegment("owner");
        if (!segment) return segment.status();
        samples.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
        if (Status status = engine.closeSegment(*segment); !status) return status;
    }
    return percentiles(samples);
}

/// Publishes of records that are there already, each a later version, among a thousand.
Result<Figures> publishSegments(const Settings& settings) {
    auto rig = StoreRig::make(settings);
    if (!rig) return rig.status();
    const Incarnation incarnation = Incarnation::random();
    const auto publish = [&](std::size_t i) {
        return (*rig)->publish(makeSegment(nameOf(i), incarnation, 1 + i / kNames, 1));
    };
    for (std::size_t i = 0; i < kNames; ++i)
        if (Status status = publish(i); !status) return status;
    return timeEach(samplesOf(settings), [&](std::size_t i) { return publish(kNames + i); });
}

/// From the call of publish to the watcher of another store, of one record with so many regions.
Result<std::vector<double>> timesToWatcher(StoreRig& rig, std::size_t regions, std::size_t count) {
    struct Heard {
        std::uint64_t version = 0;
        std::function<void(Status)> answer;
    };
    const auto heard = std::make_shared<Heard>();
    const Incarnation incarnation = Incarnation::random();
    // The subscription stands when the first event, the one of missed ones, has come.
    const Status subscribed = rig.ask<Status>([&](auto answer) {
        heard->answer = answer;
        rig.other->watch([heard](const SegmentEvent& event) {
            if (event.kind != SegmentEvent::Kind::Missed && event.version != heard->version) return;
            if (const auto told = std::exchange(heard->answer, {})) told(Status::ok());
        });
    });
    if (!subscribed) return subscribed;
    std::vector<double> samples;
    for (std::size_t i = 0; i < count; ++i) {
        const SegmentDesc desc = makeSegment("changing", incarnation, i + 2, regions);
        const auto begin = std::chrono::steady_clock::now();
        const Status told = rig.ask<Status>([&](auto answer) {
            heard->version = desc.version;
            heard->answer = answer;
            rig.store->publish(desc, std::chrono::minutes(10), [](const Status&) {});
        });
        if (!told) return told;
        samples.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
    }
    return samples;
}

/// Among a thousand segments.
Result<Figures> notify(const Settings& settings) {
    auto rig = StoreRig::make(settings);
    if (!rig) return rig.status();
    if (Status status = (*rig)->publishAll(); !status) return status;
    auto samples = timesToWatcher(**rig, 1, std::min<std::size_t>(samplesOf(settings), 2000));
    if (!samples) return samples.status();
    return percentiles(*samples);
}

/// Milliseconds for a record of many regions: publish, resolve, the cheap look at its head, and word of a change.
Result<Figures> large(const Settings& settings) {
    auto rig = StoreRig::make(settings);
    if (!rig) return rig.status();
    const Incarnation incarnation = Incarnation::random();
    constexpr std::size_t kRounds = 20;
    const auto median_ms = [](Result<Figures> times) { return times ? (*times)["p50"] / 1000 : -1.0; };
    const double publish = median_ms(timeEach(kRounds, [&](std::size_t i) {
        return (*rig)->publish(makeSegment("large", incarnation, i + 1, kManyRegions));
    }));
    const double resolve = median_ms(timeEach(kRounds, [&](std::size_t) { return (*rig)->resolve("large").status(); }));
    const double inspect = median_ms(timeEach(kRounds * 10, [&](std::size_t) {
        return (*rig)
            ->ask<Result<RecordHead>>([&](auto answer) { (*rig)->store->inspect("large", kTimeout, answer); })
            .status();
    }));
    if (publish < 0 || resolve < 0 || inspect < 0) return {Code::Internal, "a store call failed"};
    auto told = timesToWatcher(**rig, kManyRegions, kRounds);
    if (!told) return told.status();
    return Figures{
        {"publish", publish}, {"resolve", resolve}, {"inspect", inspect}, {"notify", percentile(*told, 0.5) / 1000}};
}

/// Milliseconds from the registration of one more region until a peer that has the segment open has a descriptor with
/// it, when only the store tells: the control connection would ask each second.
Result<Figures> seenByAPeer(const Settings& settings, std::size_t regions) {
    auto config = configOf(settings);
    if (!config) return config.status();
    EngineOptions options;
    options.config = std::move(*config);
    options.config.keepalive_interval = std::chrono::minutes(30);
    options.config.keepalive_timeout = std::chrono::hours(1);
    options.log = makeSilentLogger();
    constexpr std::size_t kSize = 4096;
    constexpr std::size_t kRounds = 20;
    auto memory = Memory::populated(2 * kSize * (regions + kRounds));  // Outlives the engine that serves it.
    if (!memory) return memory.status();
    const auto place = [&](std::size_t i) { return memory->data() + 2 * kSize * i; };
    auto engines = TwoEngines::start(options);
    if (!engines) return engines.status();
    TransferEngine& owner = (*engines)->owner;
    TransferEngine& peer = (*engines)->peer;
    std::vector<BufferEntry> entries;
    for (std::size_t i = 0; i < regions; ++i) entries.push_back({place(i), kSize});
    if (Status status = owner.registerLocalMemoryBatch(entries); !status) return status;
    const auto segment = peer.openSegment("owner");
    if (!segment) return segment.status();
    const auto seen = [&] {
        const auto desc = peer.getSegmentDescByID(*segment);
        return desc ? (*desc)->buffers.size() : 0;
    };
    std::vector<double> samples;
    for (std::size_t i = 0; i < kRounds; ++i) {
        // Longer than the pause after a record, which would be measured otherwise.
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        const auto begin = std::chrono::steady_clock::now();
        if (Status status = owner.registerLocalMemory(place(regions + i), kSize); !status) return status;
        while (seen() != regions + i + 1) {
            if (std::chrono::steady_clock::now() - begin > kTimeout) return {Code::Timeout, "a change is not seen"};
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        samples.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
    }
    return percentiles(samples);
}

Row seenRow(const std::string& name, const std::string& about, std::size_t regions) {
    Row row;
    row.name = "redis.seen." + name;
    row.about = "from the registration of a region to its being in the descriptor that a peer has, " + about;
    row.contenders = {{"troupe", [regions](const Settings& settings) { return seenByAPeer(settings, regions); }}};
    row.comparisons = {{".p50", "ms", "troupe", "p50", "", "", Target::valueAtMost(1000)},
                       {".p99", "ms", "troupe", "p99", "", "", Target::valueAtMost(1000)}};
    return row;
}

}  // namespace

std::vector<Row> redisRows() {
    std::vector<Row> rows;
    Row resolve;
    resolve.name = "redis.resolve";
    resolve.about = "resolve of a new name over loopback, a thousand segments stored, beside a bare GET";
    resolve.contenders = {{"bare GET", bareGet}, {"troupe", resolveNames}, {"troupe on the loop", resolveOnLoop}};
    resolve.comparisons = {{".p50", "us", "troupe", "p50", "bare GET", "", Target::ratioAtMost(3)},
                           {".p99", "us", "troupe", "p99", "bare GET", "", {}},
                           {".loop.p50", "us", "troupe on the loop", "p50", "bare GET", "", {}}};
    rows.push_back(std::move(resolve));
    Row open;
    open.name = "redis.open";
    open.about = "openSegment of a new name: resolve, connect, handshake, descriptor";
    open.contenders = {{"troupe", openSegments}};
    open.comparisons = {{".p50", "us", "troupe", "p50", "", "", {}}, {".p99", "us", "troupe", "p99", "", "", {}}};
    rows.push_back(std::move(open));
    Row change;
    change.name = "redis.notify";
    change.about = "from publish to the watcher of another engine, a thousand segments stored";
    change.contenders = {{"troupe", notify}};
    change.comparisons = {{".p50", "us", "troupe", "p50", "", "", {}}, {".p99", "us", "troupe", "p99", "", "", {}}};
    rows.push_back(std::move(change));
    Row publish;
    publish.name = "redis.publish";
    publish.about = "publish of a later version of a record, a thousand segments stored";
    publish.contenders = {{"troupe", publishSegments}};
    publish.comparisons = {{".p50", "us", "troupe", "p50", "", "", {}}, {".p99", "us", "troupe", "p99", "", "", {}}};
    rows.push_back(std::move(publish));
    Row many;
    many.name = "redis.regions";
    many.about = "a record of 10,000 regions: publish, resolve, inspect (whose record is it), and notify";
    many.contenders = {{"troupe", large}};
    many.comparisons = {{".publish", "ms", "troupe", "publish", "", "", {}},
                        {".resolve", "ms", "troupe", "resolve", "", "", {}},
                        {".inspect", "ms", "troupe", "inspect", "", "", {}},
                        {".notify", "ms", "troupe", "notify", "", "", {}}};
    rows.push_back(std::move(many));
    rows.push_back(seenRow("one", "which has one region more", 1));
    rows.push_back(seenRow("many", "which has 10,000 regions more", kManyRegions));
    for (Row& outage : redisOutageRows()) rows.push_back(std::move(outage));
    return rows;
}

}  // namespace troupe::bench
