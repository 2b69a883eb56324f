#pragma once

#include <gtest/gtest.h>
#include <spdlog/sinks/null_sink.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "actors/batch.h"
#include "actors/tracker_logic.h"
#include "actors/worker_logic.h"
#include "transports/registration_table.h"

namespace troupe::test {

/// What a tracker said, in order.
class RecordedTracker : public TrackerOutput {
  public:
    struct SentTrain {
        std::uint32_t worker;
        Train train;
    };
    struct SentReset {
        std::uint32_t worker;
        ResetPath reset;
    };

    void sendTrain(std::uint32_t worker, Train& train) override {
        EXPECT_FALSE(train.flights.empty()) << "an empty train";
        for (const Flight& flight : train.flights) {
            EXPECT_GT(flight.length, 0u);
            EXPECT_GT(flight.task_count, 0u);
        }
        trains.push_back({worker, std::move(train)});
    }
    void sendReset(std::uint32_t worker, ResetPath reset) override { resets.push_back({worker, std::move(reset)}); }
    void suspectPeer(std::uint32_t peer, const Status&) override { suspects.push_back(peer); }
    void wakeAt(TimePoint when) override { wake = when; }

    /// All flights sent since the last call.
    std::vector<Flight> takeFlights() {
        std::vector<Flight> all;
        for (const SentTrain& sent : std::exchange(trains, {}))
            all.insert(all.end(), sent.train.flights.begin(), sent.train.flights.end());
        return all;
    }

    std::vector<SentTrain> trains;
    std::vector<SentReset> resets;
    std::vector<std::uint32_t> suspects;
    TimePoint wake = kForever;
};

inline NicInfo nicInfo(std::uint64_t slice, std::uint64_t merge, std::uint64_t window, std::uint32_t requests = 1024) {
    NicInfo info;
    info.name = "fake0";
    info.transport = "fake";
    info.slice_bytes = slice;
    info.merge_bytes = merge;
    info.window_bytes = window;
    info.window_requests = requests;
    return info;
}

inline std::shared_ptr<const Peer> makePeer(std::uint32_t index,
                                            const Incarnation& incarnation = Incarnation::random()) {
    auto desc = std::make_shared<SegmentDesc>();
    desc->incarnation = incarnation;
    desc->name = "peer" + std::to_string(index);
    auto peer = std::make_shared<Peer>();
    peer->index = index;
    peer->name = desc->name;
    peer->host = "127.0.0.1";
    peer->desc = desc;
    return peer;
}

inline SegmentID segmentOf(std::uint32_t peer) { return SegmentID{1} << 32 | peer; }

/// What submit fills in.
struct TaskSpec {
    std::byte* local = nullptr;
    std::uint64_t remote = 0;
    std::uint64_t length = 0;
    SegmentID segment = kInvalidSegmentID;
    Opcode opcode = Opcode::Write;
    TimePoint deadline = kForever;
    std::uint16_t retries = 0;
};

/// Adds tasks to a batch as the engine's submit does, and gives the message for its tracker.
inline SubmitTasks addTasks(const BatchTable& table, BatchID id, const std::vector<TaskSpec>& specs,
                            std::uint64_t regions_version) {
    const auto batch = table.find(id);
    EXPECT_TRUE(static_cast<bool>(batch));
    const auto count = static_cast<std::uint32_t>(specs.size());
    const std::int64_t first = batch->claim(count);
    EXPECT_GE(first, 0);
    for (std::uint32_t i = 0; i < count; ++i) {
        Task& task = batch->task(static_cast<std::uint32_t>(first) + i);
        const TaskSpec& spec = specs[i];
        task.local = spec.local;
        task.remote = spec.remote;
        task.length = spec.length;
        task.segment = spec.segment;
        task.deadline = spec.deadline;
        task.opcode = spec.opcode;
        task.retries_left = spec.retries;
        EXPECT_FALSE(task.tracked);
        task.begin();
    }
    return SubmitTasks{&*batch, static_cast<std::uint32_t>(first), count, regions_version};
}

inline Logger silentLog() {
    return std::make_shared<spdlog::logger>("silent", std::make_shared<spdlog::sinks::null_sink_mt>());
}

/// A Nic that does what the test says, and fails the test when it is used against its contract.
class FakeNic final : public Nic {
  public:
    struct Posted {
        PathId path;
        WorkRequest request;
    };

    explicit FakeNic(NicInfo info) : info_(std::move(info)) {}
    ~FakeNic() override {
        if (destroyed != nullptr) *destroyed = true;
    }

    const NicInfo& info() const override { return info_; }

    Result<PathId> openPath(std::shared_ptr<const Peer> peer) override {
        EXPECT_NE(peer, nullptr);
        if (!refuse_open.isOk()) return refuse_open;
        const PathId id = next_path_++;
        paths[id] = std::move(peer);
        return id;
    }
    bool isSamePlace(const Peer& was, const Peer& is) const override { return was.host == is.host; }
    void closePath(PathId path, const Status& cause) override {
        EXPECT_EQ(paths.erase(path), 1u) << "closePath of a path that is not open";
        endPath(path, cause, false);
    }
    void resetPath(PathId path, const Status& cause) override {
        EXPECT_EQ(paths.count(path), 1u) << "resetPath of a path that is not open";
        ++resets;
        endPath(path, cause, true);
    }
    std::size_t post(PathId path, std::span<const WorkRequest> requests) override {
        EXPECT_EQ(paths.count(path), 1u) << "post on a path that is not open";
        EXPECT_FALSE(requests.empty());
        std::size_t taken = 0;
        for (const WorkRequest& request : requests) {
            EXPECT_GT(request.length, 0u);
            EXPECT_NE(request.local, nullptr);
            const ByteRange local{reinterpret_cast<std::uint64_t>(request.local), request.length};
            const bool overlap = local.overlaps({request.remote, request.length});
            EXPECT_TRUE(request.length <= info_.slice_bytes || (info_.same_address_space && overlap))
                << "a work request of " << request.length;
            if (inFlight(path) >= post_limit) break;
            posted.push_back({path, request});
            ++taken;
        }
        return taken;
    }
    bool poll(TimePoint, Sweep& sweep) override {
        EXPECT_TRUE(sweep.empty()) << "the owner did not clear the sweep";
        if (throws) throw std::runtime_error("a Nic that throws");
        const bool moved = !ready_.empty();
        for (const Completion& done : ready_.completed)
            for (std::uint32_t i = 0; i < done.requests; ++i) sweep.complete(done.cookie, i == 0 ? done.bytes : 0);
        sweep.failed.insert(sweep.failed.end(), ready_.failed.begin(), ready_.failed.end());
        sweep.paths.insert(sweep.paths.end(), ready_.paths.begin(), ready_.paths.end());
        sweep.proven.insert(sweep.proven.end(), ready_.proven.begin(), ready_.proven.end());
        ready_.clear();
        return moved;
    }
    bool arm() override { return ready_.empty(); }
    int waitFd() const override { return -1; }
    TimePoint nextDeadline() const override { return kForever; }
    bool servesPeerIn(const ByteRange& range) const override { return served && served->overlaps(range); }
    void cutPeersIn(const ByteRange& range) override {
        EXPECT_TRUE(servesPeerIn(range));
        served.reset();
        ++cuts;
    }
    Status heldIn(const ByteRange& range) const override { return range.overlaps(kHeldRange) ? held : Status::ok(); }
    std::vector<Holding> holdingsIn(const ByteRange& range) const override {
        return !held && range.overlaps(kHeldRange) ? std::vector<Holding>{{kHeldRange, "process 1"}}
                                                   : std::vector<Holding>();
    }
    void closeToPeers() override { closed = true; }
    void openToPeers() override { closed = false; }

    // --- the test's side ---------------------------------------------------------------------------------------
    std::size_t inFlight(PathId path) const {
        return static_cast<std::size_t>(
            std::count_if(posted.begin(), posted.end(), [path](const Posted& p) { return p.path == path; }));
    }
    void complete(std::size_t index) {
        const Posted done = take(index);
        ready_.complete(done.request.cookie, done.request.length);
    }
    void fail(std::size_t index, Status cause, bool retryable, bool quiesced = true, bool fenced = false) {
        ready_.failed.push_back({take(index).request, std::move(cause), retryable, quiesced, fenced});
    }
    /// Without proof that nothing touches its buffer any more; prove(doubt) may follow.
    void failUnproven(std::size_t index, std::uint64_t doubt) {
        fail(index, Status(Code::Timeout, "the deadline passed"), true, /*quiesced=*/false);
        ready_.failed.back().doubt = doubt;
    }
    void prove(std::uint64_t doubt) { ready_.proven.push_back(doubt); }
    Status shut() override { return at_the_end; }
    void sayUsable(PathId path, bool usable) { ready_.paths.push_back({path, usable}); }
    void completeAll() {
        while (!posted.empty()) complete(0);
    }

    std::vector<Posted> posted;
    std::map<PathId, std::shared_ptr<const Peer>> paths;
    Status refuse_open;
    std::size_t post_limit = SIZE_MAX;
    int resets = 0;
    int cuts = 0;
    std::optional<ByteRange> served;
    Status held;  ///< What heldIn says of kHeldRange.
    bool closed = false;
    Status at_the_end;  ///< What shut says.
    static constexpr ByteRange kHeldRange{0x9000, 16};
    bool* destroyed = nullptr;
    bool throws = false;  ///< When it is polled.

  private:
    Posted take(std::size_t index) {
        EXPECT_LT(index, posted.size());
        const Posted one = posted[index];
        posted.erase(posted.begin() + static_cast<std::ptrdiff_t>(index));
        return one;
    }
    void endPath(PathId path, const Status& cause, bool retryable) {
        for (std::size_t i = 0; i < posted.size();)
            if (posted[i].path == path)
                fail(i, cause, retryable);
            else
                ++i;
    }

    const NicInfo info_;
    PathId next_path_ = 1;
    Sweep ready_;
};

}  // namespace troupe::test
