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
        InprocStore::publish(desc, ttl, std::move(done));
    }
    std::size_t bytes = 0;
    std::size_t records = 0;
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
    /// Bytes for `regions`, registered one by one with `between` from one to the next.
    std::size_t bytesFor(std::size_t regions, Duration between) {
        const std::size_t before = store_.bytes;
        desc_.buffers.clear();
        for (std::size_t i = 0; i < regions; ++i) {
            addRegion();
            reactor_.advance(between);
        }
        reactor_.advance(10s);
        EXPECT_EQ(stored().buffers.size(), regions);
        return store_.bytes - before;
    }
    SegmentDesc stored() {
        std::optional<SegmentDesc> found;
        store_.resolve("server", 1h, [&](const Result<SegmentDesc>& desc) { found = *desc; });
        reactor_.advance(1ms);
        return found.value_or(SegmentDesc{});
    }

    VirtualReactor reactor_;
    const std::shared_ptr<InprocDirectory> directory_ = std::make_shared<InprocDirectory>();
    CountingStore store_{directory_};
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

TEST_F(LocalPublishing, TheRecordIsNeverBehindByMoreThanThePause) {
    bytesFor(10'000, 20us);
    addRegion();
    reactor_.advance(1ms);
    addRegion();
    reactor_.advance(1ms);
    EXPECT_EQ(stored().buffers.size(), 10'001u) << "the second waits";
    reactor_.advance(700ms);
    EXPECT_EQ(stored().buffers.size(), 10'002u);
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

TEST_F(LocalPublishing, AnErrorOfTheStoreIsTheAnswer) {
    directory_->setOutage(true);
    std::optional<Status> answer;
    publisher_.publish([&](const Status& status) { answer = status; });
    reactor_.advance(1ms);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->code(), Code::ConnectionLost);
}

TEST_F(LocalPublishing, AHolderWithoutAControlEndpointKeepsTheName) {
    InprocStore other(directory_);
    ASSERT_TRUE(other.start(reactor_));
    SegmentDesc theirs;
    theirs.name = "server";
    theirs.incarnation = Incarnation::random();
    other.publish(theirs, 1h, [](const Status&) {});
    reactor_.advance(1ms);
    std::optional<Status> answer;
    publisher_.publish([&](const Status& status) { answer = status; });
    reactor_.advance(1s);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->code(), Code::AlreadyExists);
    EXPECT_THAT(answer->message(), testing::HasSubstr(theirs.incarnation.toString()));
    // Its lease ends, and with it its claim.
    directory_->loseRecords();
    publisher_.publish([&](const Status& status) { answer = status; });
    reactor_.advance(1s);
    EXPECT_TRUE(*answer) << answer->toString();
}

}  // namespace
}  // namespace troupe::test
