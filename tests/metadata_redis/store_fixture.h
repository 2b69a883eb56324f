#pragma once

#include <gmock/gmock.h>
#include <spdlog/sinks/ostream_sink.h>

#include <optional>
#include <sstream>

#include "metadata_redis/redis_store.h"
#include "tests/support/test_reactor.h"

namespace troupe::test {

inline SegmentDesc makeSegment(const std::string& name, const Incarnation& incarnation, std::uint64_t version = 1,
                               std::size_t regions = 0) {
    SegmentDesc desc;
    desc.name = name;
    desc.incarnation = incarnation;
    desc.version = version;
    desc.control = {"10.0.0.1", 7000};
    desc.boot_id = "boot";
    for (std::size_t i = 0; i < regions; ++i) {
        BufferDesc buffer;
        buffer.location = "cpu:0";
        buffer.addr = 0x7f0000000000 + i * 0x10000;
        buffer.length = 0x10000;
        buffer.generation = 1000 + i;
        desc.buffers.push_back(std::move(buffer));
    }
    return desc;
}

/// Stores on a reactor that the test drives.
class StoreTest : public testing::Test {
  protected:
    StoreTest() {
        // So that tests of trouble take not much longer than the trouble.
        settings_.redis_connect_timeout = std::chrono::milliseconds(500);
        settings_.redis_command_timeout = std::chrono::milliseconds(1000);
        settings_.redis_keepalive_interval = std::chrono::milliseconds(300);
        log_ = std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(logged_));
        log_->set_level(spdlog::level::debug);
    }

    std::unique_ptr<RedisStore> makeStore(const std::string& uri) {
        auto parsed = RedisUri::parse(uri);
        EXPECT_TRUE(parsed) << parsed.status().toString();
        auto store = std::make_unique<RedisStore>(*parsed, settings_, log_);
        EXPECT_TRUE(store->start(reactor_));
        return store;
    }

    template <class T, class Begin>
    T await(Begin&& begin, T never) {
        const auto result = std::make_shared<std::optional<T>>();
        begin([result](T value) {
            EXPECT_FALSE(result->has_value()) << "answered twice";
            *result = std::move(value);
        });
        EXPECT_FALSE(result->has_value()) << "called back at once";
        EXPECT_TRUE(reactor_.runUntil([&] { return result->has_value(); }, std::chrono::seconds(60)));
        return result->value_or(std::move(never));
    }
    static Status never() { return {Code::Internal, "no answer"}; }

    Status publish(MetadataStore& store, const SegmentDesc& desc, Duration ttl = std::chrono::hours(1)) {
        return await<Status>([&](auto done) { store.publish(desc, ttl, done); }, never());
    }
    Status withdraw(MetadataStore& store, const std::string& name) {
        return await<Status>([&](auto done) { store.withdraw(name, done); }, never());
    }
    Status evict(MetadataStore& store, const std::string& name, const Incarnation& holder) {
        return await<Status>([&](auto done) { store.evict(name, holder, done); }, never());
    }
    Result<SegmentDesc> resolve(MetadataStore& store, const std::string& name,
                                Duration timeout = std::chrono::hours(1)) {
        return await<Result<SegmentDesc>>([&](auto done) { store.resolve(name, timeout, done); }, never());
    }
    Result<RecordHead> inspect(MetadataStore& store, const std::string& name) {
        return await<Result<RecordHead>>([&](auto done) { store.inspect(name, std::chrono::hours(1), done); }, never());
    }
    Result<std::vector<StoredSegment>> list(MetadataStore& store) {
        return await<Result<std::vector<StoredSegment>>>([&](auto done) { store.list(std::chrono::seconds(30), done); },
                                                         never());
    }
    bool runUntil(const std::function<bool()>& done) { return reactor_.runUntil(done, std::chrono::seconds(60)); }
    void runFor(Duration span) {
        const TimePoint end = reactor_.now() + span;
        reactor_.runUntil([&] { return reactor_.now() >= end; }, std::chrono::seconds(60));
    }

    /// Events as text: "+name@version", "-name", "?" for missed ones.
    void watch(MetadataStore& store) {
        store.watch([this](const SegmentEvent& event) {
            events_.push_back(event.kind == SegmentEvent::Kind::Missed ? "?"
                              : event.kind == SegmentEvent::Kind::Published
                                  ? "+" + event.name + "@" + std::to_string(event.version)
                                  : "-" + event.name);
        });
    }
    bool heard(const std::string& event) {
        return runUntil([&] { return std::find(events_.begin(), events_.end(), event) != events_.end(); });
    }

    /// Of words in the log.
    std::size_t count(const std::string& words) const {
        const std::string text = logged_.str();
        std::size_t found = 0;
        for (std::size_t at = 0; (at = text.find(words, at)) != std::string::npos; at += words.size()) ++found;
        return found;
    }
    std::size_t warnings() const { return count("[warning]"); }

    TestReactor reactor_;
    Config settings_;
    std::ostringstream logged_;
    Logger log_;
    std::vector<std::string> events_;
};

}  // namespace troupe::test
