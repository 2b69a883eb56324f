#include "actors/source_waits.h"

#include <algorithm>

namespace troupe {

namespace {

// Unregistered ranges that are remembered against submits on their way: more than can pass while a message waits.
constexpr std::size_t kAwaitedKept = 256;

}  // namespace

TimePoint SourceWaits::deadline() const {
    TimePoint earliest = kForever;
    for (const Wait& wait : waits_) earliest = std::min(earliest, wait.asked.deadline);
    return earliest;
}

void SourceWaits::await(const AwaitSourceIdle& wait, const ForEachSource& tasks) {
    if (wait.version != 0) remember(wait);
    Wait& added = waits_.emplace_back(Wait{wait});
    tasks([&](const ByteRange& source, BatchID) {
        if (wait.ranges.overlaps(source)) ++added.users;
    });
}

void SourceWaits::remember(const AwaitSourceIdle& wait) {
    // Unregistrations of several threads may arrive in another order than their versions.
    const auto after = std::upper_bound(awaited_.begin(), awaited_.end(), wait.version,
                                        [](std::uint64_t v, const Awaited& entry) { return v < entry.version; });
    awaited_.insert(after, Awaited{wait.version, wait.ranges});
    if (awaited_.size() <= kAwaitedKept) return;
    awaited_floor_ = awaited_.front().version;
    awaited_.pop_front();
}

void SourceWaits::count(const ByteRange& source, int change) {
    for (Wait& wait : waits_)
        if (wait.asked.ranges.overlaps(source)) wait.users += static_cast<std::uint64_t>(change);
}

void SourceWaits::answer(TimePoint now, const ForEachSource& tasks) {
    for (auto wait = waits_.begin(); wait != waits_.end();) {
        if (wait->users != 0 && now < wait->asked.deadline) {
            ++wait;
            continue;
        }
        std::vector<BatchID> users;
        if (wait->users != 0)
            tasks([&](const ByteRange& source, BatchID batch) {
                if (wait->asked.ranges.overlaps(source) && (users.empty() || users.back() != batch))
                    users.push_back(batch);
            });
        wait->asked.reply(users);
        wait = waits_.erase(wait);
    }
}

Status SourceWaits::stillRegistered(const ByteRange& source, Opcode opcode, std::uint64_t version,
                                    const RegionMap& now) const {
    const Status gone(Code::AddressNotRegistered, "source " + source.toString() + " was unregistered during submit");
    for (auto entry = awaited_.rbegin(); entry != awaited_.rend() && entry->version > version; ++entry)
        if (entry->ranges.overlaps(source)) return gone;
    // Older than what is remembered: the current table decides, on the safe side.
    if (version < awaited_floor_) return now.covers(source, false, opcode == Opcode::Read) ? Status::ok() : gone;
    return Status::ok();
}

}  // namespace troupe
