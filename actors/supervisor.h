#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/batch.h"
#include "actors/control_server.h"
#include "actors/hosted_actor.h"
#include "actors/quarantine.h"
#include "actors/segment_directory.h"
#include "base/status.h"
#include "base/stream.h"
#include "messages/control_plane.h"
#include "messages/data_plane.h"

namespace troupe {

/// The engine's root actor: spawns the others, watches them, and ends them in order. Lives on the control loop.
///
/// The ControlServer is restarted when it ends by a defect, with a growing pause. The directory, the trackers and the
/// workers hold what cannot be made anew (open segments, running tasks): when one of them ends by itself, the others
/// end with it, first the workers, whose Nics then touch no buffer any more, and every running task, so that nobody
/// waits for ever. So it is when the Supervisor itself ends by a defect.
class Supervisor final : public HostedActor {
  public:
    struct Plan {
        Loop* control_loop = nullptr;
        std::vector<Loop*> data_loops;
        SegmentDirectory::Local local;
        std::unique_ptr<MetadataStore> store;
        std::shared_ptr<Listener> listener;  ///< Of the control port; closed when the Supervisor ends.
        const RegistrationTable* regions = nullptr;
        const BatchTable* batches = nullptr;
        SegmentBoard* board = nullptr;
        Quarantine* quarantine = nullptr;
        const Config* settings = nullptr;
        /// When all actors are gone, this one last. Not Ok: another process may still touch registered memory.
        std::function<void(const Status&)> on_ended;
        std::function<void(const Status&)> on_fatal;  ///< A data-plane actor ended by a defect: refuse new work.
        std::function<void(const Status&)> on_data_plane_gone;  ///< After on_fatal: no Nic or tracker is left.
    };

    Supervisor(caf::actor_config& config, Loop& loop, Plan plan, Logger log);
    ~Supervisor() override;

    const char* name() const override { return "troupe.supervisor"; }

    /// Handles of the actors that others talk to directly; valid from construction.
    const std::vector<caf::actor>& trackers() const { return trackers_; }
    const caf::actor& directory() const { return directory_; }
    /// By index, null where one has left; others come with transports. On the turn, or where no loop runs.
    const std::vector<caf::actor>& workers() const { return workers_; }

  protected:
    caf::behavior make_behavior() override;
    void atEnd() override;

  private:
    void startControlServer();
    void install(const InstallTransport& request);
    void uninstall(const UninstallTransport& request);
    void remove(const std::vector<std::uint32_t>& leaving, std::function<void(Status)> removed);
    /// Lets no peer in at these workers any more, and hands `closed` Ok or who still holds something at the deadline.
    void closeToPeers(const std::vector<std::uint32_t>& workers, TimePoint deadline,
                      std::function<void(const Status&)> closed);
    template <class Ask>
    void askWorkers(const std::vector<std::uint32_t>& workers, Ask&& ask, std::function<void(const Status&)> answered);
    std::vector<std::uint32_t> allWorkers() const;
    void afterFlights(const std::vector<std::uint32_t>& workers, std::function<void()> reached);
    void endWorkers(const std::vector<std::uint32_t>& leaving, std::function<void()> gone);
    void afterDirectory(std::function<void(Status)> reached);
    /// Calls `reached` once every tracker has handled what was sent to it before.
    void afterTrackers(std::function<void()> reached);
    void tellDirectory();
    void quiesce(const QuiesceRanges& request);
    void quiescePeers(const QuiesceRanges& request);
    void shutDown(const Shutdown& request);
    void releasePeers();
    void endActors();
    void ended(const caf::down_msg& down);
    void afterEnds(const std::vector<caf::actor>& actors, std::function<void()> gone);
    /// First the Nics, then the trackers; then `gone` is called.
    void endDataPlane(const Status& cause, std::function<void()> gone);
    void endWithAll();
    void letGo();

    Plan plan_;
    caf::actor directory_;
    caf::actor control_server_;
    std::vector<caf::actor> trackers_;
    std::vector<caf::actor> workers_;  ///< By index; null where one has left.
    std::vector<caf::actor> leaving_;  ///< That were told to end and have not yet.
    std::vector<InstalledTransport> transports_;
    std::size_t alive_ = 0;  ///< Children that have not ended.
    bool ending_ = false;
    bool releasing_ = false;
    Status held_;  ///< Of the end: who still holds memory.
    bool actors_told_ = false;
    bool failed_ = false;
    std::uint32_t server_failures_ = 0;
    Reactor::TimerId restart_timer_ = 0;
    Reactor::TimerId drain_timer_ = 0;
    Reactor::TimerId release_timer_ = 0;
};

}  // namespace troupe
