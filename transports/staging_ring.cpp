#include "transports/staging_ring.h"

#include <algorithm>
#include <utility>

namespace troupe::device {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr unsigned kStreams = 2;
/// More than any ring needs: of the default size 1 GiB.
constexpr unsigned kMostChunks = 1024;
constexpr std::uint64_t kMostChunkBytes = 64u << 20;
/// Polls in which nothing of it moved after which a holder may lose its chunks to others.
constexpr std::uint64_t kPollsToKeep = 4;

}  // namespace

Result<std::unique_ptr<StagingRing>> StagingRing::create(std::shared_ptr<Device> device, const StagingOptions& options,
                                                         std::shared_ptr<PagePacking> packing) {
    if (options.chunks < 2 || options.chunks > kMostChunks || options.chunk_bytes == 0 ||
        options.chunk_bytes > kMostChunkBytes)
        return Status(Code::InvalidArgument, "a staging ring of " + std::to_string(options.chunks) + " chunks of " +
                                                 std::to_string(options.chunk_bytes) +
                                                 " bytes: 2 to 1024 of up to 64 MiB");
    std::unique_ptr<StagingRing> ring(new StagingRing);
    const std::string where = device->info().location;
    ring->packing_ = packing ? std::move(packing) : std::make_shared<PagePacking>(where, nullptr);
    if (Status status = ring->make(std::move(device), options); !status)
        return status.withContext("staging ring of " + where);
    return ring;
}

Status StagingRing::make(std::shared_ptr<Device> device, const StagingOptions& options) {
    device_ = std::move(device);
    chunk_bytes_ = (options.chunk_bytes + kPage - 1) / kPage * kPage;
    auto memory = MemoryFile::create(chunk_bytes_ * options.chunks, false, Location::onNode(options.numa_node));
    if (!memory) return memory.status();
    memory_ = std::move(*memory);
    auto pinning = device_->pin(pinnedRange());
    if (!pinning) return pinning.status();
    pinning_ = std::move(*pinning);
    if (Status status = makeStreams(); !status) return status;
    for (unsigned index = 0; index < options.chunks; ++index) {
        auto event = device_->makeEvent();
        if (!event) return event.status();
        chunks_.push_back({std::move(*event), {}, 0, true, false});
        free_.push_back(options.chunks - 1 - index);
    }
    return {};
}

Status StagingRing::makeStreams() {
    for (unsigned index = 0; index < kStreams; ++index) {
        auto stream = device_->makeStream();
        if (!stream) return stream.status();
        streams_.push_back(std::move(*stream));
    }
    auto joined = device_->makeEvent();
    if (!joined) return joined.status();
    joined_ = std::move(*joined);
    return bell_.make(*device_);
}

StagingRing::~StagingRing() {
    // Of a device that is lost nothing runs any more.
    for (const DeviceStream& stream : streams_) device_->synchronize(stream).isOk();
}

std::optional<unsigned> StagingRing::take() {
    if (free_.empty()) {
        starved_ = true;
        return {};
    }
    const unsigned chunk = free_.back();
    free_.pop_back();
    chunks_[chunk].given = false;
    return chunk;
}

Status StagingRing::begin(unsigned chunk, Way way, std::span<const StagedPiece> pieces, Begun& begun) {
    begun = {};
    Chunk& taken = chunks_[chunk];
    const auto host = reinterpret_cast<std::uint64_t>(data(chunk));
    const bool out = way == Way::FromDevice;
    bool fits = !pieces.empty();
    moves_.clear();
    for (const StagedPiece& piece : pieces) {
        const ByteRange& memory = piece.memory;
        fits = fits && memory.length != 0 && piece.at <= chunk_bytes_ && memory.length <= chunk_bytes_ - piece.at;
        moves_.push_back(out ? PageMove{host + piece.at, memory.addr, memory.length}
                             : PageMove{memory.addr, host + piece.at, memory.length});
    }
    if (taken.given || !taken.copying.empty() || !fits)
        return Status(Code::Internal, "a chunk of a staging ring was used out of turn");
    const DeviceStream& stream = streams_[++copies_ % kStreams];
    MovesBegun moves;
    const Status status =
        packing_->begin(*device_, stream, out ? PageWay::FromDevice : PageWay::ToDevice, moves_, moves);
    if (moves.touched == 0) return status;
    // From here on it is under way, whether its end can be seen or not.
    for (const StagedPiece& piece : pieces.first(moves.touched)) taken.copying.push_back(piece.memory);
    taken.copy = copies_;
    busy_.push_back(chunk);
    const Status recorded = device_->record(taken.ended, stream);
    taken.unseen = !recorded;
    if (recorded) begun = {taken.copy, moves.whole};
    return status ? recorded : status;
}

bool StagingRing::isUnderWay(std::uint64_t copy) const {
    return std::any_of(busy_.begin(), busy_.end(), [&](unsigned chunk) { return chunks_[chunk].copy == copy; });
}

void StagingRing::give(unsigned chunk) {
    chunks_[chunk].given = true;
    if (isIdle(chunk)) free_.push_back(chunk);
}

void StagingRing::leave(ChunkHolder& holder) {
    std::erase_if(holders_, [&](const Held& held) { return held.holder == &holder; });
}

void StagingRing::moved(ChunkHolder& holder) {
    for (Held& held : holders_)
        if (held.holder == &holder) held.moved_at = polls_;
}

/// Of one holder, the one that has not moved for longest. What it lets go of may be copied yet.
void StagingRing::reclaim() {
    std::sort(holders_.begin(), holders_.end(), [](const Held& a, const Held& b) { return a.moved_at < b.moved_at; });
    for (Held& held : holders_) {
        if (polls_ - held.moved_at < kPollsToKeep) return;
        if (!held.holder->yieldChunks()) continue;
        held.moved_at = polls_;
        return;
    }
}

bool StagingRing::hasEnded(Chunk& chunk) {
    // What is recorded now comes after it on its stream.
    if (chunk.unseen) chunk.unseen = !device_->record(chunk.ended, streams_[chunk.copy % kStreams]);
    if (chunk.unseen) return device_->state().code() == Code::DeviceLost;
    const auto ended = device_->isDone(chunk.ended);
    // Another error leaves it under way: nobody knows that it is not.
    return ended ? *ended : ended.status().code() == Code::DeviceLost;
}

void StagingRing::retire(unsigned chunk) {
    chunks_[chunk].copying.clear();
    chunks_[chunk].unseen = false;
    if (chunks_[chunk].given) free_.push_back(chunk);
}

bool StagingRing::poll() {
    bell_.hear();
    ++polls_;
    const std::size_t before = busy_.size();
    std::erase_if(busy_, [this](unsigned chunk) {
        if (!hasEnded(chunks_[chunk])) return false;
        retire(chunk);
        return true;
    });
    was_starved_ = std::exchange(starved_, false);
    if (was_starved_ && free_.empty()) reclaim();
    return busy_.size() != before;
}

std::optional<ByteRange> StagingRing::touched(const ByteRange& memory) const {
    for (const unsigned chunk : busy_)
        for (const ByteRange& piece : chunks_[chunk].copying)
            if (piece.overlaps(memory)) return piece;
    return std::nullopt;
}

Status StagingRing::signal(EventRef event) {
    if (Status status = device_->record(joined_, streams_[1]); !status) return status;
    if (Status status = device_->wait(streams_[0], joined_); !status) return status;
    return device_->record(event, streams_[0]);
}

bool StagingRing::arm() {
    if (busy_.empty() || bell_.isArmed()) return true;
    const Chunk& first = chunks_[busy_.front()];
    return !first.unseen && bell_.arm(first.ended);
}

}  // namespace troupe::device
