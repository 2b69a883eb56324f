// troupe_gpu_check: many small pages, by the packing kernel and by copies.

#include <fmt/format.h>

#include <deque>

#include "base/clock.h"
#include "bench/gpu_check.h"
#include "transports/pack_trial.h"
#include "transports/page_packing.h"

namespace troupe::cuda::check {

namespace {

/// What the kernel is to reach of a device copy, with pages of this size.
constexpr double kPackTarget = 0.8;
constexpr std::uint64_t kPackTargetPage = 64u << 10;

void leaveOut(nlohmann::json& report, const char* name, const Status& why) {
    fmt::print("  left out: {}\n", why.toString());
    report.push_back({{"name", name}, {"why", why.toString()}});
}

}  // namespace

void Bench::packing(nlohmann::json& report) {
    const auto mover = gpu_->makeMover();
    if (!mover) return leaveOut(report, "packing", mover.status());
    const std::uint64_t bytes = arguments_.bytes;
    const DeviceMemory pages = must(gpu_->allocate(2 * bytes));
    const DeviceMemory packed = must(gpu_->allocate(bytes));
    const double roof = rate(bytes, [&] {
        must(gpu_->copy(stream_, packed.get(), pages.get(), bytes));
        must(gpu_->synchronize(stream_));
    });
    put(pages.get(), noise(2 * bytes, 2));
    for (std::uint64_t page = 4096; page <= std::min<std::uint64_t>(1u << 20, bytes); page *= 4)
        packPages(report, **mover, page, pages.get(), packed.get(), roof);
}

/// Every other page of a cache, in an order of no meaning.
void Bench::packPages(nlohmann::json& report, const PageMover& mover, std::uint64_t page_bytes, std::uint64_t pages,
                      std::uint64_t packed, double roof) {
    const std::uint64_t count = arguments_.bytes / page_bytes;
    std::vector<PageMove> gather(count);
    for (std::uint64_t index = 0; index < count; ++index) gather[index].from = pages + 2 * index * page_bytes;
    std::shuffle(gather.begin(), gather.end(), std::mt19937_64(page_bytes));
    std::vector<PageMove> scatter(count);
    for (std::uint64_t index = 0; index < count; ++index) {
        gather[index].to = packed + index * page_bytes;
        gather[index].bytes = page_bytes;
        scatter[index] = {gather[index].from, gather[index].to, page_bytes};
    }
    const std::uint64_t bytes = count * page_bytes;
    const auto run = [&](const std::vector<PageMove>& moves) {
        must(mover.move(stream_, moves));
        must(gpu_->synchronize(stream_));
    };
    const double gathered = rate(bytes, [&] { run(gather); });
    auto expected = get(pages, 2 * arguments_.bytes);
    const auto got = get(packed, bytes);
    for (std::uint64_t index = 0; index < count; ++index)
        must(std::memcmp(got.data() + index * page_bytes, expected.data() + (gather[index].from - pages), page_bytes) ==
                 0,
             "a gathered page differs");
    row(report, fmt::format("gather, pages of {} KiB", page_bytes >> 10), gathered, roof,
        page_bytes == kPackTargetPage ? kPackTarget : 0);
    // Else the pages hold already what is scattered to them.
    expected = noise(2 * arguments_.bytes, page_bytes + 1);
    put(pages, expected);
    const double scattered = rate(bytes, [&] { run(scatter); });
    for (std::uint64_t index = 0; index < count; ++index)
        std::memcpy(expected.data() + (scatter[index].to - pages), got.data() + index * page_bytes, page_bytes);
    must(get(pages, 2 * arguments_.bytes) == expected, "what was scattered differs, or a page beside it");
    row(report, fmt::format("scatter, pages of {} KiB", page_bytes >> 10), scattered, roof,
        page_bytes == kPackTargetPage ? kPackTarget : 0);
    const double one_by_one = rate(bytes, [&] {
        for (const PageMove& move : gather) must(gpu_->copy(stream_, move.to, move.from, move.bytes));
        must(gpu_->synchronize(stream_));
    });
    row(report, fmt::format("a copy each, pages of {} KiB", page_bytes >> 10), one_by_one, roof);
}

/// What a wire does that takes at once, and is kept busy by pages that were begun ahead; with `to`, to which those
/// of the pages go in order, or without a look at them.
void Bench::sendPages(StagingRing& ring, const std::vector<ByteRange>& pages, std::uint8_t* to) {
    std::deque<std::unique_ptr<StagedPages>> ahead;
    std::deque<std::size_t> counts;
    std::size_t next = 0;
    while (next != pages.size() || !ahead.empty()) {
        while (next != pages.size() && ahead.size() < ring.chunks()) {
            std::vector<ByteRange> group;
            for (std::uint64_t bytes = 0; next != pages.size() && group.size() < 64; ++next) {
                bytes += pages[next].length;
                if (bytes > ring.chunkBytes()) break;
                group.push_back(pages[next]);
            }
            counts.push_back(group.size());
            ahead.push_back(std::make_unique<StagedPages>(ring, std::move(group)));
        }
        for (const auto& each : ahead) must(each->advance());
        ring.poll();
        StagedPages& first = *ahead.front();
        if (first.ready(0).empty()) continue;
        for (std::size_t page = 0; page < counts.front(); ++page) {
            const auto ready = first.ready(page);
            if (to != nullptr) {
                std::memcpy(to, ready.data(), ready.size());
                to += ready.size();
            }
            first.consume(page, ready.size());
        }
        ahead.pop_front();
        counts.pop_front();
    }
}

/// From a wire that gives at once; with `bytes`, which are those of the pages in order, or with whatever is there.
void Bench::receivePages(StagingRing& ring, const std::vector<ByteRange>& pages, const std::uint8_t* bytes) {
    std::deque<StagedSink> sinks;
    StagedInbox inbox(ring, true);
    for (const ByteRange& page : pages) {
        StagedSink& sink = sinks.emplace_back(inbox, page);
        std::span<std::byte> room;
        for (room = sink.room(); room.empty(); room = sink.room()) {
            must(sink.state());
            ring.poll();
        }
        must(room.size() == page.length, "a page does not fit");
        if (bytes != nullptr) {
            std::memcpy(room.data(), bytes, page.length);
            bytes += page.length;
        }
        must(sink.commit(page.length));
        while (!sinks.empty() && sinks.front().isDone()) sinks.pop_front();
    }
    inbox.pause();
    while (!sinks.empty()) {
        ring.poll();
        must(sinks.front().state());
        if (sinks.front().isDone()) sinks.pop_front();
    }
}

void Bench::stagePages(nlohmann::json& report, StagingRing& ring, const std::string& by, std::uint64_t page_bytes,
                       std::uint64_t memory, double roof) {
    std::vector<ByteRange> pages(arguments_.bytes / page_bytes);
    for (std::size_t index = 0; index < pages.size(); ++index)
        pages[index] = {memory + 2 * index * page_bytes, page_bytes};
    std::shuffle(pages.begin(), pages.end(), std::mt19937_64(page_bytes));
    const std::uint64_t bytes = pages.size() * page_bytes;
    const auto sent = noise(bytes, page_bytes);
    receivePages(ring, pages, sent.data());
    const auto got = get(memory, 2 * arguments_.bytes);
    for (std::size_t index = 0; index < pages.size(); ++index)
        must(std::memcmp(got.data() + (pages[index].addr - memory), sent.data() + index * page_bytes, page_bytes) == 0,
             "a received page differs");
    std::vector<std::uint8_t> returned(bytes);
    sendPages(ring, pages, returned.data());
    must(returned == sent, "a sent page differs");
    const std::string what = fmt::format("pages of {} KiB by {}", page_bytes >> 10, by);
    row(report, "from the GPU, " + what, rate(bytes, [&] { sendPages(ring, pages, nullptr); }), roof);
    row(report, "to the GPU, " + what, rate(bytes, [&] { receivePages(ring, pages, nullptr); }), roof);
}

/// Small pages through rings as the engine has them, and what it would choose.
void Bench::pages(nlohmann::json& report) {
    const auto mover = gpu_->makeMover();
    if (!mover) return leaveOut(report, "pages", mover.status());
    const TimePoint begun = Clock::now();
    const auto trial = must(PackTrial::create(gpu_, *mover, {}));
    const auto borders = trial->run();
    const double took = std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
    fmt::print("  the trial took {:.1f} ms\n", took);
    report.push_back({{"name", "trial"}, {"ms", took}});
    const char* const ways[kPageWays] = {"from the GPU", "to the GPU", "within the GPU"};
    for (std::size_t way = 0; way < kPageWays; ++way) {
        const std::string border =
            borders ? borders->borders[way].toString() : "not known: " + borders.status().toString();
        fmt::print("  {:<44} {}\n", fmt::format("the kernel's, {}", ways[way]), border);
        report.push_back({{"name", ways[way]}, {"kernel", border}});
    }
    const auto always = std::make_shared<PagePacking>(gpu_->info().location, nullptr);
    PackBorders all;
    all.fill(PackBorder::always());
    always->use(*mover, all);
    const StagingOptions options = ringOptions();
    const auto packed = must(StagingRing::create(gpu_, options, always));
    const auto copied = must(StagingRing::create(gpu_, options));
    const std::uint64_t bytes = arguments_.bytes;
    const DeviceMemory memory = must(gpu_->allocate(2 * bytes));
    const HostMemory pinned = must(gpu_->allocateHost(bytes));
    const double roof = rate(bytes, [&] {
        must(gpu_->copy(stream_, pinned.get(), memory.get(), bytes));
        must(gpu_->synchronize(stream_));
    });
    for (std::uint64_t page = 1024; page <= 65536; page *= 4) {
        stagePages(report, *packed, "the kernel", page, memory.get(), roof);
        stagePages(report, *copied, "a copy each", page, memory.get(), roof);
    }
}

}  // namespace troupe::cuda::check
