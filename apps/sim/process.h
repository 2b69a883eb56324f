#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <caf/actor.hpp>

#include "actors/batch.h"
#include "actors/quarantine.h"
#include "actors/segment_board.h"
#include "actors/supervisor.h"
#include "apps/sim/ledger.h"
#include "apps/sim/network.h"
#include "apps/sim/sim_loop.h"
#include "apps/sim/sim_nic.h"
#include "apps/sim/sim_store.h"
#include "base/config.h"
#include "transports/registration_table.h"

namespace troupe::sim {

/// What all processes of a simulation share, and how they are made.
struct Site {
    caf::actor_system* system = nullptr;
    World* world = nullptr;
    Network* network = nullptr;
    Ledger* ledger = nullptr;
    std::shared_ptr<InprocDirectory> store;  ///< Null: p2p.
    Config config;
    unsigned data_loops = 1;
    std::vector<NicCharacter> characters;  ///< By data loop; of the second transport, if there is one, after those.
    Random* changes = nullptr;             ///< When transports are uninstalled and installed; null: never.
    std::vector<bool> stays = {};          ///< By transport: it is never uninstalled.
};

/// One start of an engine on a host: the loops, the tables and the actors that TransferEngine puts together, in the
/// same order and with the same calls, but without its threads and locks.
class Process {
  public:
    Process(const Site& site, int host, unsigned start);
    ~Process();
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    // --- what an application calls; answers come through the loops ---------------------------------------------------

    void registerRegion(unsigned region);
    /// Its answer is in the ledger.
    void unregisterRegion(unsigned region);
    bool regionBusy(unsigned region) const { return removing_[region]; }
    void open(const std::string& name, std::function<void(Result<SegmentID>)> reply);
    void close(SegmentID segment, std::function<void(Status)> reply);
    void probe(SegmentID segment, std::function<void(Status)> reply);
    void publish(std::function<void(Status)> reply);
    void submit(const SubmitTasks& tasks, std::uint32_t tracker);
    void endTasks(const EndTasks& request, std::uint32_t tracker);
    /// The engine ends as by freeEngine.
    void shutDown();
    /// As uninstallTransport and installTransport, of one of `transports`. While one of them, or an unregister, is
    /// under way, a call would wait for it.
    bool mayChangeTransports() const;
    void uninstall(std::size_t which, std::function<void(Status)> reply);
    /// `refusals`: percent of the regions that it does not take; without one of them it is not installed.
    void install(std::size_t which, unsigned refusals, std::function<void(Status)> reply);
    /// The workers of a transport that is installed, as Task::workers has them.
    std::uint64_t workersOf(std::size_t which) const { return workers_of_[which]; }
    /// Task::workers tells no more of them apart.
    bool installedOften() const { return workers_ + 2 * site_.data_loops > 62; }

    // --- the simulation's side -----------------------------------------------------------------------------------

    /// The process is no more: what it was in the middle of goes nowhere. `power`: its kernel lives and closes its
    /// streams. Its actors are then ended where nobody hears them, and have to end in time.
    void kill(bool power);
    bool ended() const { return ended_; }
    bool ready() const { return installed_ == transports.size(); }
    /// Nothing of a transfer is left anywhere.
    void checkNothingLeft();
    /// A Nic of it has a path to another host.
    bool hasPaths() const;
    /// After a step of one of its loops: no tracker there has sent more than it may, and one without tasks has got back
    /// all that its paths carried.
    void checkCredit(const SimLoop& loop);
    /// What the Nics could not prove, no more and no less, is in quarantine.
    void checkQuarantine();
    void stopFor(Duration span);

    Seat seat;
    const unsigned start;
    Incarnation incarnation;
    std::string name;
    RegistrationTable regions;
    std::unique_ptr<Quarantine> quarantine;  ///< From construction on.
    SegmentBoard board;
    BatchTable batches{4096};
    std::vector<SimNic*> nics;
    std::vector<std::shared_ptr<SimTransport>> transports;  ///< Best first; null: uninstalled.
    /// The application hears that a peer is down some time after the directory has told trackers and workers.
    struct Down {
        TimePoint told_after{};  ///< Trackers and workers.
        TimePoint heard{};
    };
    std::map<SegmentID, Down> last_down;  ///< Of peers: the last time that the application heard it.
    std::map<SegmentID, bool> up;         ///< Peers that it was told are up.
    std::uint32_t trackers() const { return static_cast<std::uint32_t>(trackers_.size()); }
    SimLoop& dataLoop(std::uint32_t index) { return *data_loops_[index]; }
    SimLoop& controlLoop() { return *control_loop_; }
    const Config& config() const { return site_.config; }

  private:
    template <class Message>
    void hand(std::uint32_t tracker, Message message);
    void claimName();
    std::shared_ptr<SimTransport> makeTransport(std::size_t which);
    void handOver(std::size_t which, std::shared_ptr<SimTransport> transport, std::function<void(Status)> reply);
    void expectGone(std::size_t which);
    void runToTheEnd();
    void die();

    const Site& site_;
    Logger log_;
    std::unique_ptr<SimLoop> control_loop_;
    std::vector<std::unique_ptr<SimLoop>> data_loops_;
    SimStore::Link store_;
    caf::actor ear_;  ///< Hears PeerEvents.
    caf::actor supervisor_;
    const Supervisor* root_ = nullptr;  ///< The same.
    caf::actor directory_;
    std::vector<caf::actor> trackers_;
    std::size_t installed_ = 0;
    bool ended_ = false;
    bool killed_ = false;
    std::vector<bool> removing_;
    unsigned refused_ = 0;   ///< Times that its name was another's.
    bool changing_ = false;  ///< A transport is being installed or uninstalled.
    std::vector<unsigned> installs_;
    std::vector<std::uint64_t> workers_of_;
    unsigned workers_ = 0;  ///< That there ever were.
};

}  // namespace troupe::sim
