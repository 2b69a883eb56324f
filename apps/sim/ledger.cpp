#include "apps/sim/ledger.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace troupe::sim {

namespace {

std::byte pattern(std::uint64_t which, std::uint64_t at) {
    return static_cast<std::byte>(apps::mixBits(which * apps::kGoldenGamma + at / 8) >> (at % 8 * 8));
}

void fillPattern(std::byte* to, std::uint64_t length, std::uint64_t which) {
    for (std::uint64_t i = 0; i < length; ++i) to[i] = pattern(which, i);
}

std::uint64_t unitsOf(std::uint64_t length) { return (length + Ledger::kUnit - 1) / Ledger::kUnit; }

}  // namespace

std::string describe(const TaskRecord& record) {
    return fmt::format("task {} ({} of {} bytes, {} to {})", record.key,
                       record.opcode == Opcode::Read ? "READ" : "WRITE", record.length,
                       static_cast<char>('A' + record.host), static_cast<char>('A' + record.target));
}

Ledger::Ledger(World& world, int hosts) : world_(world), memories_(static_cast<std::size_t>(hosts)) {}

// --- the application's side --------------------------------------------------------------------------------------

void Ledger::processStarted(int host, unsigned start) {
    Memory& self = memory(host);
    self.alive = true;
    self.start = start;
    self.bytes.resize(kBytes);
    fillPattern(self.bytes.data(), kBytes, static_cast<std::uint64_t>(host) << 32 | start);
    self.expected = self.bytes;
    self.claims.assign(kBytes / kUnit, 0);
    self.tainted.assign(kBytes / kUnit, false);
    self.unknown.assign(kBytes, false);
    self.registered.assign(kRegions, false);
}

std::optional<std::uint64_t> Ledger::free(int host, std::uint64_t length, bool known) {
    const Memory& self = memory(host);
    if (!self.alive) return std::nullopt;
    const std::uint64_t units = std::max<std::uint64_t>(unitsOf(length), 1);
    const std::uint64_t total = kBytes / kUnit;
    constexpr int kTries = 12;
    for (int i = 0; i < kTries; ++i) {
        const std::uint64_t first = world_.random().below(total - units + 1);
        bool usable = true;
        for (std::uint64_t unit = first; unit < first + units && usable; ++unit)
            usable = self.claims[unit] == 0 && !self.tainted[unit] && self.registered[unit * kUnit / kRegionBytes];
        if (usable && known) {
            const auto from = self.unknown.begin() + static_cast<std::ptrdiff_t>(first * kUnit);
            usable = std::find(from, from + static_cast<std::ptrdiff_t>(length), true) ==
                     from + static_cast<std::ptrdiff_t>(length);
        }
        if (usable) return baseOf(host) + first * kUnit;
    }
    return std::nullopt;
}

void Ledger::claim(int host, std::uint64_t addr, std::uint64_t length, std::uint64_t key) {
    const std::size_t first = offset(host, addr) / kUnit;
    const std::size_t last = (offset(host, addr) + length - 1) / kUnit;
    for (std::size_t unit = first; unit <= last; ++unit) memory(host).claims[unit] = key;
}

void Ledger::release(int host, std::uint64_t addr, std::uint64_t length, std::uint64_t key) {
    const std::size_t first = offset(host, addr) / kUnit;
    const std::size_t last = (offset(host, addr) + length - 1) / kUnit;
    for (std::size_t unit = first; unit <= last; ++unit)
        if (memory(host).claims[unit] == key) memory(host).claims[unit] = 0;
}

TaskRecord& Ledger::add(TaskRecord record) {
    auto owned = std::make_unique<TaskRecord>(std::move(record));
    TaskRecord& task = *owned;
    tasks_.emplace(task.key, std::move(owned));
    if (task.length == 0) return task;
    claim(task.host, task.local, task.length, task.key);
    claim(task.target, task.remote, task.length, task.key);
    std::byte* const local = memory(task.host).bytes.data() + offset(task.host, task.local);
    fillPattern(local, task.length, task.key << 20);
    if (task.opcode == Opcode::Read) {
        const auto* from = memory(task.target).expected.data() + offset(task.target, task.remote);
        task.wanted.assign(from, from + task.length);
    }
    return task;
}

void Ledger::ended(TaskRecord& task) {
    const TransferStatus& status = task.last;
    const bool completed = status.s == TransferStatusEnum::COMPLETED;
    if (completed && !status.quiesced) world_.fail(describe(task) + " is COMPLETED and not quiesced");
    if (completed && status.transferred_bytes != task.length)
        world_.fail(fmt::format("{} is COMPLETED with {} bytes", describe(task), status.transferred_bytes));
    if (!completed && status.error.isOk()) world_.fail(describe(task) + " failed without a cause");
    if (status.error.code() == Code::Internal)
        world_.fail(describe(task) + " ended by a defect: " + status.error.toString());
    if (task.length == 0) return;
    Memory& mine = memory(task.host);
    std::byte* const local = mine.bytes.data() + offset(task.host, task.local);
    const bool same_target = alive(task.target, task.target_start);
    if (completed && task.opcode == Opcode::Read && !std::equal(local, local + task.length, task.wanted.begin()))
        world_.fail(describe(task) + " is COMPLETED and its destination has other bytes than the peer's memory");
    if (same_target) {
        Memory& theirs = memory(task.target);
        const std::size_t at = offset(task.target, task.remote);
        if (completed && task.opcode == Opcode::Write) {
            if (!std::equal(local, local + task.length, theirs.bytes.begin() + static_cast<std::ptrdiff_t>(at)))
                world_.fail(describe(task) + " is COMPLETED and its bytes are not in the peer's memory");
            std::copy_n(local, task.length, theirs.expected.begin() + static_cast<std::ptrdiff_t>(at));
            setUnknown(task.target, task.remote, task.length, false);
        } else if (!completed && task.opcode == Opcode::Write) {
            // The next WRITE there is to find nothing of this one on its way, if that was said.
            world_.count(task.lingers ? "failed_writes_left" : "failed_writes_fenced");
            setUnknown(task.target, task.remote, task.length, true);
            if (task.lingers) taint(task);
        }
        release(task.target, task.remote, task.length, task.key);
    }
    // Not quiesced: its buffer is nobody's before it has left quarantine.
    if (!status.quiesced) {
        world_.count("tasks_not_quiesced");
        return;
    }
    localIsFree(task);
}

void Ledger::localIsFree(const TaskRecord& task) {
    Memory& mine = memory(task.host);
    std::byte* const local = mine.bytes.data() + offset(task.host, task.local);
    fillPattern(local, task.length, task.key << 20 | 1);
    std::copy_n(local, task.length, mine.expected.begin() + static_cast<std::ptrdiff_t>(offset(task.host, task.local)));
    setUnknown(task.host, task.local, task.length, false);
    release(task.host, task.local, task.length, task.key);
}

void Ledger::initiatorGone(TaskRecord& task) {
    if (task.terminal()) return;
    task.last.s = TransferStatusEnum::CANCELED;
    // A WRITE may have been sent before its sender died, and nobody will tell.
    task.lingers = true;
    if (task.length == 0 || !alive(task.target, task.target_start)) return;
    if (task.opcode == Opcode::Write) {
        setUnknown(task.target, task.remote, task.length, true);
        taint(task);
    }
    release(task.target, task.remote, task.length, task.key);
}

void Ledger::taint(const TaskRecord& task) {
    const std::size_t at = offset(task.target, task.remote);
    for (std::size_t unit = at / kUnit; unit <= (at + task.length - 1) / kUnit; ++unit)
        memory(task.target).tainted[unit] = true;
}

void Ledger::setUnknown(int host, std::uint64_t addr, std::uint64_t length, bool on) {
    const auto from = memory(host).unknown.begin() + static_cast<std::ptrdiff_t>(offset(host, addr));
    std::fill_n(from, length, on);
}

TaskRecord* Ledger::find(std::uint64_t key) {
    const auto found = tasks_.find(key);
    return found == tasks_.end() ? nullptr : found->second.get();
}

void Ledger::compareAll() {
    for (int host = 0; host < static_cast<int>(memories_.size()); ++host) {
        const Memory& self = memory(host);
        if (!self.alive) continue;
        for (std::size_t i = 0; i < kBytes; ++i) {
            if (self.claims[i / kUnit] != 0 || self.unknown[i] || self.bytes[i] == self.expected[i]) continue;
            return world_.fail(fmt::format("byte {} of {}'s memory is not what was written there last", i,
                                           static_cast<char>('A' + host)));
        }
    }
}

// --- the Nics' side ----------------------------------------------------------------------------------------------

bool Ledger::inside(int host, std::uint64_t addr, std::uint64_t length, const char* who) {
    const ByteRange all{baseOf(host), kBytes};
    if (length != 0 && all.contains({addr, length})) return true;
    world_.fail(fmt::format("{} touches {}, which is not memory of {}", who, ByteRange{addr, length}.toString(),
                            static_cast<char>('A' + host)));
    return false;
}

void Ledger::mayLinger(int host, const ByteRange& local) {
    // A part may be of several tasks, which were merged.
    for (std::uint64_t at = local.addr; at < local.addr + local.length; at += kUnit - at % kUnit)
        if (TaskRecord* const task = find(ownerOf(host, at)); task != nullptr && task->host == host)
            task->lingers = true;
}

std::uint64_t Ledger::ownerOf(int host, std::uint64_t local) const {
    const ByteRange all{baseOf(host), kBytes};
    return all.contains({local, 1}) ? memory(host).claims[offset(host, local) / kUnit] : 0;
}

bool Ledger::mayTouchLocal(int host, std::uint64_t addr, std::uint64_t length, const char* what) {
    if (!inside(host, addr, length, what)) return false;
    const Memory& self = memory(host);
    for (std::uint64_t at = addr; at < addr + length; at += kUnit - at % kUnit) {
        const std::uint64_t key = self.claims[offset(host, at) / kUnit];
        const TaskRecord* const task = key == 0 ? nullptr : find(key);
        if (task == nullptr || task->host != host) {
            world_.fail(fmt::format("{}: the buffer at {} of {} belongs to no task any more", what, hexAddress(at),
                                    static_cast<char>('A' + host)));
            return false;
        }
        const TransferStatus status = task->status();
        if (isTerminal(status.s) && status.quiesced) {
            world_.fail(fmt::format("{} after {} was {}, and quiesced", what, describe(*task), toString(status.s)));
            return false;
        }
        if (!self.registered[offset(host, at) / kRegionBytes]) {
            world_.fail(fmt::format("{} of {} after its region was unregistered", what, describe(*task)));
            return false;
        }
    }
    return true;
}

std::vector<std::byte> Ledger::readLocal(int host, std::uint64_t addr, std::uint64_t length) {
    if (!mayTouchLocal(host, addr, length, "a source was read")) return std::vector<std::byte>(length);
    const auto* from = memory(host).bytes.data() + offset(host, addr);
    return {from, from + length};
}

void Ledger::writeLocal(int host, std::uint64_t addr, const std::vector<std::byte>& bytes) {
    if (!mayTouchLocal(host, addr, bytes.size(), "a destination was written")) return;
    std::copy(bytes.begin(), bytes.end(), memory(host).bytes.begin() + static_cast<std::ptrdiff_t>(offset(host, addr)));
}

bool Ledger::mayTouchServed(int host, std::uint64_t addr, std::uint64_t length, std::uint64_t key, const char* what) {
    if (!inside(host, addr, length, what)) return false;
    const Memory& self = memory(host);
    for (std::uint64_t at = addr; at < addr + length; at += kUnit - at % kUnit) {
        if (self.registered[offset(host, at) / kRegionBytes]) continue;
        world_.fail(fmt::format("{}: {} of {} was touched for a peer after its region was unregistered", what,
                                hexAddress(at), static_cast<char>('A' + host)));
        return false;
    }
    const TaskRecord* const task = find(key);
    if (task == nullptr) return true;
    if (task->target == host && task->target_start < self.start) {
        world_.fail(fmt::format("{}: {}, meant for start {} of its target, was served by start {}", what,
                                describe(*task), task->target_start, self.start));
        return false;
    }
    return true;
}

std::vector<std::byte> Ledger::readServed(int host, std::uint64_t addr, std::uint64_t length, std::uint64_t task) {
    if (!mayTouchServed(host, addr, length, task, "a READ")) return std::vector<std::byte>(length);
    const auto* from = memory(host).bytes.data() + offset(host, addr);
    return {from, from + length};
}

void Ledger::writeServed(int host, std::uint64_t addr, const std::byte* bytes, std::uint64_t length,
                         std::uint64_t key) {
    if (!mayTouchServed(host, addr, length, key, "a WRITE")) return;
    const TaskRecord* const task = find(key);
    if (task != nullptr && task->status().s == TransferStatusEnum::COMPLETED) {
        world_.fail("bytes of " + describe(*task) + " were written once more after it was COMPLETED");
        return;
    }
    if (task != nullptr && isTerminal(task->status().s) && !task->lingers) {
        world_.fail(
            fmt::format("bytes of {} were written after it had ended ({}), and nothing of it was said to be left",
                        describe(*task), toString(task->status().s)));
        return;
    }
    std::copy_n(bytes, length, memory(host).bytes.begin() + static_cast<std::ptrdiff_t>(offset(host, addr)));
}

}  // namespace troupe::sim
