#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
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

/// Small pieces of a GPU's memory, each to be sent by itself and in order: all in one chunk, copied together, by the
/// GPU's kernel where that is faster. Otherwise as StagedSource.
class StagedPages final : public ChunkHolder {
  public:
    /// As pieceAt puts them one behind the other no longer than a chunk.
    StagedPages(StagingRing& ring, const std::vector<ByteRange>& pages);
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
    void layOut();

    StagingRing* ring_;
    std::vector<StagedPiece> pages_;  ///< What of each is still to be sent, and where in the chunk it lies.
    std::vector<StagedPiece> rest_;   ///< Reused: what is to be copied, until a copy of it has begun.
    std::optional<unsigned> chunk_;
    std::uint64_t missing_ = 0;  ///< Bytes not consumed.
    Status error_;
};

/// What became of a chunk that was received for a GPU.
struct Shipment {
    std::uint64_t copy = 0;  ///< Of the ring; 0: it has not begun.
    Status error;            ///< Why not all of it will get there: final.
    std::size_t whole = 0;   ///< With an error: so many of its pieces, from the first on, get there all the same.
};

/// The bytes of one sink in a shipment.
struct ShipmentPart {
    std::shared_ptr<const Shipment> shipment;
    std::size_t last = 0;  ///< The last piece with any of them.

    Status error() const { return last < shipment->whole ? Status() : shipment->error; }
};

/// A chunk that is filled with what is received for a GPU, and goes on its way as one copy: with one large piece of
/// memory, or with many small pages, which the GPU's kernel then puts in their places where that is faster than a copy
/// each.
///
/// Owned by the ring's loop, and gone before the ring is. When it ends early, what was not shipped is dropped: whoever
/// waits for it is told.
class StagedInbox final : public ChunkHolder {
  public:
    /// `shared`: for pages of many sinks.
    StagedInbox(StagingRing& ring, bool shared) : ring_(&ring), shared_(shared) { ring_->join(*this); }
    ~StagedInbox();
    StagedInbox(const StagedInbox&) = delete;
    StagedInbox& operator=(const StagedInbox&) = delete;

    StagingRing& ring() const { return *ring_; }
    /// Room for the first bytes of `target`: for all of them if it is shared and they fit into a chunk. Ships what
    /// there is no room beside. Empty while the ring has no chunk. Valid until the next call.
    std::span<std::byte> room(const ByteRange& target);
    /// The beginning of the room was filled, with the bytes of `piece`. `last`: all of its page have come now. Returns
    /// what they go with.
    ShipmentPart commit(const ByteRange& piece, bool last);
    /// Sends what there is on its way.
    void ship();
    /// At the end of every pass of a loop: the wire had no more for now, so what is whole goes, and takes along what is
    /// not. Others wait for the chunk, or for the bytes.
    void pause();
    /// Lets go of a chunk that nothing was received into yet.
    void giveUnused();
    bool isEmpty() const { return !chunk_; }
    bool yieldChunks() override;

  private:
    StagingRing* ring_;
    bool shared_;
    std::optional<unsigned> chunk_;    ///< That is being filled,
    std::uint64_t used_ = 0;           ///< up to here.
    bool has_whole_ = false;           ///< All of some page is in it.
    std::vector<StagedPiece> pieces_;  ///< Of it.
    std::shared_ptr<Shipment> shipment_;
};

/// Memory of a GPU that bytes are received into, in order, through chunks of its own or those of an inbox that it
/// shares with others.
///
/// Owned by the ring's loop, and gone before the ring is. When it ends early, what was not shipped of it is dropped if
/// the inbox is its own, and copies that are under way run on: until they have ended StagingRing::touches says so.
class StagedSink final {
  public:
    /// A chunk of it goes on its way when it is full or the last.
    StagedSink(StagingRing& ring, const ByteRange& target);
    /// Its bytes go when the inbox is shipped. That outlives the receiving of the last.
    StagedSink(StagedInbox& inbox, const ByteRange& target);
    ~StagedSink() { ring_->unwatch(); }
    StagedSink(const StagedSink&) = delete;
    StagedSink& operator=(const StagedSink&) = delete;

    /// Room for the next bytes; empty when all were received, or while the ring has no chunk.
    std::span<std::byte> room();
    /// The first `bytes` of room() were received. An error is final.
    Status commit(std::uint64_t bytes);
    /// Sends what there is on its way and lets go of the chunk: others need it, and the sender is slow.
    Status yield();
    /// Lets go of a chunk that nothing was received into yet.
    void giveUnused() { inbox_->giveUnused(); }
    /// Ok, or why not all of it will get there: final.
    Status state() const;
    /// All bytes are in the GPU's memory, where kernels that begin from now on see them. Known by the last poll of the
    /// ring.
    bool isDone();
    /// Nothing of what it received is under way or still to be, whatever became of the rest; as known by the last poll.
    /// After an error of `state` only StagingRing::touches tells.
    bool isSettled();

  private:
    void forgetSettled();

    StagingRing* ring_;
    std::unique_ptr<StagedInbox> own_;  ///< Null: it is somebody's.
    StagedInbox* inbox_;                ///< Until the last byte.
    ByteRange target_;                  ///< What has not come yet.
    std::vector<ShipmentPart> parts_;   ///< That may be under way, or have failed: no more than a ring has chunks.
};

}  // namespace troupe::device
