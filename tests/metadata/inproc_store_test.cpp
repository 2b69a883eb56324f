#include "metadata/inproc_store.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "tests/support/test_reactor.h"

namespace troupe {
namespace {

using namespace std::chrono_literals;
using test::TestReactor;

SegmentDesc segment(const std::string& name, const Incarnation& incarnation, std::uint64_t version = 1) {
    SegmentDesc desc;
    desc.name = name;
    desc.incarnation = incarnation;
    desc.version = version;
    return desc;
}

class InprocStoreTest : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_TRUE(one_->start(reactor_).isOk());
        ASSERT_TRUE(two_->start(reactor_).isOk());
    }

    Status publish(InprocStore& store, const SegmentDesc& desc, Duration ttl = 1h) {
        std::optional<Status> result;
        store.publish(desc, ttl, [&](Status status) { result = std::move(status); });
        EXPECT_FALSE(result.has_value()) << "called back at once";
        EXPECT_TRUE(reactor_.runUntil([&] { return result.has_value(); }));
        return result.value_or(Status(Code::Internal, "never"));
    }
    Status withdraw(InprocStore& store, const std::string& name) {
        std::optional<Status> result;
        store.withdraw(name, [&](Status status) { result = std::move(status); });
        EXPECT_FALSE(result.has_value());
        EXPECT_TRUE(reactor_.runUntil([&] { return result.has_value(); }));
        return result.value_or(Status(Code::Internal, "never"));
    }
    Result<SegmentDesc> resolve(InprocStore& store, const std::string& name, Duration timeout = 1h) {
        std::optional<Result<SegmentDesc>> result;
        store.resolve(name, timeout, [&](Result<SegmentDesc> found) { result = std::move(found); });
        EXPECT_FALSE(result.has_value());
        EXPECT_TRUE(reactor_.runUntil([&] { return result.has_value(); }));
        return result ? std::move(*result) : Result<SegmentDesc>(Code::Internal, "never");
    }
    void watch(InprocStore& store) {
        store.watch([this](const SegmentEvent& event) {
            events_.push_back((event.kind == SegmentEvent::Kind::Published ? "+" : "-") + event.name + "@" +
                              std::to_string(event.version));
        });
        reactor_.runIdle();
    }
    bool sees(const std::vector<std::string>& wanted) {
        return reactor_.runUntil([&] { return events_ == wanted; });
    }

    TestReactor reactor_;
    std::shared_ptr<InprocDirectory> directory_ = std::make_shared<InprocDirectory>();
    std::unique_ptr<InprocStore> one_ = std::make_unique<InprocStore>(directory_);
    std::unique_ptr<InprocStore> two_ = std::make_unique<InprocStore>(directory_);
    const Incarnation id_one_ = Incarnation::random();
    const Incarnation id_two_ = Incarnation::random();
    std::vector<std::string> events_;
};

TEST_F(InprocStoreTest, WhatOnePublishesAnotherResolves) {
    const auto desc = segment("a", id_one_, 7);
    ASSERT_TRUE(publish(*one_, desc).isOk());
    const auto found = resolve(*two_, "a");
    ASSERT_TRUE(found.isOk()) << found.status().toString();
    EXPECT_TRUE(*found == desc);
    EXPECT_EQ(resolve(*two_, "b").status().code(), Code::NotFound);
}

TEST_F(InprocStoreTest, ALaterPublishReplaces) {
    ASSERT_TRUE(publish(*one_, segment("a", id_one_, 1)).isOk());
    ASSERT_TRUE(publish(*one_, segment("a", id_one_, 2)).isOk());
    EXPECT_EQ(resolve(*two_, "a")->version, 2u);
}

TEST_F(InprocStoreTest, ANameOfALiveIncarnationIsTaken) {
    ASSERT_TRUE(publish(*one_, segment("a", id_one_)).isOk());
    const Status status = publish(*two_, segment("a", id_two_));
    EXPECT_EQ(status.code(), Code::AlreadyExists);
    EXPECT_NE(status.message().find(id_one_.toString()), std::string::npos);
    EXPECT_EQ(resolve(*two_, "a")->incarnation, id_one_);
    EXPECT_TRUE(withdraw(*two_, "a").isOk());
    EXPECT_EQ(resolve(*two_, "a")->incarnation, id_one_) << "another's record is not withdrawn";
}

TEST_F(InprocStoreTest, AWithdrawnNameIsFree) {
    ASSERT_TRUE(publish(*one_, segment("a", id_one_)).isOk());
    ASSERT_TRUE(withdraw(*one_, "a").isOk());
    EXPECT_EQ(resolve(*one_, "a").status().code(), Code::NotFound);
    EXPECT_TRUE(publish(*two_, segment("a", id_two_)).isOk());
    EXPECT_TRUE(withdraw(*one_, "unheard of").isOk());
}

TEST_F(InprocStoreTest, ALeaseIsRenewedWhileTheStoreLivesAndEndsAfterItsDeath) {
    watch(*two_);
    ASSERT_TRUE(publish(*one_, segment("a", id_one_), 60ms).isOk());
    const TimePoint end = reactor_.now() + 200ms;
    ASSERT_TRUE(reactor_.runUntil([&] { return reactor_.now() > end; }));
    EXPECT_TRUE(sees({"+a@1"}));
    one_.reset();
    EXPECT_TRUE(sees({"+a@1", "-a@0"}));
    EXPECT_TRUE(publish(*two_, segment("a", id_two_)).isOk());
}

TEST_F(InprocStoreTest, TheWatcherHearsOfEveryChangeFromNowOn) {
    ASSERT_TRUE(publish(*one_, segment("old", id_one_)).isOk());
    watch(*two_);
    EXPECT_TRUE(events_.empty());
    ASSERT_TRUE(publish(*one_, segment("a", id_one_, 1)).isOk());
    EXPECT_TRUE(sees({"+a@1"}));
    ASSERT_TRUE(publish(*one_, segment("a", id_one_, 2)).isOk());
    EXPECT_TRUE(sees({"+a@1", "+a@2"}));
    ASSERT_TRUE(withdraw(*one_, "a").isOk());
    EXPECT_TRUE(sees({"+a@1", "+a@2", "-a@0"}));
}

TEST_F(InprocStoreTest, AnOutageAnswersWithConnectionLostAndHeals) {
    watch(*two_);
    ASSERT_TRUE(publish(*one_, segment("a", id_one_, 1)).isOk());
    EXPECT_TRUE(sees({"+a@1"}));
    directory_->setOutage(true);
    EXPECT_EQ(publish(*one_, segment("a", id_one_, 2)).code(), Code::ConnectionLost);
    EXPECT_EQ(resolve(*two_, "a").status().code(), Code::ConnectionLost);
    EXPECT_EQ(withdraw(*two_, "a").code(), Code::ConnectionLost);
    directory_->loseRecords();
    reactor_.runIdle();
    EXPECT_EQ(events_.size(), 1u);
    directory_->setOutage(false);
    EXPECT_TRUE(reactor_.runUntil([&] { return !events_.empty() && events_.back() == "+a@2"; }));
    EXPECT_EQ(resolve(*two_, "a")->version, 2u) << "published again without being asked";
}

TEST_F(InprocStoreTest, AnAnswerThatTakesTooLongIsATimeout) {
    ASSERT_TRUE(publish(*one_, segment("a", id_one_)).isOk());
    directory_->setDelay(10ms);
    EXPECT_TRUE(resolve(*two_, "a").isOk());
    directory_->setDelay(1h);
    EXPECT_EQ(resolve(*two_, "a", 5ms).status().code(), Code::Timeout);
}

TEST_F(InprocStoreTest, NoCallbackComesAfterTheStoreIsDestroyed) {
    bool called = false;
    one_->publish(segment("a", id_one_), 1h, [&](const Status&) { called = true; });
    one_->resolve("a", 1h, [&](const Result<SegmentDesc>&) { called = true; });
    one_->watch([&](const SegmentEvent&) { called = true; });
    one_.reset();
    ASSERT_TRUE(publish(*two_, segment("b", id_two_)).isOk());
    reactor_.runIdle();
    EXPECT_FALSE(called);
}

TEST_F(InprocStoreTest, TheWatcherMayDestroyTheStore) {
    int heard = 0;
    two_->watch([&](const SegmentEvent&) {
        ++heard;
        two_.reset();
    });
    one_->publish(segment("a", id_one_), 1h, [](const Status&) {});
    one_->publish(segment("b", id_one_), 1h, [](const Status&) {});
    reactor_.runIdle();
    EXPECT_EQ(heard, 1);
}

TEST_F(InprocStoreTest, RecordsAreInspectedListedAndEvicted) {
    ASSERT_TRUE(publish(*one_, segment("b", id_one_, 3)).isOk());
    ASSERT_TRUE(publish(*two_, segment("a", id_two_)).isOk());
    std::optional<Result<RecordHead>> head;
    two_->inspect("b", 1h, [&](const Result<RecordHead>& found) { head = found; });
    std::optional<Result<std::vector<StoredSegment>>> all;
    two_->list(1h, [&](Result<std::vector<StoredSegment>> found) { all = std::move(found); });
    std::vector<Code> evicted;
    for (const auto& holder : {id_two_, id_one_, id_one_})
        two_->evict("b", holder, [&](const Status& status) { evicted.push_back(status.code()); });
    ASSERT_TRUE(reactor_.runUntil([&] { return evicted.size() == 3; }));
    EXPECT_EQ(**head, (RecordHead{id_one_, 3}));
    ASSERT_TRUE(*all);
    ASSERT_EQ((*all)->size(), 2u);
    EXPECT_EQ((**all)[0].name, "a");
    EXPECT_EQ((**all)[1].desc->version, 3u);
    EXPECT_EQ(evicted, (std::vector<Code>{Code::NotFound, Code::Ok, Code::NotFound}));
    EXPECT_EQ(resolve(*two_, "b").status().code(), Code::NotFound);
}

TEST(InprocStore, EnginesOnTheirOwnThreadsShareADirectory) {
    const auto directory = std::make_shared<InprocDirectory>();
    constexpr int kThreads = 4, kRounds = 200;
    std::vector<std::thread> threads;
    std::atomic<int> published{0};
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&, t] {
            TestReactor reactor;
            InprocStore store(directory);
            ASSERT_TRUE(store.start(reactor).isOk());
            store.watch([](const SegmentEvent&) {});
            const auto id = Incarnation::random();
            int done = 0;
            for (std::uint64_t i = 0; i < kRounds; ++i)
                store.publish(segment("engine" + std::to_string(t), id, i), 1h, [&](const Status& status) {
                    ++done;
                    if (status.isOk()) ++published;
                });
            EXPECT_TRUE(reactor.runUntil([&] { return done == kRounds; }));
        });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(published, kThreads * kRounds);
    EXPECT_EQ(directory->names().size(), static_cast<std::size_t>(kThreads));
}

}  // namespace
}  // namespace troupe
