// Trackers and workers together, without CAF, under a seeded schedule of work, failures and deadlines. The invariants
// of tracker_logic.h and of design rule 4 are asserted all the way.

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <set>

#include "tests/actors/plane_fakes.h"

namespace troupe::test {
namespace {

constexpr std::uint32_t kTrackers = 2;
constexpr std::uint32_t kWorkers = 3;
constexpr std::uint32_t kPeers = 3;
constexpr std::uint32_t kFirstPeer = 2;
constexpr std::uint32_t kBatches = 6;
constexpr std::uint32_t kTasks = 24;
constexpr std::uint64_t kLongest = 2000;
constexpr std::uint64_t kBatchBytes = kTasks * kLongest;

/// The whole data plane in one thread. Every actor has one mailbox, in which a message lies as soon as it is sent,
/// unless it is handled in place.
class Plane {
  public:
    explicit Plane(std::uint64_t seed)
        : random_(seed), local_(kBatches * kBatchBytes), remote_(kBatches * kBatchBytes), owned_(local_.size(), 0) {
        Region region;
        region.range = {reinterpret_cast<std::uint64_t>(local_.data()), local_.size()};
        region_ = *regions_.reserve(region);
        regions_.commit(region_.id);
        for (std::uint32_t i = 0; i < kTrackers; ++i) trackers_.push_back(std::make_unique<TrackerNode>(*this, i));
        const NicInfo infos[kWorkers] = {nicInfo(100, 100, 1000, 8), nicInfo(256, 256, 600, 1024),
                                         nicInfo(64, 0, 4000, 16)};
        for (std::uint32_t i = 0; i < kWorkers; ++i) {
            workers_.push_back(std::make_unique<WorkerNode>(*this, i, infos[i]));
            WorkerJoined joined;
            joined.index = i;
            joined.nic = infos[i];
            joined.loop = i % kTrackers;
            for (auto& tracker : trackers_) tracker->logic.onWorkerJoined(joined);
        }
        for (std::uint32_t i = 0; i < kPeers; ++i) usePeer(kFirstPeer + i);
        for (std::uint32_t i = 0; i < kBatches; ++i) batches_.push_back({});
    }

    void run(int steps) {
        for (int step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
            act();
            observe();
        }
        drain();
    }

  private:
    using Message = std::function<void()>;

    struct TrackerNode final : TrackerOutput {
        TrackerNode(Plane& owner, std::uint32_t index) : plane(owner), logic(index, index, owner.regions_, *this) {}
        void sendTrain(std::uint32_t worker, Train& train) override {
            for (const Flight& flight : train.flights) plane.checkFlight(flight);
            WorkerNode& to = *plane.workers_[worker];
            if (to.mailbox.empty() && plane.inPlace()) return to.logic.onTrain(train);
            to.mailbox.push_back([&to, train = std::move(train)] { to.logic.onTrain(train); });
        }
        void sendReset(std::uint32_t worker, ResetPath reset) override {
            WorkerNode& to = *plane.workers_[worker];
            if (to.mailbox.empty() && plane.inPlace()) return to.logic.onReset(reset);
            to.mailbox.push_back([&to, reset = std::move(reset)] { to.logic.onReset(reset); });
        }
        void suspectPeer(std::uint32_t peer, const Status&) override {
            EXPECT_GE(peer, kFirstPeer);
            EXPECT_LT(peer, kFirstPeer + kPeers);
        }
        void wakeAt(TimePoint when) override { wake = when; }

        Plane& plane;
        TrackerLogic logic;
        std::deque<Message> mailbox;
        TimePoint wake = kForever;
    };

    struct WorkerNode final : WorkerOutput {
        WorkerNode(Plane& owner, std::uint32_t index, const NicInfo& info)
            : plane(owner),
              owned_nic(std::make_unique<FakeNic>(info)),
              nic(*owned_nic),
              logic(index, std::move(owned_nic), owner.quarantine_, *this) {}
        void sendReport(std::uint32_t tracker, SliceReport& report) override {
            TrackerNode& to = *plane.trackers_[tracker];
            if (to.mailbox.empty() && plane.inPlace()) {
                to.logic.onReport(report, plane.now_);
                return to.logic.flush();
            }
            to.mailbox.push_back([this, &to, report = std::move(report)] { to.logic.onReport(report, plane.now_); });
        }

        Plane& plane;
        std::unique_ptr<FakeNic> owned_nic;
        FakeNic& nic;
        WorkerLogic logic;
        std::deque<Message> mailbox;
    };

    struct ShadowTask {
        std::uint64_t offset = 0;
        std::uint64_t length = 0;
        bool over = false;
        Opcode opcode = Opcode::Write;
    };
    struct Shadow {
        BatchID id = kInvalidBatchID;
        std::vector<ShadowTask> tasks;
        std::uint64_t used = 0;  ///< Bytes of the batch's share of memory that its tasks have.
    };

    std::uint64_t pick(std::uint64_t below) { return random_() % below; }
    /// Whether a message for an actor with an empty mailbox is handled where it is sent, as HostedActor may.
    bool inPlace() { return pick(2) == 0; }

    // --- what happens ------------------------------------------------------------------------------------------

    void act() {
        now_ += std::chrono::microseconds(pick(200));
        switch (pick(20)) {
            case 0:
            case 1: submit(); break;
            case 2:
                failSome();
                if (pick(4) == 0) changePath();
                break;
            case 3: peerTrouble(); break;
            case 4: cancel(); break;
            case 5: fireTimers(); break;
            case 6: freeOne(); break;
            case 7:
            case 8:
            case 9:
            case 10: completeSome(); break;
            case 11:
            case 12:
            case 13: pollOne(pick(kWorkers)); break;
            default: deliverOne(); break;
        }
    }

    void submit() {
        const std::uint32_t which = static_cast<std::uint32_t>(pick(kBatches));
        Shadow& shadow = batches_[which];
        if (shadow.id == kInvalidBatchID) {
            shadow = {};
            shadow.id = *table_.allocate(kTasks, static_cast<std::uint32_t>(pick(kTrackers)));
        }
        const std::uint64_t room = kTasks - shadow.tasks.size();
        if (room == 0) return;
        const std::uint64_t count = 1 + pick(room);
        const std::uint32_t peer = static_cast<std::uint32_t>(kFirstPeer + pick(kPeers));
        const bool small = pick(2) == 0;
        const auto opcode = pick(2) == 0 ? Opcode::Read : Opcode::Write;
        std::vector<TaskSpec> specs;
        for (std::uint64_t i = 0; i < count; ++i) {
            ShadowTask task;
            // Small ones lie side by side, so that they merge.
            task.length = pick(30) == 0 ? 0 : small ? 1 + pick(60) : 1 + pick(kLongest);
            task.offset = which * kBatchBytes + shadow.used;
            task.opcode = pick(8) == 0 ? Opcode::Read : opcode;
            shadow.used += task.length;
            TaskSpec spec;
            spec.local = local_.data() + task.offset;
            spec.remote = reinterpret_cast<std::uint64_t>(remote_.data()) + task.offset;
            spec.length = task.length;
            spec.opcode = task.opcode;
            spec.segment = segmentOf(pick(40) == 0 ? 77 : peer);
            spec.retries = static_cast<std::uint16_t>(pick(3));
            if (pick(4) == 0) spec.deadline = now_ + std::chrono::microseconds(pick(40000));
            for (std::uint64_t b = 0; b < task.length; ++b) {
                owned_[task.offset + b] = 1;
                local_[task.offset + b] = static_cast<std::byte>(random_());
                remote_[task.offset + b] = static_cast<std::byte>(random_());
            }
            shadow.tasks.push_back(task);
            specs.push_back(spec);
        }
        const auto message = addTasks(table_, shadow.id, specs, regions_.regions().version());
        TrackerNode& to = *trackers_[message.batch->tracker()];
        to.mailbox.push_back([this, &to, message] { to.logic.onSubmit(message, now_); });
    }

    /// The bytes of a request move now; only those of tasks that are not over may be touched.
    void move(const WorkRequest& request, std::uint64_t length) {
        const auto offset = static_cast<std::uint64_t>(request.local - local_.data());
        ASSERT_EQ(request.remote - reinterpret_cast<std::uint64_t>(remote_.data()), offset);
        for (std::uint64_t b = 0; b < length; ++b)
            ASSERT_EQ(owned_[offset + b], 1) << "a buffer is touched after its task was over";
        if (request.opcode == Opcode::Write)
            std::memcpy(remote_.data() + offset, local_.data() + offset, length);
        else
            std::memcpy(local_.data() + offset, remote_.data() + offset, length);
    }
    void completeSome() {
        FakeNic& nic = workers_[pick(kWorkers)]->nic;
        for (std::uint64_t count = 1 + pick(8); count > 0 && !nic.posted.empty(); --count) {
            const std::size_t index = pick(nic.posted.size());
            move(nic.posted[index].request, nic.posted[index].request.length);
            nic.complete(index);
        }
    }
    void failSome() {
        FakeNic& nic = workers_[pick(kWorkers)]->nic;
        if (nic.posted.empty()) return;
        const std::size_t index = pick(nic.posted.size());
        move(nic.posted[index].request, pick(nic.posted[index].request.length));
        if (pick(3) == 0)
            nic.fail(index, Status(Code::AddressNotRegistered, "refused"), false);
        else
            nic.fail(index, Status(Code::ConnectionLost, "lost"), true, /*quiesced=*/true, /*fenced=*/pick(2) == 0);
    }
    void changePath() {
        FakeNic& nic = workers_[pick(kWorkers)]->nic;
        if (nic.paths.empty()) return;
        auto path = nic.paths.begin();
        std::advance(path, static_cast<std::ptrdiff_t>(pick(nic.paths.size())));
        nic.sayUsable(path->first, pick(2) == 0);
    }
    void pollOne(std::uint64_t worker) { workers_[worker]->logic.poll(now_); }

    void usePeer(std::uint32_t index) {
        const UsePeer use{makePeer(index, Incarnation::random()), segmentOf(index), peerWorkers(index)};
        for (auto& worker : workers_) worker->mailbox.push_back([&w = *worker, use] { w.logic.onUsePeer(use); });
        for (auto& tracker : trackers_) tracker->mailbox.push_back([&t = *tracker, use] { t.logic.onUsePeer(use); });
    }
    static std::vector<std::uint32_t> peerWorkers(std::uint32_t index) {
        if (index == kFirstPeer) return {0};
        if (index == kFirstPeer + 1) return {1, 2};
        return {0, 1, 2};
    }
    void peerTrouble() {
        if (pick(20) != 0) return;
        const auto index = static_cast<std::uint32_t>(kFirstPeer + pick(kPeers));
        if (pick(2) == 0) {
            // Restarted: the successor is announced without a word of the old one's end.
            usePeer(index);
            return;
        }
        const DropPeer drop{index, Status(Code::PeerDown, "dead"), pick(2) == 0};
        for (auto& tracker : trackers_) tracker->mailbox.push_back([&t = *tracker, drop] { t.logic.onDropPeer(drop); });
        for (auto& worker : workers_) worker->mailbox.push_back([&w = *worker, drop] { w.logic.onDropPeer(drop); });
        usePeer(index);
    }
    void cancel() {
        if (pick(10) != 0) return;
        const Shadow& shadow = batches_[pick(kBatches)];
        if (shadow.id == kInvalidBatchID) return;
        EndTasks end;
        end.batch = shadow.id;
        end.task = pick(2) == 0 ? EndTasks::kAllTasks : static_cast<std::uint32_t>(pick(kTasks));
        end.cause = Status(Code::Canceled, "by the caller");
        TrackerNode& to = *trackers_[table_.find(shadow.id)->tracker()];
        to.mailbox.push_back([this, &to, end] {
            if (const auto batch = table_.find(end.batch)) to.logic.onEndTasks(end, *batch);
        });
    }
    void fireTimers() {
        for (auto& tracker : trackers_) {
            if (tracker->wake > now_) continue;
            tracker->wake = kForever;
            tracker->logic.onTimer(now_);
            tracker->logic.flush();
        }
    }
    void freeOne() {
        Shadow& shadow = batches_[pick(kBatches)];
        if (shadow.id == kInvalidBatchID) return;
        const bool over =
            std::all_of(shadow.tasks.begin(), shadow.tasks.end(), [](const ShadowTask& t) { return t.over; });
        const Status freed = table_.free(shadow.id);
        EXPECT_EQ(freed.isOk(), over) << freed.toString();
        if (freed) shadow.id = kInvalidBatchID;
    }
    void deliverOne() {
        const std::uint64_t to = pick(kTrackers + kWorkers);
        if (to < kTrackers)
            deliverTo(*trackers_[to]);
        else if (auto& mailbox = workers_[to - kTrackers]->mailbox; !mailbox.empty())
            takeFrom(mailbox)();
    }
    void deliverTo(TrackerNode& tracker) {
        // As an actor runs: some messages, then one flush.
        for (std::uint64_t count = 1 + pick(4); count > 0 && !tracker.mailbox.empty(); --count)
            takeFrom(tracker.mailbox)();
        tracker.logic.flush();
    }
    static Message takeFrom(std::deque<Message>& mailbox) {
        Message message = std::move(mailbox.front());
        mailbox.pop_front();
        return message;
    }

    // --- what must hold ----------------------------------------------------------------------------------------

    /// A flight belongs to a batch with these tasks, none of which is over.
    void checkFlight(const Flight& flight) {
        const auto found = std::find_if(batches_.begin(), batches_.end(),
                                        [&](const Shadow& shadow) { return shadow.id == flight.batch->id(); });
        ASSERT_NE(found, batches_.end()) << "a flight of a batch that was freed";
        ASSERT_LE(flight.first_task + flight.task_count, found->tasks.size());
        std::uint64_t length = 0;
        for (std::uint32_t i = 0; i < flight.task_count; ++i) {
            const ShadowTask& task = found->tasks[flight.first_task + i];
            EXPECT_FALSE(task.over);
            EXPECT_EQ(task.opcode, flight.opcode);
            length += task.length;
        }
        if (flight.task_count > 1) {
            EXPECT_EQ(length, flight.length) << "merged tasks travel whole";
        }
        EXPECT_LE(flight.length, length);
    }

    /// Looks at every task's state as a caller would.
    void observe() {
        for (Shadow& shadow : batches_) {
            if (shadow.id == kInvalidBatchID) continue;
            const auto batch = table_.find(shadow.id);
            ASSERT_TRUE(static_cast<bool>(batch));
            bool all = true;
            for (std::uint32_t i = 0; i < shadow.tasks.size(); ++i) {
                ShadowTask& task = shadow.tasks[i];
                const auto status = batch->taskStatus(i);
                ASSERT_FALSE(task.over && !isTerminal(status.s)) << "a terminal task is so no more";
                if (isTerminal(status.s) && !task.over) taskOver(task, status);
                all = all && task.over;
            }
            EXPECT_EQ(batch->done(), all);
        }
    }
    void taskOver(ShadowTask& task, const TransferStatus& status) {
        task.over = true;
        ASSERT_LE(status.transferred_bytes, task.length);
        ASSERT_TRUE(status.quiesced);
        if (status.s == TransferStatusEnum::COMPLETED) {
            ASSERT_EQ(status.transferred_bytes, task.length);
            ASSERT_EQ(std::memcmp(local_.data() + task.offset, remote_.data() + task.offset, task.length), 0);
            ASSERT_TRUE(status.error.isOk());
        } else {
            ASSERT_FALSE(status.error.isOk());
        }
        ++ended_[status.s];
        std::fill_n(owned_.begin() + static_cast<std::ptrdiff_t>(task.offset), task.length, 0);
        // Nothing of it is with a Nic.
        for (const auto& worker : workers_)
            for (const auto& posted : worker->nic.posted) {
                const auto offset = static_cast<std::uint64_t>(posted.request.local - local_.data());
                ASSERT_FALSE(offset < task.offset + task.length && task.offset < offset + posted.request.length)
                    << "a task ended while a request of it is posted";
            }
    }

    /// Everything ends when the Nics go on working.
    void drain() {
        for (int round = 0; round < 100'000 && !testing::Test::HasFailure(); ++round) {
            now_ += std::chrono::milliseconds(1);
            bool idle = true;
            for (auto& worker : workers_) {
                idle = idle && worker->mailbox.empty() && worker->nic.posted.empty();
                while (!worker->mailbox.empty()) takeFrom(worker->mailbox)();
                while (!worker->nic.posted.empty()) {
                    move(worker->nic.posted[0].request, worker->nic.posted[0].request.length);
                    worker->nic.complete(0);
                }
                worker->logic.poll(now_);
            }
            fireTimers();
            for (auto& tracker : trackers_) {
                idle = idle && tracker->mailbox.empty() && tracker->logic.idle();
                while (!tracker->mailbox.empty()) deliverTo(*tracker);
            }
            observe();
            if (idle) break;
        }
        for (auto& tracker : trackers_) EXPECT_TRUE(tracker->logic.idle()) << "a task never ended";
        for (const Shadow& shadow : batches_)
            if (shadow.id != kInvalidBatchID) {
                EXPECT_TRUE(table_.free(shadow.id));
            }
        EXPECT_EQ(table_.live(), 0u);
        // The schedule reached what it is for.
        EXPECT_GT(ended_[TransferStatusEnum::COMPLETED], 100);
        EXPECT_GT(ended_[TransferStatusEnum::FAILED], 10);
        EXPECT_GT(ended_[TransferStatusEnum::TIMEOUT], 10);
        EXPECT_GT(ended_[TransferStatusEnum::CANCELED], 10);
    }

    std::mt19937_64 random_;
    std::vector<std::byte> local_;
    std::vector<std::byte> remote_;
    std::vector<char> owned_;  ///< 1: a running task's local byte.
    RegistrationTable regions_;
    Quarantine quarantine_{regions_, silentLog()};
    Region region_;
    BatchTable table_{kBatches};
    TimePoint now_ = Clock::now();
    std::vector<std::unique_ptr<TrackerNode>> trackers_;
    std::vector<std::unique_ptr<WorkerNode>> workers_;
    std::vector<Shadow> batches_;
    std::map<TransferStatusEnum, int> ended_;
};

class RandomPlane : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomPlane, KeepsItsInvariants) {
    std::uint64_t seed = GetParam();
    if (const char* given = std::getenv("TROUPE_TEST_SEED")) seed = std::strtoull(given, nullptr, 10);
    SCOPED_TRACE("TROUPE_TEST_SEED=" + std::to_string(seed));
    Plane(seed).run(60'000);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomPlane, testing::Range<std::uint64_t>(1, 7));

}  // namespace
}  // namespace troupe::test
