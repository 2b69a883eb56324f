#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/incarnation.h"
#include "tcp_backend/events.h"
#include "transports/nic.h"
#include "transports/registration_table.h"
#include "transports/staged_copy.h"
#include "transports/staging_user.h"

namespace troupe::tcp {

/// Whether so many bytes are few enough to share a chunk with others.
bool mayShare(const device::StagingRing& ring, std::uint64_t bytes);

/// Memory of GPUs on one Nic: the rings that its connections use, and what has to wait for their copies. While no
/// region is of a GPU nothing here is done, but for one look at a number for each post and each pass. On the Nic's
/// turn.
class Gpu {
  public:
    static constexpr int kNone = -1;

    /// `pool` may be null, then there is no memory of GPUs. All references outlive it.
    Gpu(EventSet& events, const RegistrationTable& regions, std::shared_ptr<device::StagingPool> pool, unsigned loop);

    /// Whether registered memory may be of a GPU: then `deviceOf` has to be asked of each range.
    bool mayBe() { return regions_.get().devices() != 0; }
    /// The GPU of a local range that was registered when its request was taken; kNone: a CPU may touch it.
    /// InvalidArgument: it is of several allocations.
    Result<int> deviceOf(const ByteRange& range) { return ordinalOf(regions_.get().deviceOf(range)); }
    /// The GPU that a region is on, as RegionMap::deviceOf has it.
    static Result<int> ordinalOf(const Result<const Region*>& region);
    /// The rings of a GPU that registered memory is on, as StagingUser::at.
    Result<device::Staging*> at(int device) { return user_.at(device); }

    /// A READ of a path whose bytes have all been received: it is told when they are in the GPU's memory.
    void land(PathId path, const WorkRequest& request, std::unique_ptr<device::StagedSink> sink);
    /// The path ends or begins anew: what has not landed has failed.
    void drop(PathId path, const Status& cause, bool retryable, std::vector<Failure>& failed);
    /// A write of a peer whose connection ends, while copies of it may be under way.
    void leaveBehind(const Incarnation& initiator, const ByteRange& range);
    /// Whether any is left of it: it must not be applied after anything that the initiator sends from now on.
    bool isLeftBehind(const Incarnation& initiator) const;

    /// Some rings are in use: the following have something to do.
    bool isActive() const { return user_.isActive(); }
    /// First of all in a pass: looks what has ended. True when anything has.
    bool poll(TimePoint now, Sweep& sweep);
    /// As those of StagingUser.
    void sift(TimePoint now, Sweep& sweep) { user_.sift(now, sweep); }
    bool arm() const { return user_.arm(); }
    Status shut() const { return user_.shut(); }
    TimePoint nextDeadline() const { return user_.nextDeadline(); }
    bool touches(const ByteRange& range) const { return user_.touches(range); }
    Status heldIn(const ByteRange& range) const { return user_.heldIn(range); }

  private:
    struct Landing {
        PathId path;
        WorkRequest request;
        std::unique_ptr<device::StagedSink> sink;
    };
    struct Left {
        Incarnation initiator;
        ByteRange range;
    };

    SnapshotReader<RegionMap> regions_;
    device::StagingUser user_;
    std::vector<Landing> landings_;
    std::vector<Left> left_;
};

/// The frames of one connection whose payloads come from GPUs, in order: numbers say which is which. The first is being
/// sent, those behind it are copied ahead; small ones share a chunk.
class StagedSends {
  public:
    /// Begins to copy frames from `number` up to `end`, as far as there is room for it. `rangeOf(number, range)` says
    /// what of the GPU's memory a frame has, or leaves the range empty; false: from there on it is of another GPU.
    template <class RangeOf>
    void goAhead(std::uint64_t number, std::uint64_t end, device::Staging& staging, RangeOf&& rangeOf) {
        number = std::max(number, begun_);
        while (number != end && mayGoAhead(staging)) {
            group_.clear();
            for (; number != end; ++number) {
                ByteRange range;
                if (!rangeOf(number, range)) {
                    end = number;
                    break;
                }
                if (range.length != 0 && !addToGroup(number, range, staging)) break;
            }
            begun_ = number;
            if (!group_.empty()) beginGroup(staging);
        }
    }
    /// The next bytes to send of frame `number`, whose payload is `range` from its byte `done` on; empty while none are
    /// there. `writable`: the wire would take some, so it is worth chunks that others might need.
    std::span<const std::byte> ready(std::uint64_t number, device::Staging& staging, const ByteRange& range,
                                     std::uint64_t done, bool writable);
    /// The CRC32C of a whole payload, which goes through the ring once for that alone unless all of it is in one chunk
    /// with others; none while it is not known.
    std::optional<std::uint32_t> checksum(std::uint64_t number, device::Staging& staging, const ByteRange& range);
    /// Of frame `number` so many bytes were sent.
    void consume(std::uint64_t number, std::uint64_t bytes);
    /// All of it was.
    void finish(std::uint64_t number);
    /// It will not be. Others that shared its chunk begin anew.
    void fail(std::uint64_t number);
    /// Ok, or why frame `number` can never be sent.
    Status state(std::uint64_t number);
    void clear();

  private:
    /// Has one of the two.
    struct Frame {
        std::uint64_t number;
        std::unique_ptr<device::StagedSource> source;
        std::shared_ptr<device::StagedPages> pages = nullptr;
        std::size_t page = 0;  ///< Which of them.
        std::uint32_t crc = 0;
        Status error = {};
    };
    struct Next {
        std::uint64_t number = 0;
        ByteRange range;
    };
    Frame& frameOf(std::uint64_t number, device::Staging& staging, const ByteRange& range);
    std::deque<Frame>::iterator search(std::uint64_t number);
    Frame* find(std::uint64_t number);
    bool isForGroup(std::uint64_t number, const device::Staging& staging, const ByteRange& range);
    bool mayGoAhead(const device::Staging& staging) const;
    bool addToGroup(std::uint64_t number, const ByteRange& range, const device::Staging& staging);
    void beginGroup(device::Staging& staging);

    std::deque<Frame> frames_;       ///< By number.
    std::size_t copies_ = 0;         ///< Sources, and chunks that frames share.
    std::uint64_t begun_ = 0;        ///< What comes before this number was begun, if it is of a GPU.
    std::vector<Next> group_;        ///< Reused: frames that are to share a chunk.
    std::uint64_t group_bytes_ = 0;  ///< Of a chunk.
};

/// Whether the socket takes bytes now.
bool isWritable(int socket);

}  // namespace troupe::tcp
