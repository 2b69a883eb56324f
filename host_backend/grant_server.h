#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/rare_word.h"
#include "base/snapshot.h"
#include "host_backend/host_shared.h"
#include "host_backend/links.h"
#include "host_backend/process_handle.h"
#include "host_backend/socket.h"
#include "security/refusal_log.h"
#include "transports/nic.h"

namespace troupe::host {

/// The owner's side: lets processes of this host in, grants them regions, and takes the grants back.
///
/// A grant is out until its holder has said that it let go, has closed its connection (which it does only when it does
/// not use them any more, and which the kernel does for a process once all of its threads are gone), or is proven gone
/// by its pidfd. Owned by one HostNic; every call on its loop's turn.
class GrantServer {
  public:
    /// `listener` listens at `shared.socket`. Both references outlive it.
    GrantServer(const HostShared& shared, Links& links, UniqueFd listener);
    /// Unless it was closed to peers, whose owner has waited then: revokes everything and waits, a bounded time, until
    /// nobody holds a grant. Logs who still does.
    ~GrantServer();

    Status open();

    bool onEvent(const Link& link, TimePoint now);
    /// Ends connections that closed during the events. Call after them.
    void bury();
    void runTimers(TimePoint now);
    TimePoint nextDeadline() const { return next_deadline_; }

    /// Nobody comes in or is given anything until openToPeers, and everything is revoked.
    void closeToPeers();
    void openToPeers() { closed_ = false; }
    void revokeIn(const RangeSet& ranges);
    bool holdsIn(const ByteRange& range) const;
    /// Ok, or BatchBusy with the region and the process that holds it.
    Status heldIn(const ByteRange& range) const;

    /// What was asked back and has not been let go of.
    std::vector<Nic::Holding> holdingsIn(const ByteRange& range) const;

    std::size_t connections() const { return connections_.size(); }
    std::size_t grants() const;

  private:
    struct Held {
        ByteRange range;
        bool granted = false;       ///< The initiator may use it, as far as it knows.
        std::uint32_t revokes = 0;  ///< Sent and not acknowledged.
    };
    struct Connection {
        enum class State {
            Greeting,
            Challenged,
            Welcomed,
            Serving,
            Condemned,  ///< Not talked to any more, but it may still use what it holds.
            Closed,
        };
        explicit Connection(UniqueFd with);
        State state = State::Greeting;
        UniqueFd socket;
        std::unique_ptr<ProcessHandle> process;
        Link socket_link;
        Link process_link;
        std::uint32_t interest = 0;  ///< Events that its socket is watched for.
        TimePoint deadline;          ///< Until it serves.
        std::uint64_t nonce = 0;
        Incarnation initiator;
        Incarnation meant;                             ///< Whom its Hello was for.
        std::unordered_map<std::uint64_t, Held> held;  ///< By region.
        /// Frames that found no room, with descriptors of their own: a region may be gone when their turn comes.
        std::deque<std::pair<Packet, UniqueFd>> unsent;
        Packet hello;  ///< With a cluster key, until it is welcomed.
        Packet challenge;
        bool greets() const {
            return state == State::Greeting || state == State::Challenged || state == State::Welcomed;
        }
        bool mayHold() const { return state == State::Serving || state == State::Condemned; }
    };

    bool acceptAll(TimePoint now);
    void admit(UniqueFd socket, TimePoint now);
    bool serve(Connection& connection);
    void onFrame(Connection& connection, const Frame& frame, const Packet& packet);
    void onHello(Connection& connection, const Hello& hello, const Packet& packet);
    void onProof(Connection& connection, const KeyProof& proof);
    void welcome(Connection& connection);
    void sendProven(Connection& connection, const Frame& frame);
    void refuseKey(Connection& connection, AuthRefusal why, const Status& said);
    bool allMapped();
    void onRequest(Connection& connection, const GrantRequest& request);
    void grantDevice(Connection& connection, const GrantRequest& request, const Region& region);
    void onAck(Connection& connection, const RevokeAck& ack);
    void revoke(Connection& connection, const RangeSet& ranges);
    void refuse(Connection& connection, const Status& why);
    void send(Connection& connection, const Frame& frame, int descriptor = -1);
    void sendEncoded(Connection& connection, const Packet& packet, int descriptor);
    bool flush(Connection& connection);
    void watch(Connection& connection);
    /// The other end is gone, or holds nothing.
    void close(Connection& connection, const std::string& why);
    /// It broke the rules. What it holds it holds until it closes its end or dies.
    void condemn(Connection& connection, const std::string& why);
    void sayCondemned(const Connection& connection, const std::string& why);
    void awaitRelease();

    const HostShared& shared_;
    Links& links_;
    SnapshotReader<RegionMap> regions_;
    UniqueFd listener_;
    Link listener_link_;
    std::vector<std::unique_ptr<Connection>> connections_;
    std::size_t greeting_ = 0;  ///< Connections that do not serve yet.
    bool closed_ = false;       ///< To peers.
    bool anyone_closed_ = false;
    TimePoint next_deadline_ = kForever;
    TimePoint accept_again_ = kForever;
    std::shared_ptr<const RegionMap> looked_at_;  ///< What all_mapped_ is about.
    bool all_mapped_ = false;
    RareWord condemned_word_;
    RareWord accept_word_;
    RefusalLog refusals_;
    std::mt19937_64 random_;
};

}  // namespace troupe::host
