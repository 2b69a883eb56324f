#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "actors/tracker_logic.h"
#include "base/byte_range.h"
#include "tests/actors/plane_fakes.h"

namespace troupe::test {

inline constexpr std::uint32_t kPeer = 2;
inline constexpr std::uint64_t kRemote = 0x100000;

/// One tracker, and a test that plays its workers.
class Tracker : public testing::Test {
  protected:
    Tracker() {
        Region region;
        region.range = {reinterpret_cast<std::uint64_t>(memory_.data()), memory_.size()};
        region_ = *regions_.reserve(region);
        regions_.commit(region_.id);
        joinWorker(0, 0, nicInfo(100, 400, 1000));
        usePeer({0});
    }

    void joinWorker(std::uint32_t index, std::uint32_t loop, const NicInfo& nic,
                    std::vector<std::string> far_from = {}) {
        WorkerJoined joined;
        joined.far_from = std::move(far_from);
        joined.index = index;
        joined.nic = nic;
        joined.loop = loop;
        tracker_.onWorkerJoined(joined);
    }
    /// Each time another incarnation.
    void usePeer(std::vector<std::uint32_t> workers, std::uint32_t peer = kPeer) {
        peer_ = makePeer(peer);
        tracker_.onUsePeer(UsePeer{peer_, segmentOf(peer), std::move(workers)});
        tracker_.flush();
    }
    /// A task of `length` bytes at `offset` of both sides.
    TaskSpec spec(std::uint64_t offset, std::uint64_t length) {
        TaskSpec result;
        result.local = memory_.data() + offset;
        result.remote = kRemote + offset;
        result.length = length;
        result.segment = segmentOf(kPeer);
        return result;
    }
    BatchID submit(const std::vector<TaskSpec>& specs, std::uint32_t capacity = 64) {
        const BatchID batch = *table_.allocate(capacity, 0);
        submitInto(batch, specs);
        return batch;
    }
    void submitInto(BatchID batch, const std::vector<TaskSpec>& specs) {
        tracker_.onSubmit(addTasks(table_, batch, specs, regions_.regions().version()), now_);
        tracker_.flush();
    }
    static SliceReport::Settled settledOf(const Flight& flight, std::uint64_t bytes, std::uint32_t peer = kPeer) {
        return {flight.batch, flight.first_task, flight.task_count, peer, flight.length, bytes};
    }
    void report(const SliceReport& report) {
        tracker_.onReport(report, now_);
        tracker_.flush();
    }
    void succeed(const Flight& flight, std::uint32_t worker = 0) {
        report(SliceReport{worker, {}, {settledOf(flight, flight.length)}, {}});
    }
    void fail(const Flight& flight, Status cause, bool retryable, bool quiesced = true) {
        report(SliceReport{0, {{flight, kPeer, std::move(cause), retryable, quiesced}}, {settledOf(flight, 0)}, {}});
    }
    TransferStatus task(BatchID batch, std::uint32_t index) { return table_.find(batch)->taskStatus(index); }
    TransferStatus batch(BatchID id) { return table_.find(id)->summary(); }

    std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 16);
    std::shared_ptr<const Peer> peer_;
    RegistrationTable regions_;
    Region region_;
    BatchTable table_{16};
    RecordedTracker output_;
    TrackerLogic tracker_{0, 0, regions_, output_};
    TimePoint now_ = Clock::now();
};

}  // namespace troupe::test
