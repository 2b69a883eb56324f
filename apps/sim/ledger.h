#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/batch.h"
#include "apps/sim/network.h"
#include "apps/sim/world.h"
#include "base/byte_range.h"

namespace troupe::sim {

/// What the simulation knows of one task, and the engine does not.
struct TaskRecord {
    std::uint64_t key = 0;
    int host = 0;        ///< Of the initiator.
    unsigned start = 0;  ///< Which start of it.
    const Batch* batch = nullptr;
    std::uint32_t index = 0;
    Opcode opcode = Opcode::Read;
    std::uint64_t local = 0;
    std::uint64_t remote = 0;
    std::uint64_t length = 0;
    int target = 0;             ///< Host.
    unsigned target_start = 0;  ///< The latest start of the target when it was submitted: a later one is not meant.
    TimePoint submitted{};      ///< True time.
    TimePoint deadline{};       ///< True time by which it must be over, all allowances made.
    bool peer_was_up = false;
    std::vector<std::byte> wanted;  ///< Of a READ.
    /// Of a WRITE: a Nic gave a part of it back and did not say that nothing of it is on its way any more, or its
    /// process died. Else nothing of it is written once it has ended.
    bool lingers = false;
    TransferStatus last;  ///< What the application saw last; once that is terminal, its batch may be gone.

    bool terminal() const { return isTerminal(last.s); }
    TransferStatus status() const { return terminal() ? last : batch->taskStatus(index); }
};

/// The memory of all processes and who may touch what of it. Addresses are none of the simulator's own process, so that
/// a stray copy faults; the bytes are reached by Nics through the functions here, each of which checks that it may.
class Ledger {
  public:
    static constexpr std::uint64_t kUnit = 64;  ///< What is claimed, at least.
    static constexpr std::uint64_t kRegionBytes = 8192;
    static constexpr unsigned kRegions = 8;
    static constexpr std::uint64_t kBytes = kRegions * kRegionBytes;

    Ledger(World& world, int hosts);

    static std::uint64_t baseOf(int host) { return (1ull << 52) + (static_cast<std::uint64_t>(host + 1) << 32); }
    static ByteRange region(int host, unsigned index) { return {baseOf(host) + index * kRegionBytes, kRegionBytes}; }

    // --- the application's side ------------------------------------------------------------------------------------

    /// The process on `host` starts, or starts again, with other bytes at the same addresses.
    void processStarted(int host, unsigned start);
    void processGone(int host) { memory(host).alive = false; }
    bool alive(int host, unsigned start) const { return memory(host).alive && memory(host).start == start; }
    unsigned latestStart(int host) const { return memory(host).start; }
    void setRegistered(int host, unsigned region, bool on) { memory(host).registered[region] = on; }
    bool registered(int host, unsigned region) const { return memory(host).registered[region]; }

    /// A range of registered memory that no task uses and where nothing may still arrive, with `known` only one whose
    /// bytes are known; nothing when there is none.
    std::optional<std::uint64_t> free(int host, std::uint64_t length, bool known);
    /// The task is about to be submitted: claims its ranges, and gives its source or destination its bytes.
    TaskRecord& add(TaskRecord record);
    /// The application sees its end, which is in `last`.
    void ended(TaskRecord& record);
    /// Its buffer is the application's again, which uses it at once.
    void localIsFree(const TaskRecord& record);
    /// The initiator is gone, and with it what it claimed of its own memory.
    void initiatorGone(TaskRecord& record);
    TaskRecord* find(std::uint64_t key);
    std::map<std::uint64_t, std::unique_ptr<TaskRecord>>& tasks() { return tasks_; }

    /// Every byte that is known is as it should be.
    void compareAll();

    // --- the Nics' side --------------------------------------------------------------------------------------------

    /// A Nic gives this part of a WRITE back, or ends with it, and bytes of it may still arrive at the peer.
    void mayLinger(int host, const ByteRange& local);
    /// The key of the task whose local range this is; 0: nobody's.
    std::uint64_t ownerOf(int host, std::uint64_t local) const;
    /// The initiator's Nic reads its source or writes its destination.
    std::vector<std::byte> readLocal(int host, std::uint64_t addr, std::uint64_t length);
    void writeLocal(int host, std::uint64_t addr, const std::vector<std::byte>& bytes);
    /// A target's Nic reads or writes the memory it serves, for a task of a peer.
    std::vector<std::byte> readServed(int host, std::uint64_t addr, std::uint64_t length, std::uint64_t task);
    void writeServed(int host, std::uint64_t addr, const std::byte* bytes, std::uint64_t length, std::uint64_t task);

  private:
    struct Memory {
        bool alive = false;
        unsigned start = 0;
        std::vector<std::byte> bytes;
        std::vector<std::byte> expected;
        std::vector<std::uint64_t> claims;  ///< By unit: the key of the task that uses it.
        std::vector<bool> tainted;          ///< By unit: a failed WRITE may still arrive there.
        std::vector<bool> unknown;          ///< By byte: a WRITE that failed may have written there.
        std::vector<bool> registered;
    };

    Memory& memory(int host) { return memories_[static_cast<std::size_t>(host)]; }
    const Memory& memory(int host) const { return memories_[static_cast<std::size_t>(host)]; }
    static std::size_t offset(int host, std::uint64_t addr) { return static_cast<std::size_t>(addr - baseOf(host)); }
    void claim(int host, std::uint64_t addr, std::uint64_t length, std::uint64_t key);
    void release(int host, std::uint64_t addr, std::uint64_t length, std::uint64_t key);
    void taint(const TaskRecord& task);
    void setUnknown(int host, std::uint64_t addr, std::uint64_t length, bool on);
    bool inside(int host, std::uint64_t addr, std::uint64_t length, const char* who);
    bool mayTouchLocal(int host, std::uint64_t addr, std::uint64_t length, const char* what);
    bool mayTouchServed(int host, std::uint64_t addr, std::uint64_t length, std::uint64_t task, const char* what);

    World& world_;
    std::vector<Memory> memories_;
    std::map<std::uint64_t, std::unique_ptr<TaskRecord>> tasks_;
};

/// Names for the trace.
std::string describe(const TaskRecord& record);

}  // namespace troupe::sim
