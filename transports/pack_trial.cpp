#include "transports/pack_trial.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace troupe::device {

namespace {

/// What is tried: pages as caches have them, and numbers of them as share a chunk of a ring. Larger ones are a copy's.
constexpr std::size_t kCounts[] = {2, 8, 32};
constexpr std::uint64_t kSizes[] = {512, 4096, 16384, 65536};
/// Of what is not more than this together.
constexpr std::uint64_t kMostBytes = 512u << 10;
/// Of each the shortest counts: all that disturbs it makes it longer.
constexpr int kRounds = 3;

}  // namespace

Result<std::unique_ptr<PackTrial>> PackTrial::create(std::shared_ptr<Device> device,
                                                     std::shared_ptr<const PageMover> mover, const Options& options) {
    std::unique_ptr<PackTrial> trial(new PackTrial);
    // Pages lie apart: one is where the next but one of a row would be.
    auto memory = device->allocate(3 * kMostBytes);
    if (!memory) return memory.status();
    auto pinned = device->allocateHost(kMostBytes);
    if (!pinned) return pinned.status();
    auto stream = device->makeStream();
    if (!stream) return stream.status();
    auto event = device->makeEvent();
    if (!event) return event.status();
    trial->memory_ = std::move(*memory);
    trial->pinned_ = std::move(*pinned);
    trial->stream_ = std::move(*stream);
    trial->event_ = std::move(*event);
    trial->device_ = std::move(device);
    trial->mover_ = std::move(mover);
    trial->options_ = options;
    return trial;
}

PackTrial::~PackTrial() {
    // Of a device that is lost nothing runs any more.
    if (stream_) device_->synchronize(stream_).isOk();
}

std::vector<PageMove> PackTrial::pagesOf(PageWay way, std::size_t pages, std::uint64_t bytes) const {
    std::vector<PageMove> moves(pages);
    for (std::size_t index = 0; index < pages; ++index) {
        // In an order of no meaning: what lies at equal distances has an easier plan.
        const std::uint64_t apart = memory_.get() + ((index ^ 1) * 2) * bytes;
        const std::uint64_t together = index * bytes;
        switch (way) {
            case PageWay::FromDevice: moves[index] = {pinned_.get() + together, apart, bytes}; break;
            case PageWay::ToDevice: moves[index] = {apart, pinned_.get() + together, bytes}; break;
            case PageWay::Within: moves[index] = {memory_.get() + 2 * kMostBytes + together, apart, bytes}; break;
        }
    }
    return moves;
}

std::optional<std::chrono::nanoseconds> PackTrial::take(const std::vector<PageMove>& moves, bool kernel) {
    const TimePoint begun = Clock::now();
    Status status;
    if (kernel) {
        status = mover_->move(stream_, moves);
    } else {
        for (const PageMove& move : moves)
            if (status) status = device_->copy(stream_, move.to, move.from, move.bytes);
    }
    if (status) status = device_->record(event_, stream_);
    if (!status) return std::nullopt;
    for (;;) {
        const auto done = device_->isDone(event_);
        const TimePoint now = Clock::now();
        if (!done) return std::nullopt;
        if (*done) return now - begun;
        if (now - begun > options_.patience) return std::nullopt;
        std::this_thread::yield();
    }
}

std::optional<PackBorder> PackTrial::measure(PageWay way) {
    // Whatever is done for the first time takes longer.
    const auto first = pagesOf(way, 2, kSizes[0]);
    if (!take(first, true) || !take(first, false)) return std::nullopt;
    const TimePoint until = Clock::now() + options_.budget;
    std::vector<PackBorder::Sample> samples;
    for (const std::size_t pages : kCounts) {
        for (const std::uint64_t bytes : kSizes) {
            if (pages * bytes > kMostBytes) break;
            const auto moves = pagesOf(way, pages, bytes);
            PackBorder::Sample sample{pages, bytes, std::chrono::nanoseconds::max() / 2,
                                      std::chrono::nanoseconds::max() / 2};
            for (int round = 0; round < kRounds; ++round) {
                if (Clock::now() > until) return PackBorder::of(samples);
                const auto kernel = take(moves, true);
                const auto copies = take(moves, false);
                if (!kernel || !copies) return std::nullopt;
                sample.kernel = std::min(sample.kernel, *kernel);
                sample.copies = std::min(sample.copies, *copies);
            }
            samples.push_back(sample);
            // Larger ones need not be tried.
            if (sample.kernel >= sample.copies) break;
        }
    }
    return PackBorder::of(samples);
}

std::optional<PackBorders> PackTrial::run() {
    PackBorders borders;
    for (const PageWay way : {PageWay::FromDevice, PageWay::ToDevice, PageWay::Within}) {
        const auto border = measure(way);
        if (!border) return std::nullopt;
        borders[static_cast<std::size_t>(way)] = *border;
    }
    return borders;
}

}  // namespace troupe::device
