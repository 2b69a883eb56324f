#include "tcp_backend/gpu.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "tcp_backend/crc32c.h"

namespace troupe::tcp {

namespace {

/// Chunks that one frame has at most, and the frames behind the one that is sent: small ones come in numbers.
constexpr unsigned kDepth = 4;
constexpr std::size_t kAhead = 8;

}  // namespace

Gpu::Gpu(EventSet& events, const RegistrationTable& regions, std::shared_ptr<device::StagingPool> pool, unsigned loop)
    : regions_(regions.regions()),
      user_(std::move(pool), loop,
            {[&events](int bell) { return events.watch(bell); }, [&events](int bell) { events.unwatch(bell); }}) {}

Result<int> Gpu::deviceOf(const ByteRange& range) {
    const auto region = regions_.get().deviceOf(range);
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
    bool moved = user_.poll(now, !landings_.empty() || !left_.empty());
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

const StagedSends::Frame* StagedSends::find(std::uint64_t number) const {
    for (const Frame& frame : frames_)
        if (frame.number == number) return &frame;
    return nullptr;
}

StagedSends::Frame& StagedSends::frameOf(std::uint64_t number, device::Staging& staging, const ByteRange& range) {
    for (Frame& frame : frames_)
        if (frame.number == number) return frame;
    frames_.push_back({number, std::make_unique<device::StagedSource>(staging.out(), range, kDepth), 0, {}});
    return frames_.back();
}

std::span<const std::byte> StagedSends::ready(std::uint64_t number, device::Staging& staging, const ByteRange& range,
                                              std::uint64_t done, bool writable) {
    Frame& frame = frameOf(number, staging, {range.addr + done, range.length - done});
    if (writable || !frame.source->isStarved()) frame.error = frame.source->advance();
    return frame.source->ready();
}

std::optional<std::uint32_t> StagedSends::checksum(std::uint64_t number, device::Staging& staging,
                                                   const ByteRange& range) {
    Frame& frame = frameOf(number, staging, range);
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
    std::erase_if(frames_, [number](const Frame& each) { return each.number == number; });
    return sum;
}

void StagedSends::consume(std::uint64_t number, std::uint64_t bytes) {
    for (Frame& frame : frames_)
        if (frame.number == number) frame.source->consume(bytes);
}

void StagedSends::finish(std::uint64_t number) {
    std::erase_if(frames_, [number](const Frame& frame) { return frame.number == number; });
}

Status StagedSends::state(std::uint64_t number) const {
    const Frame* const frame = find(number);
    return frame == nullptr ? Status() : frame->error;
}

bool StagedSends::mayGoAhead(const device::Staging& staging) const {
    return frames_.size() < kAhead && staging.out().freeChunks() > staging.out().chunks() / 2;
}

bool isWritable(int socket) {
    pollfd asked{socket, POLLOUT, 0};
    return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLOUT) != 0;
}

}  // namespace troupe::tcp
