#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/byte_range.h"
#include "base/status.h"
#include "transports/device.h"
#include "transports/device_bell.h"
#include "transports/memory_file.h"
#include "transports/page_packing.h"

namespace troupe::device {

struct StagingOptions {
    std::uint64_t chunk_bytes = 1u << 20;  ///< Of each chunk; rounded up to pages.
    unsigned chunks = 8;                   ///< At least 2, so that one is copied while another is on the wire.
    int numa_node = -1;                    ///< Where the memory is to be; -1: anywhere.
};

/// A piece of a GPU's memory, and where in a chunk its bytes are.
struct StagedPiece {
    ByteRange memory;
    std::uint64_t at = 0;
};

/// Where the next piece goes that begins at `addr`, when a chunk is used up to `used`: alike modulo 16, so that a
/// kernel moves all of it but its ends by its widest words. At most 15 bytes are left out.
constexpr std::uint64_t pieceAt(std::uint64_t used, std::uint64_t addr) { return used + ((addr - used) & 15); }

/// Who has chunks of a ring and can do without them for a while.
class ChunkHolder {
  public:
    /// Lets go of chunks that wait for a wire. False: it has none of these.
    virtual bool yieldChunks() = 0;

  protected:
    ~ChunkHolder() = default;
};

/// A bounded number of pinned chunks of host memory, through which bytes go between one GPU and a wire that cannot
/// reach its memory. Copies alternate between two streams, so that the next one is set up while one runs.
///
/// One for each direction: a chunk on its way *to* the GPU is free again whatever anybody else does, while one that
/// came *from* it waits for the wire, and so for the other end's chunks. Were they of one pool, two ends that send to
/// each other could each hold all chunks that the other's bytes need.
///
/// Owned by one loop; no call waits for the GPU, but for the end. After a loss of the device no copy runs any more, and
/// every chunk is free.
class StagingRing {
  public:
    enum class Way : std::uint8_t { FromDevice, ToDevice };

    /// ResourceExhausted: no memory, or it cannot be pinned (the message names the limit). Takes milliseconds.
    /// `packing`: how pieces that share a chunk are moved; null: by a copy each.
    static Result<std::unique_ptr<StagingRing>> create(std::shared_ptr<Device> device, const StagingOptions& options,
                                                       std::shared_ptr<PagePacking> packing = nullptr);
    /// Waits until the copies that are under way have ended.
    ~StagingRing();
    StagingRing(const StagingRing&) = delete;
    StagingRing& operator=(const StagingRing&) = delete;

    std::uint64_t chunkBytes() const { return chunk_bytes_; }
    unsigned chunks() const { return static_cast<unsigned>(chunks_.size()); }
    unsigned freeChunks() const { return static_cast<unsigned>(free_.size()); }
    /// Whether kernels of the device reach the chunks by the host's addresses.
    Status isForKernels() const { return device_->reachesPinned(pinnedRange()); }
    /// The device's.
    Status state() const { return device_->state(); }

    /// A chunk for the caller, or none while all are taken; then `isStarved` until the next poll but one: another Nic
    /// of the loop may poll before the caller does.
    std::optional<unsigned> take();
    bool isStarved() const { return starved_ || was_starved_; }
    /// Who has chunks says so, and each time that bytes of it move, so that `poll` can take them from who moves none
    /// while others starve.
    void join(ChunkHolder& holder) { holders_.push_back({&holder, polls_}); }
    void leave(ChunkHolder& holder);
    void moved(ChunkHolder& holder);
    /// Who has no chunk of its own, and looks at copies of others until it leaves.
    void watch() { ++watchers_; }
    void unwatch() { --watchers_; }
    bool hasHolders() const { return !holders_.empty() || watchers_ != 0; }
    std::byte* data(unsigned chunk) const { return memory_->data() + chunk * chunk_bytes_; }
    /// Begins to copy between `memory` of the GPU and the beginning of a chunk that was taken and has no copy under
    /// way. Returns the copy's number, unique in the ring's life. After an error it may be under way all the same.
    Result<std::uint64_t> begin(unsigned chunk, Way way, const ByteRange& memory) {
        const StagedPiece piece{memory, 0};
        return begin(chunk, way, std::span(&piece, 1));
    }
    /// The same with pieces of the chunk that do not overlap: one copy, that ends when all of them have.
    Result<std::uint64_t> begin(unsigned chunk, Way way, std::span<const StagedPiece> pieces) {
        Begun begun;
        if (Status status = begin(chunk, way, pieces, begun); !status) return status;
        return begun.copy;
    }
    /// What came of it, after an error, too.
    struct Begun {
        std::uint64_t copy = 0;
        std::size_t pieces = 0;  ///< So many, from the first on, get there with `copy`; the others do not.
    };
    Status begin(unsigned chunk, Way way, std::span<const StagedPiece> pieces, Begun& begun);
    /// Its copy, if it has one, is done. Known by the last poll.
    bool isIdle(unsigned chunk) const { return chunks_[chunk].copying.empty(); }
    bool isUnderWay(std::uint64_t copy) const;
    /// The caller has no use for it any more; it is free when its copy has ended.
    void give(unsigned chunk);

    /// Looks which copies have ended. True when any has.
    bool poll();
    bool hasWork() const { return !busy_.empty(); }
    /// A copy to or from that memory of the GPU is under way.
    bool touches(const ByteRange& memory) const { return touched(memory).has_value(); }
    /// What of the GPU's it is then: an end of one such copy.
    std::optional<ByteRange> touched(const ByteRange& memory) const;

    /// The event is done as soon as every copy begun until now is. It is of the application, on this device.
    Status signal(EventRef event);

    /// Before sleep: waitFd becomes readable when the copy has ended that began first of those under way. False: that
    /// cannot be had, so poll again after a while. Of a device that is lost meanwhile nothing is heard: look at it from
    /// time to time.
    bool arm();
    int waitFd() const { return bell_.fd(); }

  private:
    struct Held {
        ChunkHolder* holder;
        std::uint64_t moved_at;  ///< As polls_ stood.
    };
    void reclaim();
    ByteRange pinnedRange() const { return {reinterpret_cast<std::uint64_t>(memory_->data()), memory_->size()}; }

    struct Chunk {
        DeviceEvent ended;
        std::vector<ByteRange> copying;  ///< Memory of the GPU; empty: none.
        std::uint64_t copy = 0;          ///< Its number.
        bool given = true;               ///< Nobody has it.
        bool unseen = false;             ///< Its end cannot be seen, as no event was recorded behind it yet.
    };

    StagingRing() = default;
    Status make(std::shared_ptr<Device> device, const StagingOptions& options);
    Status makeStreams();
    void retire(unsigned chunk);
    bool hasEnded(Chunk& chunk);

    std::shared_ptr<Device> device_;
    std::shared_ptr<PagePacking> packing_;
    std::vector<PageMove> moves_;  ///< Reused.
    std::unique_ptr<MemoryFile> memory_;
    Pinning pinning_;
    std::uint64_t chunk_bytes_ = 0;
    std::vector<DeviceStream> streams_;
    DeviceEvent joined_;  ///< For signal.
    std::vector<Chunk> chunks_;
    std::vector<unsigned> free_;
    std::vector<unsigned> busy_;  ///< With a copy under way, in the order in which they began.
    std::uint64_t copies_ = 0;    ///< Begun so far.
    std::vector<Held> holders_;
    std::size_t watchers_ = 0;
    std::uint64_t polls_ = 0;
    bool starved_ = false;      ///< There was no chunk for somebody since the last poll,
    bool was_starved_ = false;  ///< or between that and the one before.
    DeviceBell bell_;           ///< The last, so that it ends first.
};

}  // namespace troupe::device
