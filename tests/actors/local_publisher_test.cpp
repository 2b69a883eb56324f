#include "actors/local_publisher.h"

#include <gmock/gmock.h>

#include <optional>

#include "metadata/inproc_store.h"
#include "tests/support/virtual_reactor.h"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;

/// Counts what is written, and passes it on.
class CountingStore : public InprocStore {
  public:
    using InprocStore::InprocStore;
    void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) override {
        bytes += encodeSegmentDesc(desc).size();
        ++records;
        told = desc.version;
        InprocStore::publish(desc, ttl, std::move(done));
    }
    bool announce(const SegmentEvent& change) override {
        if (!announces) return false;
        EXPECT_GT(change.version, told) << "nothing is told twice";
        told = change.version;
        bytes += kBytesOfWord;
        return true;
    }
    /// A PUBLISH of an event.
    static constexpr std::size_t kBytesOfWord = 250;
    std::size_t bytes = 0;
    std::size_t records = 0;
    std::uint64_t told = 0;  ///< The latest version that was written or announced.
    bool announces = true;
};

class LocalPublishing : public testing::Test {
  protected:
    LocalPublishing() {
        EXPECT_TRUE(store_.start(reactor_));
        directory_->setDelay(200us);
        desc_.name = "server";
        desc_.incarnation = own_;
    }

    /// One more region, and word of it.
    void addRegion() {
        BufferDesc buffer;
        buffer.location = "cpu:0";
        buffer.addr = 0x7f0000000000 + desc_.buffers.size() * 0x1000;
        buffer.length = 0x1000;
        buffer.generation = desc_.buffers.size();
        desc_.buffers.push_back(buffer);
        ++desc_.version;
        publisher_.publish({});
    }
    /// Bytes for `regions`, registered one by one with `between` from one to the next, up to the record that has all.
    std::size_t bytesFor(std::size_t regions, Duration between, Duration settle = 10s) {
        const std::size_t before = store_.bytes;
        desc_.buffers.clear();
        for (std::size_t i = 0; i < regions; ++i) {
            addRegion();
            reactor_.advance(between);
        }
        reactor_.advance(settle);
        EXPECT_EQ(stored().buffers.size(), regions);
        return store_.bytes - before;
    }
    /// The time in which a record of as many regions is paid when nothing changes.
    static Duration payTime(std::size_t regions) {
        return std::chrono::seconds(1 + (LocalPublisher::kBytesPerRecord + LocalPublisher::kBytesPerRegion * regions) /
                                            LocalPublisher::kBytesPerSecond);
    }
    /// Another engine has the name, as `theirs_`.
    void holdName() {
        ASSERT_TRUE(other_.start(reactor_));
        SegmentDesc desc;
        desc.name = "server";
        desc.incarnation = theirs_;
        other_.publish(desc, 1h, [](const Status&) {});
        reactor_.advance(1ms);
    }
    SegmentDesc stored() {
        std::optional<SegmentDesc> found;
        store_.resolve("server", 1h, [&](const Result<SegmentDesc>& desc) {
            if (desc) found = *desc;
        });
        reactor_.advance(1ms);
        return found.value_or(SegmentDesc{});
    }

    VirtualReactor reactor_;
    const std::shared_ptr<InprocDirectory> directory_ = std::make_shared<InprocDirectory>();
    CountingStore store_{directory_};
    InprocStore other_{directory_};
    const Incarnation theirs_ = Incarnation::random();
    const Incarnation own_ = Incarnation::random();
    Config settings_;
    SegmentDesc desc_;
    LocalPublisher publisher_{reactor_,
                              store_,
                              settings_,
                              makeSilentLogger(),
                              "server",
                              own_,
                              [this]() -> const SegmentDesc& { return desc_; }};
};

TEST_F(LocalPublishing, OneChangeGoesOutAtOnce) {
    addRegion();
    reactor_.advance(1ms);
    EXPECT_EQ(store_.records, 1u);
    reactor_.advance(1s);
    addRegion();
    reactor_.advance(1ms);
    EXPECT_EQ(store_.records, 2u);
    EXPECT_EQ(stored().buffers.size(), 2u);
}

TEST_F(LocalPublishing, RegionsOneByOneCostBytesByTheirNumberNotItsSquare) {
    constexpr auto kBetween = 20us;
    const std::size_t thousand = bytesFor(1'000, kBetween);
    const std::size_t ten_thousand = bytesFor(10'000, kBetween);
    const std::size_t thirty_thousand = bytesFor(30'000, kBetween);
    std::printf("1,000: %zu bytes, 10,000: %zu, 30,000: %zu; per region %zu, %zu, %zu\n", thousand, ten_thousand,
                thirty_thousand, thousand / 1'000, ten_thousand / 10'000, thirty_thousand / 30'000);
    // Ten times the regions, about ten times the bytes; a record for each would be a hundred times.
    EXPECT_LT(ten_thousand, 15 * thousand);
    EXPECT_LT(thirty_thousand, 4.5 * static_cast<double>(ten_thousand));
    EXPECT_LT(ten_thousand, 10'000u * 500);
}

TEST_F(LocalPublishing, WhatChangedWhileTheStoreWasAwayIsInItsRecordSoonAfterItsReturn) {
    bytesFor(2'000, 20us);  // A record of these is not paid for again soon.
    directory_->setDelay(2s);
    store_.announces = false;
    for (int i = 0; i < 10; ++i) {
        addRegion();
        reactor_.advance(150ms);
    }
    directory_->setDelay(200us);
    store_.announces = true;
    reactor_.advance(1s);
    EXPECT_EQ(stored().buffers.size(), 2'010u);
}

TEST_F(LocalPublishing, RegionsThatComeSlowlyCostBytesByTheirNumberToo) {
    // Each wider than the pause after a record of a thousand regions (62 ms), within which changes are gathered.
    for (const Duration between : {Duration(100ms), Duration(300ms), Duration(1s)}) {
        // So that what was saved before buys nothing here.
        bytesFor(1, 1h);
        std::size_t per_region[2] = {};
        for (const std::size_t regions : {1'000u, 4'000u}) {
            const std::size_t bytes = bytesFor(regions, between, payTime(regions));
            const double seconds = std::chrono::duration<double>(between).count();
            // What a region brings, what the time brings, what was saved, and the word of each.
            const double bound =
                static_cast<double>(regions) *
                    (LocalPublisher::kBytesPerChange + LocalPublisher::kBytesPerSecond * seconds +
                     CountingStore::kBytesOfWord) +
                static_cast<double>(LocalPublisher::kMostSaved + 3 * LocalPublisher::kBytesPerRegion * regions);
            EXPECT_LT(static_cast<double>(bytes), bound);
            per_region[regions == 1'000 ? 0 : 1] = bytes / regions;
            std::printf("%zu regions, %.1f s apart: %zu bytes, %zu for each; a record for each would be %zu\n", regions,
                        seconds, bytes, bytes / regions, LocalPublisher::kBytesPerRegion * regions * regions / 2);
        }
        EXPECT_LT(per_region[1], per_region[0] * 3 / 2) << "the same for each, however many there are";
    }
}

TEST_F(LocalPublishing, WhatChangesIsToldWithinASecondWhateverTheRecordCosts) {
    bytesFor(10'000, 20us);
    for (int i = 0; i < 50; ++i) {
        addRegion();
        reactor_.advance(700ms);
        EXPECT_EQ(store_.told, desc_.version) << i;
    }
    EXPECT_LT(stored().version, desc_.version) << "the record itself is behind";
    reactor_.advance(payTime(10'100));
    EXPECT_EQ(stored().version, desc_.version) << "but not for ever";
}

TEST_F(LocalPublishing, OneChangeOfALargeRecordGoesOutAtOnceAndTheNextIsToldAfterThePause) {
    bytesFor(10'000, 20us, payTime(20'000));
    addRegion();
    reactor_.advance(1ms);
    EXPECT_EQ(stored().buffers.size(), 10'001u);
    addRegion();
    reactor_.advance(1ms);
    EXPECT_LT(store_.told, desc_.version);
    reactor_.advance(700ms);
    EXPECT_EQ(store_.told, desc_.version);
}

TEST_F(LocalPublishing, WhereNothingCanBeToldTheRecordIsWritten) {
    bytesFor(10'000, 20us);
    store_.announces = false;
    for (int i = 0; i < 10; ++i) {
        addRegion();
        reactor_.advance(700ms);
        EXPECT_EQ(stored().version, desc_.version);
    }
}

TEST_F(LocalPublishing, WhoAsksForAnAnswerDoesNotWaitForThePause) {
    bytesFor(10'000, 20us);
    addRegion();
    addRegion();
    std::optional<Status> answer;
    publisher_.publish([&](const Status& status) { answer = status; });
    reactor_.advance(1ms);
    ASSERT_TRUE(answer);
    EXPECT_TRUE(*answer);
    EXPECT_EQ(stored().buffers.size(), 10'002u);
}

TEST_F(LocalPublishing, EverybodyWhoWaitsIsAnsweredAtTheEnd) {
    std::vector<Code> answers;
    for (int i = 0; i < 3; ++i) publisher_.publish([&](const Status& status) { answers.push_back(status.code()); });
    publisher_.end(Status(Code::Canceled, "over"));
    EXPECT_EQ(answers, (std::vector<Code>(3, Code::Canceled)));
}

TEST_F(LocalPublishing, NothingIsWrittenAfterTheEnd) {
    addRegion();
    reactor_.advance(1ms);
    // Due after the pause; and one that comes later still.
    for (int i = 0; i < 100; ++i) addRegion();
    publisher_.end(Status(Code::Canceled, "the engine ends"));
    store_.withdraw("server", [](const Status&) {});
    const std::size_t before = store_.records;
    addRegion();
    Status late;
    publisher_.publish([&](const Status& status) { late = status; });
    reactor_.advance(1h);
    EXPECT_EQ(store_.records, before);
    EXPECT_EQ(late.code(), Code::Canceled);
    EXPECT_TRUE(stored().buffers.empty());
}

TEST_F(LocalPublishing, AnErrorOfTheStoreIsTheAnswer) {
    directory_->setOutage(true);
    std::optional<Status> answer;
    publisher_.publish([&](const Status& status) { answer = status; });
    reactor_.advance(1ms);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->code(), Code::ConnectionLost);
}

TEST_F(LocalPublishing, WhoWasRefusedTheNameDoesNotTakeItLaterUnasked) {
    holdName();
    std::optional<Status> answer;
    publisher_.publish([&](const Status& status) {
        answer = status;
        // As its lease ends just then.
        directory_->loseRecords();
    });
    addRegion();  // Wanted, and not told to anybody.
    reactor_.advance(1s);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->code(), Code::AlreadyExists);
    addRegion();
    reactor_.advance(1s);
    EXPECT_EQ(stored().incarnation, Incarnation{});
    publisher_.publish([&](const Status& status) { answer = status; });
    reactor_.advance(1s);
    EXPECT_TRUE(*answer) << "who asks again is served";
}

TEST_F(LocalPublishing, AHolderWithoutAControlEndpointKeepsTheName) {
    holdName();
    std::optional<Status> answer;
    publisher_.publish([&](const Status& status) { answer = status; });
    reactor_.advance(1s);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->code(), Code::AlreadyExists);
    EXPECT_THAT(answer->message(), testing::HasSubstr(theirs_.toString()));
    // Its lease ends, and with it its claim.
    directory_->loseRecords();
    publisher_.publish([&](const Status& status) { answer = status; });
    reactor_.advance(1s);
    EXPECT_TRUE(*answer) << answer->toString();
}

}  // namespace
}  // namespace troupe::test
