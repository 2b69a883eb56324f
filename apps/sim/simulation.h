#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/sim/process.h"
#include "apps/sim/workload.h"

namespace troupe::sim {

/// What became of one seed.
struct Outcome {
    std::uint64_t seed = 0;
    std::optional<std::string> violation;
    std::uint64_t fingerprint = 0;  ///< Equal in every run of the seed.
    double virtual_seconds = 0;
    std::uint64_t steps = 0;
    std::map<std::string, std::uint64_t> counts;  ///< Faults as "fault_...", and what tasks and calls came to.
    std::string setting;                          ///< How many engines and what they are, in words.
    std::vector<std::string> trace;               ///< Only when asked for.
};

/// Runs one seed. The actor system is only where actors are made; many seeds may share one.
Outcome simulate(caf::actor_system& system, std::uint64_t seed, bool tracing);

enum class Fault {
    Loss,              ///< Packets vanish.
    Duplicate,         ///< Packets come twice.
    Reorder,           ///< Packets overtake each other.
    NicFlap,           ///< A Nic's link goes down and comes back.
    Kill,              ///< A process dies; another starts on its address, now or later.
    PowerLoss,         ///< The same, and nobody is told.
    Restart,           ///< The same, and the other is there at once, but its links are not.
    Pause,             ///< A process stands still.
    Partition,         ///< Two hosts do not reach each other.
    HalfPartition,     ///< One of them does not reach the other.
    SlowPeer,          ///< A process takes many times as long.
    ClockJump,         ///< The clock of a process jumps ahead, as after a suspend.
    StoreOutage,       ///< The store does not answer.
    StoreAmnesia,      ///< It comes back without its records.
    StoreSlow,         ///< It answers late.
    RegistrationFails  ///< The device refuses memory.
};
inline constexpr int kFaults = static_cast<int>(Fault::RegistrationFails) + 1;
/// "kill", "half_partition".
const char* nameOf(Fault fault);

/// Engines on hosts, their applications, and what befalls them.
class Simulation {
  public:
    Simulation(caf::actor_system& system, std::uint64_t seed, bool tracing);
    ~Simulation();
    Outcome run();

  private:
    struct Host {
        std::unique_ptr<Process> process;
        std::unique_ptr<Workload> workload;
        unsigned starts = 0;
    };

    void drawSetting();
    NicCharacter drawCharacter();
    void startProcess(int host);
    void endProcess(int host, bool power);
    int anyHost() { return static_cast<int>(world_.random().below(hosts_.size())); }
    void scheduleAct(int host, unsigned start);
    void scheduleFault();
    void strike(Fault fault);
    void strikePair(Fault fault);
    void strikeStore(Fault fault);
    void silence();
    void restart(int host);
    void heal();
    /// Runs until `reached` holds; a violation when it does not within `bound`.
    void mustReach(const std::string& what, Duration bound, const std::function<bool()>& reached);
    void proveThatAllIsWell();
    void endInOrder();

    World world_;
    Network network_;
    Ledger ledger_;
    Site site_;
    std::vector<Host> hosts_;
    std::vector<std::vector<TimePoint>> deaths_;
    std::vector<Fault> faults_;  ///< That this seed has.
    Duration between_faults_{};
    Random changes_;      ///< Apart from the others, which seeds without such changes draw as they did.
    bool calm_ = false;   ///< From when all heals on.
    bool quiet_ = false;  ///< Applications do nothing, and nothing befalls them.
    std::string setting_;
    const std::uint64_t seed_;
};

}  // namespace troupe::sim
