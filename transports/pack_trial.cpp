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
    auto pinned = MemoryFile::create(kMostBytes, false);
    if (!pinned) return pinned.status();
    const ByteRange range{reinterpret_cast<std::uint64_t>((*pinned)->data()), kMostBytes};
    auto pinning = device->pin(range);
    if (!pinning) return pinning.status();
    if (Status reached = device->reachesPinned(range); !reached) return reached;
    auto stream = device->makeStream();
    if (!stream) return stream.status();
    auto event = device->makeEvent();
    if (!event) return event.status();
    trial->memory_ = std::move(*memory);
    trial->pinned_ = std::move(*pinned);
    trial->pinning_ = std::move(*pinning);
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
    const auto pinned = reinterpret_cast<std::uint64_t>(pinned_->data());
    for (std::size_t index = 0; index < pages; ++index) {
        // In an order of no meaning: what lies at equal distances has an easier plan.
        const std::uint64_t apart = memory_.get() + ((index ^ 1) * 2) * bytes;
        const std::uint64_t together = index * bytes;
        switch (way) {
            case PageWay::FromDevice: moves[index] = {pinned + together, apart, bytes}; break;
            case PageWay::ToDevice: moves[index] = {apart, pinned + together, bytes}; break;
            case PageWay::Within: moves[index] = {memory_.get() + 2 * kMostBytes + together, apart, bytes}; break;
        }
    }
    return moves;
}

Result<std::chrono::nanoseconds> PackTrial::take(const std::vector<PageMove>& moves, bool kernel) {
    const TimePoint begun = Clock::now();
    Status status;
    if (kernel) {
        status = mover_->move(stream_, moves);
    } else {
        for (const PageMove& move : moves)
            if (status) status = device_->copy(stream_, move.to, move.from, move.bytes);
    }
    if (status) status = device_->record(event_, stream_);
    if (!status) return status;
    for (;;) {
        const auto done = device_->isDone(event_);
        const TimePoint now = Clock::now();
        if (!done) return done.status();
        if (*done) return now - begun;
        if (now - begun > options_.patience) return Status(Code::Timeout, device_->info().location + " is busy");
        std::this_thread::yield();
    }
}

Result<PackBorder> PackTrial::measure(PageWay way, bool& is_complete) {
    // Whatever is done for the first time takes longer.
    const auto first = pagesOf(way, 2, kSizes[0]);
    for (const bool kernel : {true, false})
        if (const auto taken = take(first, kernel); !taken) return taken.status();
    const TimePoint until = Clock::now() + options_.budget;
    std::vector<PackBorder::Sample> samples;
    for (const std::size_t pages : kCounts) {
        for (const std::uint64_t bytes : kSizes) {
            if (pages * bytes > kMostBytes) break;
            const auto moves = pagesOf(way, pages, bytes);
            PackBorder::Sample sample{pages, bytes, std::chrono::nanoseconds::max() / 2,
                                      std::chrono::nanoseconds::max() / 2};
            for (int round = 0; round < kRounds; ++round) {
                if (Clock::now() > until) {
                    is_complete = false;
                    return PackBorder::of(samples);
                }
                const auto kernel = take(moves, true);
                if (!kernel) return kernel.status();
                const auto copies = take(moves, false);
                if (!copies) return copies.status();
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

Result<PackTrial::Outcome> PackTrial::run() {
    Outcome outcome;
    for (const PageWay way : {PageWay::FromDevice, PageWay::ToDevice, PageWay::Within}) {
        const auto border = measure(way, outcome.is_complete);
        if (!border) return border.status();
        outcome.borders[static_cast<std::size_t>(way)] = *border;
    }
    return outcome;
}

}  // namespace troupe::device
