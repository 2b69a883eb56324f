#include "tcp_backend/gpu.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "tcp_backend/crc32c.h"

namespace troupe::tcp {

namespace {

/// Chunks that one frame has at most, and the copies of one connection that are begun: of large frames one each.
constexpr unsigned kDepth = 4;
constexpr std::size_t kAhead = 8;
/// Frames share a chunk when at least and at most so many fit into it. The most is what one pass sends of pages of 4
/// KiB.
constexpr std::uint64_t kLeastShares = 4;
constexpr std::size_t kMostShares = 64;

}  // namespace

bool mayShare(const device::StagingRing& ring, std::uint64_t bytes) {
    return bytes <= ring.chunkBytes() / kLeastShares;
}

Gpu::Gpu(EventSet& events, const RegistrationTable& regions, std::shared_ptr<device::StagingPool> pool, unsigned loop)
    : regions_(regions.regions()),
      user_(std::move(pool), loop,
            {[&events](int bell) { return events.watch(bell); }, [&events](int bell) { events.unwatch(bell); }}) {}

Result<int> Gpu::ordinalOf(const Result<const Region*>& region) {
    if (!region) return region.status();
    return *region == nullptr ? kNone : (*region)->place->memory.device;
}

void Gpu::land(PathId path, const WorkRequest& request, std::unique_ptr<device::StagedSink> sink) {
    landings_.push_back({path, request, std::move(sink)});
}

void Gpu::drop(PathId path, const Status& cause, bool retryable, std::vector<Failure>& failed) {
    std::erase_if(landings_, [&](const Landing& landing) {
        if (landing.path != path) return false;
        failed.push_back({landing.request, cause, retryable, true, true});
        return true;
    });
}

void Gpu::leaveBehind(const Incarnation& initiator, const ByteRange& range) {
    if (touches(range)) left_.push_back({initiator, range});
}

bool Gpu::isLeftBehind(const Incarnation& initiator) const {
    return std::any_of(left_.begin(), left_.end(), [&](const Left& each) { return each.initiator == initiator; });
}

bool Gpu::poll(TimePoint now, Sweep& sweep) {
    bool moved = user_.poll(now);
    std::erase_if(left_, [this](const Left& each) { return !touches(each.range); });
    std::erase_if(landings_, [&](Landing& landing) {
        if (landing.sink->isDone()) {
            sweep.complete(landing.request.cookie, landing.request.length);
        } else if (const Status lost = landing.sink->state(); !lost) {
            // `sift` sees to it that nothing of it is under way when it is told.
            sweep.failed.push_back({landing.request, lost, false, true, true});
        } else {
            return false;
        }
        moved = true;
        return true;
    });
    return moved;
}

// --- sending -------------------------------------------------------------------------------------------------------

std::deque<StagedSends::Frame>::iterator StagedSends::search(std::uint64_t number) {
    return std::lower_bound(frames_.begin(), frames_.end(), number,
                            [](const Frame& frame, std::uint64_t wanted) { return frame.number < wanted; });
}

StagedSends::Frame* StagedSends::find(std::uint64_t number) {
    const auto found = search(number);
    return found == frames_.end() || found->number != number ? nullptr : &*found;
}

StagedSends::Frame& StagedSends::frameOf(std::uint64_t number, device::Staging& staging, const ByteRange& range) {
    const auto found = search(number);
    if (found != frames_.end() && found->number == number) return *found;
    ++copies_;
    return *frames_.insert(found, {number, std::make_unique<device::StagedSource>(staging.out(), range, kDepth)});
}

/// A small one that has not begun waits for goAhead, which begins it with those behind it as soon as there is room, at
/// the latest when those before it are sent. By itself it would cost a chunk and a copy of its own.
bool StagedSends::isForGroup(std::uint64_t number, const device::Staging& staging, const ByteRange& range) {
    return number >= begun_ && mayShare(staging.out(), range.length) && find(number) == nullptr;
}

bool StagedSends::mayGoAhead(const device::Staging& staging) const {
    return copies_ == 0 || (copies_ < kAhead && staging.out().freeChunks() > staging.out().chunks() / 2);
}

/// False: it is for the next one.
bool StagedSends::addToGroup(std::uint64_t number, const ByteRange& range, const device::Staging& staging) {
    const device::StagingRing& ring = staging.out();
    if (group_.empty()) group_bytes_ = 0;
    const std::uint64_t at = device::pieceAt(group_bytes_, range.addr);
    // What is large is alone.
    if (!group_.empty() &&
        (!mayShare(ring, range.length) || !mayShare(ring, group_.back().range.length) || at >= ring.chunkBytes() ||
         range.length > ring.chunkBytes() - at || group_.size() == kMostShares))
        return false;
    group_.push_back({number, range});
    group_bytes_ = at + range.length;
    return true;
}

void StagedSends::beginGroup(device::Staging& staging) {
    if (group_.size() == 1) {
        Frame& frame = frameOf(group_.front().number, staging, group_.front().range);
        frame.error = frame.source->advance();
        return;
    }
    std::vector<ByteRange> ranges;
    ranges.reserve(group_.size());
    for (const Next& next : group_) ranges.push_back(next.range);
    const auto pages = std::make_shared<device::StagedPages>(staging.out(), std::move(ranges));
    ++copies_;
    static_cast<void>(pages->advance());
    for (std::size_t i = 0; i < group_.size(); ++i)
        frames_.insert(search(group_[i].number), {group_[i].number, nullptr, pages, i});
}

std::span<const std::byte> StagedSends::ready(std::uint64_t number, device::Staging& staging, const ByteRange& range,
                                              std::uint64_t done, bool writable) {
    if (isForGroup(number, staging, range)) return {};
    Frame& frame = frameOf(number, staging, {range.addr + done, range.length - done});
    if (frame.pages) {
        if (writable || !frame.pages->isStarved()) frame.error = frame.pages->advance();
        return frame.pages->ready(frame.page);
    }
    if (writable || !frame.source->isStarved()) frame.error = frame.source->advance();
    return frame.source->ready();
}

std::optional<std::uint32_t> StagedSends::checksum(std::uint64_t number, device::Staging& staging,
                                                   const ByteRange& range) {
    if (isForGroup(number, staging, range)) return std::nullopt;
    Frame& frame = frameOf(number, staging, range);
    if (frame.pages) {
        frame.error = frame.pages->advance();
        const auto bytes = frame.pages->ready(frame.page);
        if (bytes.empty()) return std::nullopt;
        return crc32c(0, bytes.data(), bytes.size());
    }
    for (;;) {
        frame.error = frame.source->advance();
        const auto bytes = frame.source->ready();
        if (bytes.empty()) break;
        frame.crc = crc32c(frame.crc, bytes.data(), bytes.size());
        frame.source->consume(bytes.size());
    }
    if (!frame.error || !frame.source->isDone()) return std::nullopt;
    const std::uint32_t sum = frame.crc;
    // It is copied once more to be sent.
    finish(number);
    return sum;
}

void StagedSends::consume(std::uint64_t number, std::uint64_t bytes) {
    Frame* const frame = find(number);
    if (frame == nullptr) return;
    if (frame->pages)
        frame->pages->consume(frame->page, bytes);
    else
        frame->source->consume(bytes);
}

void StagedSends::finish(std::uint64_t number) {
    const auto found = search(number);
    if (found == frames_.end() || found->number != number) return;
    if (!found->pages || found->pages.use_count() == 1) --copies_;
    frames_.erase(found);
}

void StagedSends::fail(std::uint64_t number) {
    const Frame* const frame = find(number);
    if (frame == nullptr) return;
    if (!frame->pages) return finish(number);
    const auto shared = frame->pages;
    std::erase_if(frames_, [&](const Frame& each) { return each.pages == shared; });
    --copies_;
}

Status StagedSends::state(std::uint64_t number) {
    const Frame* const frame = find(number);
    return frame == nullptr ? Status() : frame->error;
}

void StagedSends::clear() {
    frames_.clear();
    copies_ = 0;
    begun_ = 0;
}

bool isWritable(int socket) {
    pollfd asked{socket, POLLOUT, 0};
    return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLOUT) != 0;
}

}  // namespace troupe::tcp
