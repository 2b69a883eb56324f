#include "transports/page_packing.h"

#include <utility>

namespace troupe::device {

void PagePacking::use(std::shared_ptr<const PageMover> mover, PackBorders borders) {
    mover_ = std::move(mover);
    borders_ = std::move(borders);
    usable_.store(true, std::memory_order_release);
}

bool PagePacking::takes(PageWay way, std::size_t pages, std::uint64_t bytes) const {
    return usable_.load(std::memory_order_acquire) && borders_[static_cast<std::size_t>(way)].takes(pages, bytes);
}

Status PagePacking::begin(Device& device, StreamRef stream, PageWay way, std::span<const PageMove> moves,
                          MovesBegun& begun) {
    begun = {};
    std::uint64_t bytes = 0;
    for (const PageMove& move : moves) bytes += move.bytes;
    const bool packs = takes(way, moves.size(), bytes);
    if (packs) {
        const Status launched = mover_->move(stream, moves);
        if (launched || launched.code() == Code::DeviceLost) {
            if (launched) begun = {moves.size(), moves.size()};
            return launched;
        }
        if (usable_.exchange(false) && log_)
            log_->warn("{}: pages are moved by a copy each from now on: {}", where_, launched.toString());
        // What the kernel may have begun of them the copies come after, with the same bytes.
    }
    for (const PageMove& move : moves) {
        if (const Status copied = device.copy(stream, move.to, move.from, move.bytes); !copied) {
            // The first of several launches may have been taken.
            if (packs) begun.touched = moves.size();
            return copied;
        }
        begun = {begun.whole + 1, begun.whole + 1};
    }
    return {};
}

}  // namespace troupe::device
