#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/hosted_actor.h"
#include "actors/local_publisher.h"
#include "actors/remote_faults.h"
#include "actors/route_search.h"
#include "actors/segment_board.h"
#include "actors/segment_ids.h"
#include "base/config.h"
#include "messages/control_plane.h"
#include "messages/data_plane.h"
#include "metadata/metadata_store.h"
#include "security/cluster_auth.h"
#include "transports/registration_table.h"

namespace troupe {

/// Knows every segment: the local one, which it describes and publishes, and the open remote ones, for each of which it
/// keeps a PeerMonitor. Tells trackers and workers which peers may be used through which Nics, and callers through the
/// SegmentBoard. Lives on the control loop.
class SegmentDirectory final : public HostedActor {
  public:
    struct Local {
        std::string name;
        Incarnation incarnation;
        std::string boot_id;
        Endpoint control;  ///< Advertised, numeric host.
        PriorityMatrix matrix;
        std::shared_ptr<const ClusterAuth> auth;  ///< Null: no key.
    };

    /// `store` is null with p2p: a segment's name is then its control endpoint.
    SegmentDirectory(caf::actor_config& config, Loop& loop, Local local, std::unique_ptr<MetadataStore> store,
                     const RegistrationTable& regions, SegmentBoard& board, const Config& settings, Logger log);

    const char* name() const override { return "troupe.segment_directory"; }

    /// The local descriptor as of now, without its version.
    static SegmentDesc describe(const Local& local, const RegionMap& regions,
                                const std::vector<InstalledTransport>& transports);

  protected:
    caf::behavior make_behavior() override;
    void atEnd() override;

  private:
    struct Waiter {
        TimePoint deadline;
        std::function<void(Status)> reply;
    };
    /// The way to one segment: what is in use, and the search for a better one.
    struct Routing {
        std::unique_ptr<RouteSearch> search;
        std::shared_ptr<const SegmentDesc> searched;  ///< What the search, or the route, is about.
        std::optional<Route> route;                   ///< In use.
        std::string told;                             ///< What the log has about it.
        bool looking_again = false;                   ///< The search is about what `route` is about already.
        Reactor::TimerId look_again = 0;  ///< While no transport reaches it, or a better one gave no answer.
        Duration pause{};                 ///< Before the last look; 0: there was none.

        /// What is in use is about the peer as it was described last.
        bool isSettled() const { return route && (!search || looking_again); }
    };
    struct Entry {
        std::string name;
        std::uint32_t index = 0;
        SegmentID id = kInvalidSegmentID;
        std::uint32_t opens = 0;  ///< Successful openSegment calls not yet closed.
        caf::actor monitor;
        Incarnation expect;                ///< What the store said; null with p2p.
        std::shared_ptr<const Peer> peer;  ///< Null until described.
        Routing routing;
        PeerState state = PeerState::Unknown;
        bool dropped = false;  ///< Since it went down trackers and workers know.
        TimePoint heard{};     ///< When its control connection last brought something about it.
        Status trouble;        ///< Why that was lost, or not made, the last time.
        TimePoint troubled_at{};
        std::vector<Waiter> opening;
        std::vector<Waiter> syncing;
        Reactor::TimerId timer = 0;
        Reactor::TimerId restart = 0;  ///< Of a monitor that ended by a defect.
        std::uint32_t defects = 0;     ///< Monitors that did.
        bool outdated = false;         ///< As of the last PeerDescribed.
        bool looked_again = false;     ///< The store was asked once more after another incarnation answered.
        bool looking = false;          ///< The store is being asked whose record it has.
        TimePoint next_look{};         ///< Not before.
    };

    // Callers.
    void open(const OpenSegment& request);
    void close(const CloseSegment& request);
    void sync(const SyncSegments& request);
    void probe(const ProbePeer& request);
    void ask(const AskPeer& request);
    void answerPeer(const AnswerPeer& request);

    // Entries.
    void begin(Entry& entry);
    void startMonitor(Entry& entry, const Endpoint& control);
    void monitorEnded(const caf::down_msg& down);
    void restartMonitor(Entry& entry);
    void described(const PeerDescribed& event);
    void connecting(const PeerConnecting& event);
    void troubled(const PeerTrouble& event);
    void suspect(const SuspectPeer& event);
    void answer(std::vector<Waiter>& waiters, const Status& status);
    void armTimer(Entry& entry);
    void expire(Entry& entry);
    void removeUnused(std::uint32_t index);
    Entry* find(std::uint32_t index);
    Entry* findId(SegmentID id);

    // The store: segment_directory_store.cpp.
    void beginWithStore();
    void resolveInStore(Entry& entry);
    void resolved(Entry& entry, const Result<SegmentDesc>& desc);
    void storeChanged(const SegmentEvent& event);
    void look(Entry& entry);
    void looked(Entry& entry, const RecordHead& head);
    void lookAtAll();
    void lookAtNext();
    void endPublishing();

    // Routes: segment_directory_routes.cpp.
    void transportsChanged(const TransportsChanged& change);
    bool isInstalled(std::uint32_t worker) const;
    std::vector<std::uint32_t> remoteIndices() const;
    void findRoute(Entry& entry);
    void search(Entry& entry, bool again);
    void routeFound(Entry& entry, Route route);
    void tellRoute(Entry& entry);
    void useRoute(SegmentID id, const std::shared_ptr<const Peer>& peer, const Route& route);
    std::string whyUnreached(const Peer& peer, const RouteExplanation& explanation) const;
    void nowOpen(Entry& entry);
    void lookAgain(Entry& entry);
    void explain(const ExplainSegment& request);
    void nameCarriers(std::uint64_t carriers, RouteExplanation& explanation) const;
    std::vector<RouteExplanation::Way> waysOf(std::uint64_t workers) const;
    RouteExplanation::Ending describeEnding(const ExplainSegment& request) const;
    RouteExplanation::Owner describeOwner(const Entry& entry) const;
    void tellDataPlane(const DropPeer& drop);
    void announce(const Entry& entry, const Status& cause);
    void turn(Entry& entry, PeerState state, const Status& cause = {});

    // The local segment.
    const SegmentDesc& localDesc();
    void routeLocal();
    void describeLocal(const DescribeLocal& request);
    void publishLocal(const PublishLocal& request);
    void describedAnew();

    const Local local_;
    std::unique_ptr<MetadataStore> store_;
    const RegistrationTable& regions_;
    SegmentBoard& board_;
    const Config& settings_;

    std::map<std::uint32_t, std::unique_ptr<Entry>> entries_;  ///< By peer index.
    std::unordered_map<std::string, std::uint32_t> by_name_;
    SegmentIds ids_;
    std::vector<InstalledTransport> transports_;  ///< Best first.
    DataPlane data_plane_;
    std::vector<caf::actor> subscribers_;

    SegmentDesc local_desc_;
    std::uint64_t described_regions_ = 0;  ///< Version of the region snapshot in local_desc_.
    RouteExplanation local_route_;
    bool transports_dirty_ = true;
    std::shared_ptr<const std::string> local_json_;  ///< Of local_desc_; null: not encoded yet.

    std::unique_ptr<RemoteFaults> remote_faults_;
    std::unique_ptr<LocalPublisher> publisher_;  ///< With a store only.
    std::deque<std::uint32_t> to_look_at_;       ///< Entries whose records may have changed unheard.
    std::size_t looks_ = 0;                      ///< Of those, under way.
    bool ending_ = false;
    Incarnation taken_by_;  ///< The incarnation that the log said has our name in the store.
    Reactor::TimerId withdraw_timer_ = 0;
};

}  // namespace troupe
