#include "tcp_backend/staged_receives.h"

#include "tcp_backend/gpu.h"

namespace troupe::tcp {

void StagedReceives::begin(device::Staging& staging, const ByteRange& range) {
    device::StagingRing& ring = staging.in();
    if (!mayShare(ring, range.length)) {
        sink_ = std::make_unique<device::StagedSink>(ring, range);
        return;
    }
    if (inbox_ && &inbox_->ring() != &ring) {
        inbox_->ship();
        inbox_.reset();
    }
    if (!inbox_) inbox_ = std::make_unique<device::StagedInbox>(ring, true);
    sink_ = std::make_unique<device::StagedSink>(*inbox_, range);
}

Room StagedReceives::roomFor(std::span<std::byte>& here) {
    if (!sink_) return Room::Drop;
    here = sink_->room();
    if (!here.empty()) return Room::Here;
    return sink_->state() ? Room::Later : Room::Drop;
}

void StagedReceives::pause() {
    if (!inbox_) return;
    // Nobody goes on with what is in it: of one that ended early not all has come, and never will.
    if (!sink_) inbox_->ship();
    inbox_->pause();
    // Who has one keeps the ring of its GPU in use.
    if (!sink_ && inbox_->isEmpty()) inbox_.reset();
}

void StagedReceives::clear() {
    sink_.reset();
    inbox_.reset();
}

}  // namespace troupe::tcp
