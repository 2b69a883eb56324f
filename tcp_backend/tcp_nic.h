#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/rare_word.h"
#include "tcp_backend/lane.h"
#include "tcp_backend/server_connection.h"
#include "tcp_backend/shared.h"
#include "transports/nic.h"
#include "transports/transport.h"

namespace troupe::tcp {

/// The TCP connections of one data loop: lanes to peers, connections from peers, and the listener they come in by.
///
/// One owner, no lock, no blocking call. Connections with traffic are tried directly; the others are found by the
/// epoll set, which is looked at now and then, so that a busy pass costs no system call but the transfers.
class TcpNic final : public Nic {
  public:
    /// `listener`: bound and listening. Of `context` the references are kept.
    static Result<std::unique_ptr<TcpNic>> create(const TransportContext& context, std::uint32_t index,
                                                  UniqueFd listener);
    ~TcpNic() override;

    Status shut() override;
    const NicInfo& info() const override { return info_; }
    Result<PathId> openPath(std::shared_ptr<const Peer> peer) override;
    bool isSamePlace(const Peer& was, const Peer& is) const override;
    void closePath(PathId path, const Status& cause) override;
    void resetPath(PathId path, const Status& cause) override;
    std::size_t post(PathId path, std::span<const WorkRequest> requests) override;
    bool poll(TimePoint now, Sweep& sweep) override;
    bool arm() override;
    int waitFd() const override { return shared_.events.fd(); }
    TimePoint nextDeadline() const override { return std::min(next_deadline_, shared_.gpu.nextDeadline()); }
    bool servesPeerIn(const ByteRange& range) const override;
    void cutPeersIn(const ByteRange& range) override;
    Status heldIn(const ByteRange& range) const override;

  private:
    struct Path {
        PathState state;
        std::vector<std::unique_ptr<Lane>> lanes;
        PathId id = 0;
        std::uint32_t block = 0;  ///< Which share of the lane numbers to its target it has.
    };

    TcpNic(const TransportContext& context, std::uint32_t index, UniqueFd listener);

    std::uint16_t portOf(const SegmentDesc& desc) const;
    Path* find(PathId id);
    static Lane& leastBusy(Path& path);
    bool findDevice(const WorkRequest& request, int& device);
    void watchTimer(TimePoint when) { next_deadline_ = std::min(next_deadline_, when); }
    /// Puts a lane that may have something to do on its list.
    void enlist(Lane& lane);
    void forget(Lane& lane);
    /// Ends what a lane has, and has it connect again where that is needed to fence.
    void end(Lane& lane, const Status& cause, bool retryable);
    static bool isUnfenced(const Path& path);

    // tcp_nic_poll.cpp
    bool startPending(TimePoint now, Sweep& sweep);
    void runTimers(TimePoint now, Sweep& sweep);
    bool driveLanes(TimePoint now, Sweep& sweep, bool receive);
    bool driveServers();
    bool lookAtEvents(TimePoint now, Sweep& sweep);
    bool onLaneEvent(Lane& lane, std::uint32_t events, TimePoint now, Sweep& sweep);
    bool onServerEvent(ServerConnection& connection, TimePoint now);
    bool acceptConnections(TimePoint now);
    bool makeRoom(const SocketAddress& from);
    void admit(ServerConnection& connection, TimePoint now);
    bool admitWaiting();
    void makeHot(ServerConnection& connection);
    void bury();
    void forgetFenced();

    Shared shared_;
    NicInfo info_;
    Link listener_{Link::Kind::Listener};
    TimePoint accept_again_ = kForever;  ///< The listener is ignored until then: no descriptors left.
    RareWord accept_word_;

    std::vector<std::unique_ptr<Path>> paths_;    ///< By slot; null where free.
    std::vector<std::unique_ptr<Path>> fencing_;  ///< Closed; what was sent through their lanes is unfenced.
    std::vector<std::uint32_t> slot_uses_;        ///< Makes the ids of a slot's successive paths differ.
    std::vector<Lane*> active_;                   ///< Up, with work.
    std::vector<Lane*> pending_;                  ///< With work or just opened, and not up.
    bool start_pending_ = false;                  ///< One of them is new.
    std::vector<Failure> failures_;               ///< For the next poll.

    std::vector<std::unique_ptr<ServerConnection>> servers_;
    std::vector<ServerConnection*> hot_;       ///< Tried in each pass.
    std::vector<ServerConnection*> greeting_;  ///< In the order they came, so the first ends first.
    std::vector<ServerConnection*> waiting_;   ///< Greeted; a GPU is still given what their predecessors received.
    bool anyone_closed_ = false;               ///< servers_ holds a closed one.
    bool anyone_left_ = false;                 ///< active_ holds a lane that is not up or has no work.

    TimePoint next_deadline_ = kForever;
    unsigned passes_ = 0;  ///< Since the epoll set was looked at.
    TimePoint looked_at_{};
    std::array<epoll_event, 128> events_{};
};

}  // namespace troupe::tcp
