#include "host_backend/device_jobs.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "transports/device.h"

namespace troupe::host {

namespace {

/// Begun and not ended, of all GPUs. More waits its turn: it could be given up at once.
constexpr std::size_t kMostRunning = 64;
/// Pages that are begun together at most, and how large each may be: larger ones are not measured (PackTrial).
constexpr std::size_t kMostPacked = 64;
constexpr std::uint64_t kMostPackedBytes = 64u << 10;
/// Of them running at a time: some launches, so that one is there when another ends.
constexpr std::size_t kMostPackedRunning = 4 * kMostPacked;

/// Whether a GPU copies from or to there by itself.
bool reaches(int device, const DeviceSide& side, const DeviceSide& other) {
    if (side.device == DeviceSide::kHost) return side.pinned;
    return side.device == device || (side.plain && other.plain);
}

/// What a kernel of that GPU may touch: a bad access of a kernel is no error of that work alone, it costs the
/// application's context. So nothing that anybody may unpin, move or unmap without freeing memory of the GPU, and
/// nothing for which another border than that within the GPU was measured.
bool isForKernel(int device, const DeviceSide& side) { return side.is_own && side.device == device; }

}  // namespace

int copierOf(const DeviceSide& to, const DeviceSide& from) {
    return from.device != DeviceSide::kHost ? from.device : to.device;
}

bool isDirect(const DeviceSide& to, const DeviceSide& from) {
    const int device = copierOf(to, from);
    return reaches(device, from, to) && reaches(device, to, from);
}

DeviceSide DeviceSide::of(const ByteRange& range, const Region* region) {
    // What follows in another region may be of any kind.
    const bool pinned = region != nullptr && region->pinned && region->range.contains(range);
    DeviceSide side{range.addr, kHost, pinned, false, false};
    if (region == nullptr || !region->isOnDevice()) return side;
    const device::MemoryPlace& place = region->place->memory;
    side.device = place.device;
    side.is_own = true;
    side.plain = std::all_of(place.pieces.begin(), place.pieces.end(),
                             [](const device::MemoryPiece& piece) { return !piece.is_virtual; });
    return side;
}

DeviceJobs::DeviceJobs(std::shared_ptr<device::StagingPool> pool, unsigned loop, Links& links)
    : user_(std::move(pool), loop,
            {[&links](int bell) { return links.watch(bell); }, [&links](int bell) { links.remove(bell); }}) {}

std::vector<std::pair<WorkRequest, const device::PlacedMemory*>> DeviceJobs::takeBack(PathId path,
                                                                                      const ByteRange& range) {
    std::vector<std::pair<WorkRequest, const device::PlacedMemory*>> taken;
    std::erase_if(queue_, [&](Job& job) {
        if (job.path != path || !job.there().overlaps(range)) return false;
        taken.emplace_back(job.request, job.place);
        return true;
    });
    return taken;
}

void DeviceJobs::push(PathId path, const WorkRequest& request, const DeviceSide& local, const DeviceSide& remote,
                      const device::PlacedMemory* place) {
    Job& job = queue_.emplace_back();
    job.path = path;
    job.request = request;
    job.place = place;
    const bool reads = request.opcode == Opcode::Read;
    job.to = reads ? local : remote;
    job.from = reads ? remote : local;
    job.remote = remote.addr;
}

DeviceJobs::Begun DeviceJobs::begin(Job& job, Status& why) {
    const std::uint64_t bytes = job.request.length;
    const ByteRange to{job.to.addr, bytes};
    const ByteRange from{job.from.addr, bytes};
    if (to.overlaps(from) && to != from) {
        why = Status(Code::Unsupported, "source " + from.toString() + " and destination " + to.toString() +
                                            " overlap in memory of a GPU, which has no memmove");
        return Begun::Failed;
    }
    const int device = copierOf(job.to, job.from);
    const auto staging = user_.at(device);
    why = staging.status();
    if (!staging) return Begun::Failed;
    if (isDirect(job.to, job.from)) {
        if (!(*staging)->copier().hasRoom()) return Begun::Later;
        job.direct = (*staging)->shared_from_this();
        if (to == from) return Begun::Yes;
        const auto copy = (*staging)->copier().begin(to.addr, from.addr, bytes);
        why = copy.status();
        if (!copy) return Begun::Failed;
        job.copy = *copy;
        return Begun::Yes;
    }
    if (job.from.device != DeviceSide::kHost)
        job.source = std::make_unique<device::StagedSource>((*staging)->out(), from);
    if (job.to.device == DeviceSide::kHost) return Begun::Yes;
    const auto there = user_.at(job.to.device);
    why = there.status();
    if (!there) return Begun::Failed;
    job.sink = std::make_unique<device::StagedSink>((*there)->in(), to);
    return Begun::Yes;
}

/// Begins as many of the first that wait as the kernel of one GPU moves at once. Returns how many: 0 where there are no
/// several, or copies are as fast.
std::size_t DeviceJobs::beginPacked(std::vector<Ended>& ended) {
    const int device = queue_.front().from.device;
    pages_.clear();
    std::uint64_t bytes = 0;
    for (const Job& job : queue_) {
        const std::uint64_t length = job.request.length;
        if (pages_.size() == kMostPacked || length == 0 || length > kMostPackedBytes || !isForKernel(device, job.to) ||
            !isForKernel(device, job.from) || ByteRange{job.to.addr, length}.overlaps({job.from.addr, length}))
            break;
        pages_.push_back({job.to.addr, job.from.addr, length});
        bytes += length;
    }
    if (pages_.size() < 2) return 0;
    const auto way = device::PageWay::Within;
    const auto staging = user_.at(device);
    if (!staging || !(*staging)->copier().packs(way, pages_.size(), bytes) || !(*staging)->copier().hasRoom()) return 0;
    device::DeviceCopier::Begun begun;
    const Status status = (*staging)->copier().begin(pages_, way, begun);
    for (std::size_t i = 0; i < pages_.size(); ++i) {
        Job& job = queue_.front();
        // One page is refused. Those before it go; those behind it are begun anew when nothing of them can be under
        // way.
        const bool is_refused = !status && (begun.copy == 0 || i == begun.whole);
        if (is_refused) {
            ended.push_back({job.request, job.path, status, job.there()});
        } else {
            job.direct = (*staging)->shared_from_this();
            job.copy = begun.copy;
            job.is_packed = true;
            job.begins_anew = !status && i > begun.whole;
            running_.push_back(std::move(job));
        }
        queue_.pop_front();
    }
    return pages_.size();
}

bool DeviceJobs::advance(Job& job, std::uint64_t& budget, bool& moved, Status& outcome) {
    if (job.direct != nullptr) {
        if (job.copy != 0 && job.direct->copier().isUnderWay(job.copy)) return false;
        outcome = job.direct->copier().state();
        return true;
    }
    auto* const from = reinterpret_cast<const std::byte*>(job.from.addr);
    auto* const to = reinterpret_cast<std::byte*>(job.to.addr);
    const std::uint64_t length = job.request.length;
    while (job.moved < length) {
        std::span<const std::byte> have{from + job.moved, length - job.moved};
        if (job.source) {
            if (outcome = job.source->advance(); !outcome) return true;
            have = job.source->ready();
        }
        if (have.empty()) return false;
        if (budget == 0) {
            wants_cpu_ = true;
            return false;
        }
        const std::span<std::byte> room =
            job.sink ? job.sink->room() : std::span<std::byte>{to + job.moved, length - job.moved};
        if (job.sink)
            if (outcome = job.sink->state(); !outcome) return true;
        const std::uint64_t now = std::min({std::uint64_t{have.size()}, std::uint64_t{room.size()}, budget});
        if (now == 0) return false;
        std::memcpy(room.data(), have.data(), now);
        if (job.source) job.source->consume(now);
        if (job.sink)
            if (outcome = job.sink->commit(now); !outcome) return true;
        job.moved += now;
        budget -= now;
        moved = true;
    }
    if (!job.sink) return true;
    outcome = job.sink->state();
    return !outcome || job.sink->isDone();
}

bool DeviceJobs::poll(TimePoint now, std::uint64_t budget, std::vector<Ended>& ended) {
    bool moved = user_.poll(now);
    wants_cpu_ = false;
    const std::size_t before = ended.size();
    auto packed = static_cast<std::size_t>(
        std::count_if(running_.begin(), running_.end(), [](const Job& job) { return job.is_packed; }));
    // Those that were looked at, and are no kernel's.
    std::size_t one_by_one = 0;
    while (!queue_.empty() && running_.size() < packed + kMostRunning && packed < kMostPackedRunning) {
        if (one_by_one == 0) {
            const std::size_t begun = beginPacked(ended);
            packed += begun;
            if (begun != 0) {
                moved = true;
                continue;
            }
            one_by_one = std::max<std::size_t>(pages_.size(), 1);
        }
        Job& job = queue_.front();
        Status why;
        const Begun begun = begin(job, why);
        if (begun == Begun::Later) break;
        --one_by_one;
        moved = true;
        if (begun == Begun::Failed)
            ended.push_back({job.request, job.path, why, job.there()});
        else
            running_.push_back(std::move(job));
        queue_.pop_front();
    }
    std::erase_if(running_, [&](Job& job) {
        Status outcome;
        if (!advance(job, budget, moved, outcome)) return false;
        if (outcome && std::exchange(job.begins_anew, false)) {
            job.direct.reset();
            job.is_packed = false;
            queue_.push_back(std::move(job));
            return true;
        }
        ended.push_back({job.request, job.path, outcome, job.there()});
        return true;
    });
    return moved || ended.size() != before;
}

bool DeviceJobs::arm() const {
    // What waits its turn can go as soon as something ends.
    return !wants_cpu_ && (queue_.empty() || !running_.empty()) && user_.arm();
}

template <class Which>
void DeviceJobs::dropWhere(Which&& which, const Status& cause, std::vector<Ended>& ended) {
    for (std::deque<Job>* jobs : {&running_, &queue_})
        std::erase_if(*jobs, [&](const Job& job) {
            if (!which(job)) return false;
            ended.push_back({job.request, job.path, cause, job.there()});
            return true;
        });
}

void DeviceJobs::drop(PathId path, const Status& cause, std::vector<Ended>& ended) {
    dropWhere([path](const Job& job) { return job.path == path; }, cause, ended);
}

void DeviceJobs::dropIn(const ByteRange& range, const Status& cause, std::vector<Ended>& ended) {
    dropWhere([&](const Job& job) { return job.there().overlaps(range); }, cause, ended);
}

bool DeviceJobs::serves(const ByteRange& range) const {
    const auto is_there = [&](const Job& job) { return job.there().overlaps(range); };
    return std::any_of(queue_.begin(), queue_.end(), is_there) ||
           std::any_of(running_.begin(), running_.end(), is_there) || touches(range);
}

}  // namespace troupe::host
