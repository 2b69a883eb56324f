#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "transports/staging_ring.h"

namespace troupe::device {

/// Memory of a GPU as bytes that come in order: what is to be sent. It has up to `depth` chunks of its ring, so that
/// one is on the wire while the next is copied; the less the ring has, the fewer.
///
/// Owned by the ring's loop, and gone before the ring is. When it ends early, its chunks go back as soon as the copies
/// into them have ended: until then StagingRing::touches says that the GPU reads the source.
class StagedSource final : public ChunkHolder {
  public:
    StagedSource(StagingRing& ring, const ByteRange& source, unsigned depth = 4)
        : ring_(&ring), rest_(source), depth_(depth) {
        ring_->join(*this);
    }
    ~StagedSource();
    StagedSource(const StagedSource&) = delete;
    StagedSource& operator=(const StagedSource&) = delete;

    /// Begins copies as there are chunks. After each poll of the ring, and after each consume. The error is final.
    Status advance();
    /// The next bytes, empty while none are there. They stay until consume.
    std::span<const std::byte> ready() const;
    /// The first `bytes` of ready() are not needed any more.
    void consume(std::uint64_t bytes);
    bool isDone() const { return rest_.length == 0 && parts_.empty(); }
    /// It has no chunk and could use one: whoever gives one back lets it advance.
    bool isStarved() const { return parts_.empty() && rest_.length != 0; }
    /// What is ready and not consumed is copied again later: others need the chunks, and the wire is slow. Copies that
    /// are under way stay.
    bool yieldChunks() override;

  private:
    struct Part {
        unsigned chunk;
        std::uint64_t bytes;
        std::uint64_t consumed;
    };

    StagingRing* ring_;
    ByteRange rest_;  ///< Not begun yet.
    unsigned depth_;
    std::deque<Part> parts_;
    Status error_;
};

/// Small pieces of a GPU's memory, each to be sent by itself and in order: all in one chunk, copied together. Otherwise
/// as StagedSource.
class StagedPages final : public ChunkHolder {
  public:
    /// Together no longer than a chunk.
    StagedPages(StagingRing& ring, std::vector<ByteRange> pages);
    ~StagedPages();
    StagedPages(const StagedPages&) = delete;
    StagedPages& operator=(const StagedPages&) = delete;

    /// Begins to copy when there is a chunk. The error is final.
    Status advance();
    /// What of a page is not consumed, empty while it is not there. It stays until consume.
    std::span<const std::byte> ready(std::size_t page) const;
    void consume(std::size_t page, std::uint64_t bytes);
    bool isStarved() const { return !chunk_ && !rest_.empty(); }
    bool yieldChunks() override;

  private:
    /// What of a page is still to be sent, and where in the chunk it lies.
    struct Page {
        ByteRange left;
        std::uint64_t at = 0;
    };
    StagingRing* ring_;
    std::vector<Page> pages_;
    std::vector<ByteRange> rest_;  ///< Reused: what is to be copied, until a copy of it has begun.
    std::optional<unsigned> chunk_;
    std::uint64_t missing_ = 0;  ///< Bytes not consumed.
    Status error_;
};

/// Memory of a GPU that bytes are received into, in order. A chunk goes on its way when it is full or the last.
///
/// Owned by the ring's loop, and gone before the ring is. When it ends early, what was committed of the last chunk is
/// dropped, and copies that are under way run on: until they have ended StagingRing::touches says so.
class StagedSink final : public ChunkHolder {
  public:
    StagedSink(StagingRing& ring, const ByteRange& target) : ring_(&ring), target_(target) { ring_->join(*this); }
    ~StagedSink();
    StagedSink(const StagedSink&) = delete;
    StagedSink& operator=(const StagedSink&) = delete;

    /// Room for the next bytes; empty when all were received, or while the ring has no chunk.
    std::span<std::byte> room();
    /// The first `bytes` of room() were received. An error is final.
    Status commit(std::uint64_t bytes);
    /// Sends what there is on its way and lets go of the chunk: others need it, and the sender is slow.
    Status yield();
    bool yieldChunks() override {
        const bool has = chunk_.has_value();
        static_cast<void>(yield());
        return has;
    }
    /// Lets go of a chunk that nothing was received into yet.
    void giveUnused();
    /// Ok, or why not all of it will get there: final.
    Status state() const { return error_ ? ring_->state() : error_; }
    /// All bytes are in the GPU's memory, where kernels that begin from now on see them. Known by the last poll of the
    /// ring.
    bool isDone();
    /// No copy that it began is under way, whatever became of the rest; as known by the last poll. After an error of
    /// `commit` only StagingRing::touches tells.
    bool isSettled();

  private:
    Status send();

    StagingRing* ring_;
    ByteRange target_;                   ///< What follows the current chunk's beginning.
    std::optional<unsigned> chunk_;      ///< That is being filled,
    std::uint64_t filled_ = 0;           ///< up to here.
    std::vector<std::uint64_t> copies_;  ///< That may be under way.
    Status error_;
};

}  // namespace troupe::device
