#include "actors/path_ladder.h"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

bool hasRoom(const Path& path, const NicInfo& nic) {
    // A path without work takes any flight, also one larger than its window.
    return path.bytes == 0 || (path.bytes < nic.window_bytes && path.flights < nic.window_requests);
}

bool isBarred(const Path& path, const Run& run) { return (run.barred & workerBit(path.worker)) != 0; }

}  // namespace

bool KnownWorker::isFarFrom(const std::string& location) const {
    return std::find(far_from.begin(), far_from.end(), location) != far_from.end();
}

void Path::add(const Flight& flight) {
    bytes += flight.length;
    ++flights;
    train.flights.push_back(flight);
}

void Path::remove(std::uint64_t length, bool arrived) {
    bytes -= std::min(bytes, length);
    if (flights > 0) --flights;
    if (arrived) on_trial = false;
}

void PathLadder::route(const std::vector<std::uint32_t>& workers, const std::vector<KnownWorker>& known,
                       std::uint32_t loop, bool same) {
    std::vector<Path> paths;
    for (const std::uint32_t worker : workers) {
        Path path;
        path.worker = worker;
        if (const Path* old = of(worker)) {
            path.bytes = old->bytes;
            path.flights = old->flights;
            path.usable = !same || old->usable;
            path.on_trial = same && old->on_trial;
        }
        if (!paths.empty()) {
            const Path& better = paths.back();
            const bool next = known[better.worker].nic.transport != known[worker].nic.transport;
            path.rank = better.rank + (next ? 1 : 0);
        }
        paths.push_back(std::move(path));
    }
    std::stable_sort(paths.begin(), paths.end(), [&](const Path& a, const Path& b) {
        const auto far = [&](const Path& path) { return known[path.worker].loop != loop; };
        return std::make_pair(a.rank, far(a)) < std::make_pair(b.rank, far(b));
    });
    has_far_ = paths.size() > 1 && std::any_of(paths.begin(), paths.end(),
                                               [&](const Path& path) { return !known[path.worker].far_from.empty(); });
    for (Path& old : paths_) {
        if (old.flights == 0 || std::find(workers.begin(), workers.end(), old.worker) != workers.end()) continue;
        old.retired = true;
        paths.push_back(std::move(old));
    }
    paths_ = std::move(paths);
}

void PathLadder::closed() {
    for (Path& path : paths_) {
        path.usable = true;
        path.on_trial = false;
    }
}

Path* PathLadder::of(std::uint32_t worker) {
    for (Path& path : paths_)
        if (path.worker == worker) return &path;
    return nullptr;
}

void PathLadder::dropIfOver(std::uint32_t worker) {
    std::erase_if(paths_, [&](const Path& path) { return path.worker == worker && path.retired && path.flights == 0; });
}

bool PathLadder::anyUsable(std::uint32_t but) const {
    return std::any_of(paths_.begin(), paths_.end(),
                       [but](const Path& path) { return !path.retired && path.usable && path.worker != but; });
}

bool PathLadder::mayCarry(const Run& run) const {
    return std::any_of(paths_.begin(), paths_.end(), [&](const Path& path) {
        return !path.retired && (run.worker == Run::kAnyWorker || path.worker == run.worker) && !isBarred(path, run);
    });
}

/// The best transport that has a path which is not lost, and of its paths the nearest with room. One that came back is
/// tried with one flight at a time while others are known to work. Work is pulled over all Nics that are near its
/// memory, and over the others only where there are none of those: what crosses to another node is slower, and in the
/// way of what belongs there.
Path* PathLadder::pick(const Run& run, const std::string& location, const std::vector<KnownWorker>& known) {
    if (run.worker != Run::kAnyWorker) {
        for (Path& path : paths_)
            if (path.worker == run.worker && !path.retired)
                return hasRoom(path, known[path.worker].nic) ? &path : nullptr;
        return nullptr;
    }
    const auto is_second_choice = [&](const Path& path) {
        return has_far_ && (location != "*" ? known[path.worker].isFarFrom(location) : path.worker == run.failed_on);
    };
    const Path* sure = nullptr;
    Path* second = nullptr;
    const Path* sure_second = nullptr;
    for (Path& path : paths_) {
        if (path.retired || isBarred(path, run)) continue;
        // A full window is no reason to take a worse transport.
        const Path* of_better = sure != nullptr ? sure : sure_second;
        if (of_better != nullptr && path.rank > of_better->rank) break;
        if (!path.usable || (path.on_trial && (path.flights != 0 || path.worker == run.failed_on))) continue;
        const bool room = hasRoom(path, known[path.worker].nic);
        if (is_second_choice(path)) {
            if (second == nullptr && room) second = &path;
            if (!path.on_trial) sure_second = &path;
            continue;
        }
        if (room) return &path;
        if (!path.on_trial) sure = &path;
    }
    if (sure != nullptr) return nullptr;
    return second != nullptr || sure_second != nullptr ? second : pickAny(run, known);
}

/// None is known to work. With every path lost the work goes out all the same: it waits for one there, or comes back
/// with the cause.
Path* PathLadder::pickAny(const Run& run, const std::vector<KnownWorker>& known) {
    const auto may = [&](const Path& path) { return !path.retired && !isBarred(path, run); };
    const bool choosy =
        std::any_of(paths_.begin(), paths_.end(), [&](const Path& path) { return may(path) && path.usable; });
    for (Path& path : paths_)
        if (may(path) && (path.usable || !choosy) && hasRoom(path, known[path.worker].nic)) return &path;
    return nullptr;
}

std::uint64_t PathLadder::barredBy(std::uint32_t worker) const {
    const auto of = std::find_if(paths_.begin(), paths_.end(),
                                 [&](const Path& path) { return path.worker == worker && !path.retired; });
    std::uint64_t bits = workerBit(worker);
    bool any_left = false;
    for (const Path& path : paths_) {
        if (path.retired) continue;
        if (of != paths_.end() && path.rank <= of->rank)
            bits |= workerBit(path.worker);
        else
            any_left = any_left || path.worker != worker;
    }
    return any_left ? bits : 0;
}

}  // namespace troupe
