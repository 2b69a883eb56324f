#include "actors/segment_board.h"

#include <utility>

namespace troupe {

SegmentBoard::SegmentBoard() : chunks_(std::make_unique<std::atomic<Slot*>[]>(kMaxSegments / kChunk)) {}

SegmentBoard::~SegmentBoard() {
    for (std::uint32_t i = 0; i < kMaxSegments / kChunk; ++i) delete[] chunks_[i].load(std::memory_order_relaxed);
}

SegmentBoard::Slot* SegmentBoard::slot(SegmentID segment) const {
    const auto index = static_cast<std::uint32_t>(segment);
    if (index >= kMaxSegments) return nullptr;
    Slot* chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk[index % kChunk];
}

SegmentBoard::Reach SegmentBoard::reach(SegmentID segment) const {
    const Slot* entry = slot(segment);
    if (entry == nullptr || segment == kInvalidSegmentID || entry->id.load(std::memory_order_acquire) != segment)
        return Reach::Closed;
    return static_cast<Reach>(entry->reach.load(std::memory_order_relaxed));
}

std::shared_ptr<const Peer> SegmentBoard::peer(SegmentID segment) const {
    const Slot* entry = slot(segment);
    if (entry == nullptr || segment == kInvalidSegmentID) return nullptr;
    const std::lock_guard lock(peers_mutex_);
    return entry->id.load(std::memory_order_relaxed) == segment ? entry->peer : nullptr;
}

Status SegmentBoard::check(SegmentID segment) const {
    if (reach(segment) == Reach::Open) return Status::ok();
    const Slot* entry = slot(segment);
    if (entry == nullptr || segment == kInvalidSegmentID) return closed(segment);
    // Looked at again where the reason cannot change beside it.
    const std::lock_guard lock(peers_mutex_);
    if (entry->id.load(std::memory_order_relaxed) != segment) return closed(segment);
    if (static_cast<Reach>(entry->reach.load(std::memory_order_relaxed)) == Reach::Open) return Status::ok();
    return {Code::TransportMissing, entry->why};
}

Status SegmentBoard::closed(SegmentID segment) {
    return {Code::StaleHandle, "segment " + std::to_string(segment) + " was closed or never opened"};
}

bool SegmentBoard::set(SegmentID segment, Reach reach, std::shared_ptr<const Peer> peer, std::string why) {
    const auto index = static_cast<std::uint32_t>(segment);
    if (index >= kMaxSegments) return false;
    auto& chunk = chunks_[index / kChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Slot[kChunk], std::memory_order_release);
    Slot& entry = *slot(segment);
    const std::lock_guard lock(peers_mutex_);
    std::swap(entry.peer, peer);
    entry.why = std::move(why);
    entry.reach.store(static_cast<std::uint8_t>(reach), std::memory_order_relaxed);
    entry.id.store(reach == Reach::Closed ? kInvalidSegmentID : segment, std::memory_order_release);
    return true;
}

}  // namespace troupe
