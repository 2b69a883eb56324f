#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/status.h"
#include "host_backend/links.h"
#include "transports/nic.h"
#include "transports/region.h"
#include "transports/staged_copy.h"
#include "transports/staging_user.h"

namespace troupe::host {

/// One end of a copy that a GPU takes part in, as an address of this process.
struct DeviceSide {
    static constexpr int kHost = -1;

    std::uint64_t addr = 0;
    int device = kHost;   ///< Of whose GPU's memory it is, or for which it is mapped.
    bool pinned = false;  ///< Of the host: GPUs reach it.
    bool plain = false;   ///< Of a GPU: others reach it, too; virtual memory may be open to its own alone.
    bool is_own = false;  ///< Of a GPU: memory of this process, that is, not mapped of another's.

    /// `region`: where `range` begins; null: of the host, and nothing is known of it.
    static DeviceSide of(const ByteRange& range, const Region* region);
};

/// The GPU that copies between these ends, of which one at least is a GPU's.
int copierOf(const DeviceSide& to, const DeviceSide& from);
/// It does so by itself, and not through pinned memory that a processor fills or empties.
bool isDirect(const DeviceSide& to, const DeviceSide& from);

/// The work of one HostNic that GPUs do: copies by their own engines where both ends can be reached by one, else
/// through pinned memory, in which this thread moves the bytes. A copy that was begun cannot be taken back: what ends
/// early is kept back by `sift` until it has ended. On the Nic's turn.
class DeviceJobs {
  public:
    struct Ended {
        WorkRequest request;
        PathId path = 0;
        Status outcome;
        ByteRange there;  ///< The other end, as addresses of this process.
    };

    DeviceJobs(std::shared_ptr<device::StagingPool> pool, unsigned loop, Links& links);

    /// `remote`: the other end, which is not the request's `remote` where that is another process's.
    /// `place`: given back by takeBack.
    void push(PathId path, const WorkRequest& request, const DeviceSide& local, const DeviceSide& remote,
              const device::PlacedMemory* place = nullptr);
    /// Of a path what has not begun and whose other end is in `range`, which must not be used any more.
    std::vector<std::pair<WorkRequest, const device::PlacedMemory*>> takeBack(PathId path, const ByteRange& range);
    /// Nothing to do, and nothing under way.
    bool isIdle() const { return queue_.empty() && running_.empty() && !user_.isActive(); }

    /// First in a pass: looks what has ended, begins what there is room for, and moves up to `budget` bytes.
    /// `ended` gets what has ended. True when anything moved.
    bool poll(TimePoint now, std::uint64_t budget, std::vector<Ended>& ended);
    void sift(TimePoint now, Sweep& sweep) { user_.sift(now, sweep); }
    bool arm() const;
    Status shut() const { return user_.shut(); }
    TimePoint nextDeadline() const { return user_.nextDeadline(); }

    /// Gives up all work of a path; `ended` gets it, with `cause`.
    void drop(PathId path, const Status& cause, std::vector<Ended>& ended);
    /// The same of what reads from or writes to `range` of this process.
    void dropIn(const ByteRange& range, const Status& cause, std::vector<Ended>& ended);
    /// Work for that memory is here, or a copy is under way there.
    bool serves(const ByteRange& range) const;
    bool touches(const ByteRange& range) const { return user_.touches(range); }
    Status heldIn(const ByteRange& range) const { return user_.heldIn(range); }

  private:
    struct Job {
        PathId path = 0;
        WorkRequest request;
        const device::PlacedMemory* place = nullptr;
        DeviceSide to;
        DeviceSide from;
        std::uint64_t remote = 0;  ///< Address of the other end in this process.
        /// Who copies; null: through pinned memory. Kept until the copy was seen to have ended: another Nic of the loop
        /// may see that first, and then nothing else keeps it.
        std::shared_ptr<device::Staging> direct;
        std::uint64_t copy = 0;
        bool is_packed = false;    ///< The copy is that of others, too.
        bool begins_anew = false;  ///< When that has ended: another page was refused, and this one was not begun.
        std::unique_ptr<device::StagedSource> source;
        std::unique_ptr<device::StagedSink> sink;
        std::uint64_t moved = 0;

        ByteRange there() const { return {remote, request.length}; }
    };
    enum class Begun { Yes, Later, Failed };

    Begun begin(Job& job, Status& why);
    std::size_t beginPacked(std::vector<Ended>& ended);
    /// Moves bytes of a job; true when it is over, with `outcome`.
    bool advance(Job& job, std::uint64_t& budget, bool& moved, Status& outcome);
    template <class Which>
    void dropWhere(Which&& which, const Status& cause, std::vector<Ended>& ended);

    device::StagingUser user_;
    std::deque<Job> queue_;
    std::deque<Job> running_;
    std::vector<device::PageMove> pages_;  ///< Reused: that are begun together.
    bool wants_cpu_ = false;               ///< The budget ended before the work did.
};

}  // namespace troupe::host
