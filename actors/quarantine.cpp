#include "actors/quarantine.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe {

namespace {

/// The next part of the same piece of work: one entry with it.
bool follows(const QuarantineEntry& next, const QuarantineEntry& last) {
    return last.range.end() == next.range.addr && last.batch == next.batch && last.first_task == next.first_task &&
           last.task_count == next.task_count && last.opcode == next.opcode && last.region == next.region;
}

}  // namespace

std::string QuarantineEntry::toString(TimePoint now) const {
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(std::max(now - since, Duration::zero()));
    if (!holder.empty())
        return "region " + range.toString() + " may still be read or written by " + holder +
               ", which was given it by " + nic + ", for " + std::to_string(age.count()) + " ms: " + cause.toString();
    std::string text = range.toString();
    if (region.length != 0) text += " of region " + region.toString();
    text += " may still be ";
    text += opcode == Opcode::Read ? "written" : "read";
    text += " by " + nic + " for segment '" + segment + "' (batch " + std::to_string(batch) + ", task " +
            std::to_string(first_task);
    if (task_count > 1) text += " and the " + std::to_string(task_count - 1) + " after it";
    return text + "), for " + std::to_string(age.count()) + " ms: " + cause.toString();
}

void Quarantine::add(std::uint32_t worker, std::uint64_t doubt, QuarantineEntry entry) {
    const auto regions = regions_.regions().load();
    if (const Region* region = regions->find(entry.range.addr)) entry.region = region->range;
    const std::lock_guard lock(mutex_);
    ++ever_;
    if (!held_.empty()) {
        Held& last = held_.back();
        if (last.worker == worker && last.doubt == doubt && follows(entry, last.entry)) {
            last.entry.range.length += entry.range.length;
            ++last.parts;
            return;
        }
    }
    const bool known = std::any_of(held_.begin(), held_.end(),
                                   [&](const Held& each) { return each.worker == worker && each.doubt == doubt; });
    // Of what one incident brings in, the first says enough.
    if (!known) log_->warn("quarantine: {}", entry.toString(entry.since));
    enter({worker, doubt, 1, std::move(entry)});
}

void Quarantine::hold(std::uint32_t worker, QuarantineEntry entry) {
    const std::lock_guard lock(mutex_);
    const bool known = std::any_of(held_.begin(), held_.end(), [&](const Held& each) {
        return each.worker == worker && each.entry.holder == entry.holder && each.entry.range == entry.range;
    });
    if (known) return;
    entry.region = entry.range;
    ++ever_;
    log_->warn("quarantine: {}", entry.toString(entry.since));
    enter({worker, 0, 1, std::move(entry)});
}

/// Under the mutex.
void Quarantine::enter(Held held) {
    if (held.entry.holder.empty()) standing_.fetch_add(1, std::memory_order_release);
    held_.push_back(std::move(held));
}

template <class Which>
void Quarantine::release(Which&& which) {
    const std::lock_guard lock(mutex_);
    std::uint64_t bytes = 0;
    std::uint64_t parts = 0;
    std::erase_if(held_, [&](const Held& each) {
        if (!which(each)) return false;
        bytes += each.entry.range.length;
        parts += each.parts;
        return true;
    });
    if (parts == 0) return;
    proven_ += parts;
    const auto standing =
        std::count_if(held_.begin(), held_.end(), [](const Held& h) { return h.entry.holder.empty(); });
    standing_.store(static_cast<std::size_t>(standing), std::memory_order_release);
    log_->info("quarantine: nothing touches {} bytes of {} parts any more; {} entries are left", bytes, parts,
               held_.size());
}

void Quarantine::prove(std::uint32_t worker, std::uint64_t doubt) {
    if (doubt == 0) return;
    release([&](const Held& each) { return each.worker == worker && each.doubt == doubt; });
}

void Quarantine::proveAll(std::uint32_t worker) {
    // A process that holds a region does so without the Nic, too.
    release([&](const Held& each) { return each.worker == worker && each.entry.holder.empty(); });
}

void Quarantine::proveAll() {
    release([](const Held& each) { return each.entry.holder.empty(); });
}

void Quarantine::keepHeld(std::uint32_t worker, const std::function<bool(const QuarantineEntry&)>& is_held) {
    release(
        [&](const Held& each) { return each.worker == worker && !each.entry.holder.empty() && !is_held(each.entry); });
}

Status Quarantine::heldIn(const ByteRange& range, TimePoint now) const {
    if (empty()) return {};
    const std::lock_guard lock(mutex_);
    const auto inside = [&](const Held& each) { return each.entry.holder.empty() && each.entry.range.overlaps(range); };
    const auto first = std::find_if(held_.begin(), held_.end(), inside);
    if (first == held_.end()) return {};
    const auto others = std::count_if(first + 1, held_.end(), inside);
    return {Code::BatchBusy,
            "in quarantine: " + first->entry.toString(now) +
                (others == 0 ? "" : "; and " + std::to_string(others) + " more there") +
                ". Do not unmap or reuse it. Try again when it has left (quarantine() lists it), or end the engine"};
}

Quarantined Quarantine::list() const {
    const std::lock_guard lock(mutex_);
    Quarantined all;
    all.ever = ever_;
    all.proven = proven_;
    for (const Held& each : held_) {
        all.bytes += each.entry.range.length;
        all.entries.push_back(each.entry);
    }
    return all;
}

}  // namespace troupe
