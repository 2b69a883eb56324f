#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "tcp_backend/socket_util.h"
#include "tcp_backend/tcp_nic.h"

namespace troupe::tcp {

namespace {

/// Passes between two looks at the epoll set while there is traffic: a look is a system call too. Not tuned.
constexpr unsigned kPassesPerLook = 16;
/// Between two looks while no connection is busy: the loop may be busy with other Nics, to whose requests each look
/// would add its system call.
constexpr std::chrono::microseconds kLookEveryIdle{10};
/// Passes without anything after which a connection is left to the epoll set; should outlast a round trip. Not tuned.
constexpr unsigned kIdlePasses = 64;
/// With more busy connections than this the epoll set tells which are worth a receive.
constexpr std::size_t kMostDirect = 8;
/// Connections accepted in one pass.
constexpr int kAcceptsPerPass = 16;
/// Pause after the system refused a descriptor for a new connection.
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

bool TcpNic::poll(TimePoint now, Sweep& sweep) {
    bool moved = false;
    shared_.pass_bytes = 0;
    ++shared_.passes;
    if (shared_.gpu.isActive()) [[unlikely]] {
        moved = shared_.gpu.poll(now, sweep);
        if (!waiting_.empty() && admitWaiting()) moved = true;
    }
    if (start_pending_ && startPending(now, sweep)) moved = true;
    if (now >= next_deadline_) {
        runTimers(now, sweep);
        moved = true;
    }
    const bool direct = active_.size() + hot_.size() <= kMostDirect;
    ++passes_;
    const bool idle = active_.empty() && hot_.empty();
    if (idle ? now - looked_at_ >= kLookEveryIdle : !direct || passes_ >= kPassesPerLook) {
        passes_ = 0;
        looked_at_ = now;
        if (lookAtEvents(now, sweep)) moved = true;
    }
    // Who comes first alternates, since the first may use up the pass.
    if ((shared_.passes & 1) != 0) {
        if (driveLanes(now, sweep, direct)) moved = true;
        if (driveServers()) moved = true;
    } else {
        if (driveServers()) moved = true;
        if (driveLanes(now, sweep, direct)) moved = true;
    }
    if (!failures_.empty()) {
        sweep.failed.insert(sweep.failed.end(), std::make_move_iterator(failures_.begin()),
                            std::make_move_iterator(failures_.end()));
        failures_.clear();
        moved = true;
    }
    if (shared_.gpu.isActive()) [[unlikely]]
        shared_.gpu.sift(now, sweep);
    if (anyone_closed_) bury();
    if (!fencing_.empty()) forgetFenced();
    return moved;
}

bool TcpNic::startPending(TimePoint now, Sweep& sweep) {
    start_pending_ = false;
    bool moved = false;
    for (Lane* lane : pending_) {
        if (lane->state() != Lane::State::Idle) continue;
        lane->start(now, sweep.failed);
        if (lane->state() != Lane::State::Idle) moved = true;
        watchTimer(lane->deadline());
    }
    // What failed at once, or was opened during a back-off, waits for the next post.
    std::erase_if(pending_, [](Lane* lane) {
        lane->is_pending = lane->state() != Lane::State::Idle || lane->hasWork();
        return !lane->is_pending;
    });
    return moved;
}

void TcpNic::runTimers(TimePoint now, Sweep& sweep) {
    next_deadline_ = kForever;
    for (Lane* lane : pending_) {
        lane->onTimer(now, sweep.failed);
        watchTimer(lane->deadline());
    }
    std::erase_if(pending_, [](Lane* lane) {
        lane->is_pending = lane->state() != Lane::State::Idle || lane->hasWork();
        return !lane->is_pending;
    });
    for (ServerConnection* server : greeting_) {
        if (server->state() != ServerConnection::State::Greeting) continue;
        if (now < server->deadline()) {
            watchTimer(server->deadline());
            break;  // Later ones have later deadlines.
        }
        server->close("its greeting did not come in time");
        anyone_closed_ = true;
    }
    if (now >= accept_again_) {
        accept_again_ = kForever;
        shared_.events.setInterest(listener_, EPOLLIN);
    }
    watchTimer(accept_again_);
}

bool TcpNic::driveLanes(TimePoint now, Sweep& sweep, bool receive) {
    bool moved = false;
    const std::size_t count = active_.size();
    for (std::size_t i = 0; i < count; ++i) {
        if (shared_.pass_bytes >= kNicPassBytes) break;
        Lane& lane = *active_[(shared_.passes / 2 + i) % count];
        const bool awaits = lane.awaitsAnswer();
        if (lane.hasUnsent() && lane.send(now, sweep.failed)) moved = true;
        // What was sent just now cannot be answered yet.
        if ((receive || lane.isStarved()) && awaits && lane.state() == Lane::State::Up && lane.receive(now, sweep))
            moved = true;
        if (lane.state() != Lane::State::Up || !lane.hasWork()) anyone_left_ = true;
    }
    if (std::exchange(anyone_left_, false))
        std::erase_if(active_, [&](Lane* lane) {
            lane->is_active = lane->state() == Lane::State::Up && lane->hasWork();
            if (!lane->is_active) shared_.events.setInterest(*lane, EPOLLIN);
            if (lane->isUnfenced()) enlist(*lane);
            return !lane->is_active;
        });
    return moved;
}

bool TcpNic::driveServers() {
    bool moved = false;
    bool anyone_cold = false;
    const bool direct = active_.size() + hot_.size() <= kMostDirect;
    const std::size_t count = hot_.size();
    for (std::size_t i = 0; i < count; ++i) {
        if (shared_.pass_bytes >= kNicPassBytes) break;
        ServerConnection& server = *hot_[(shared_.passes / 2 + i) % count];
        if (server.state() != ServerConnection::State::Serving) continue;
        const bool worth_a_try =
            direct || server.hasUnsent() || server.isStarved();  // Otherwise the epoll set tells, and resets the count.
        if (worth_a_try && server.serve()) {
            moved = true;
            server.idle_passes = 0;
            if (server.state() == ServerConnection::State::Closed) anyone_closed_ = true;
        } else if (++server.idle_passes >= kIdlePasses && !server.hasUnsent() && !server.isStarved()) {
            anyone_cold = true;
        }
    }
    if (anyone_cold)
        std::erase_if(hot_, [&](ServerConnection* server) {
            if (server->idle_passes < kIdlePasses || server->hasUnsent() || server->isStarved()) return false;
            server->is_hot = false;
            shared_.events.setInterest(*server, EPOLLIN);
            return true;
        });
    return moved;
}

bool TcpNic::lookAtEvents(TimePoint now, Sweep& sweep) {
    bool moved = false;
    for (const epoll_event& event : shared_.events.ready(events_)) {
        if (event.data.ptr == nullptr) continue;  // A bell: what it is for was looked at in this pass.
        Link& link = *static_cast<Link*>(event.data.ptr);
        if (!link.fd) continue;  // Closed by an earlier one of these events.
        switch (link.kind) {
            case Link::Kind::Listener:
                if (acceptConnections(now)) moved = true;
                break;
            case Link::Kind::Lane:
                if (onLaneEvent(static_cast<Lane&>(link), event.events, now, sweep)) moved = true;
                break;
            case Link::Kind::Server:
                if (onServerEvent(static_cast<ServerConnection&>(link), now)) moved = true;
                break;
        }
    }
    return moved;
}

bool TcpNic::onLaneEvent(Lane& lane, std::uint32_t events, TimePoint now, Sweep& sweep) {
    if (lane.state() == Lane::State::Up) {
        if ((events & ~EPOLLOUT) == 0) return false;  // driveLanes sends.
        const bool moved = lane.receive(now, sweep);
        if (lane.state() != Lane::State::Up) anyone_left_ = true;
        return moved;
    }
    const bool moved = lane.advance(now, sweep.failed);
    watchTimer(lane.deadline());
    if (lane.state() == Lane::State::Up || lane.state() == Lane::State::Idle) {
        std::erase(pending_, &lane);
        lane.is_pending = false;
        if (lane.hasWork()) enlist(lane);
    }
    return moved;
}

bool TcpNic::onServerEvent(ServerConnection& connection, TimePoint now) {
    using State = ServerConnection::State;
    bool moved = false;
    if (connection.state() == State::Greeting) {
        moved = connection.receiveHello(now);
        if (connection.state() == State::Greeted) admit(connection, now);
        if (connection.state() != State::Greeting) std::erase(greeting_, &connection);
    } else if (connection.state() == State::Serving) {
        moved = connection.serve();
    } else if (connection.state() == State::Greeted) {
        // It waits to be admitted, with its interest in nothing but this.
        connection.close("it was given up by the initiator while it waited for a GPU");
        moved = true;
    }
    if (connection.state() == State::Closed) {
        anyone_closed_ = true;
    } else if (connection.state() == State::Serving) {
        makeHot(connection);
    }
    connection.idle_passes = 0;
    return moved;
}

void TcpNic::makeHot(ServerConnection& connection) {
    if (std::exchange(connection.is_hot, true)) return;
    hot_.push_back(&connection);
}

bool TcpNic::acceptConnections(TimePoint now) {
    bool moved = false;
    for (int i = 0; i < kAcceptsPerPass; ++i) {
        UniqueFd fd(accept4(listener_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!fd) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno == EAGAIN || errno == EWOULDBLOCK) break;
            const Status why = errnoStatus(Code::ResourceExhausted, "accept", errno);
            if (const auto more = accept_word_.turn(now))
                shared_.log->warn("{}: new connections have to wait: {}{}", shared_.name, why.message(), *more);
            shared_.events.setInterest(listener_, 0);
            accept_again_ = now + kAcceptPause;
            watchTimer(accept_again_);
            break;
        }
        moved = true;
        const auto from = SocketAddress::remote(fd.get());
        if (!from) continue;
        if (!makeRoom(*from)) {
            shared_.refusals.say(shared_.log, now,
                                 shared_.name + ": data connection from " + from->toString() + " refused: there are " +
                                     std::to_string(servers_.size()) + " already (tcp.max_connections)");
            continue;
        }
        tuneSocket(fd.get(), shared_.config.tcp_socket_buffer);
        const TimePoint deadline = saturatedAdd(now, shared_.config.handshake_timeout);
        auto server = std::make_unique<ServerConnection>(shared_, std::move(fd), deadline, *from);
        if (!shared_.events.add(*server, EPOLLIN)) continue;
        watchTimer(deadline);
        greeting_.push_back(server.get());
        servers_.push_back(std::move(server));
    }
    return moved;
}

/// For one more of that address. Those that have not greeted yet give way, the oldest first. False: all connections
/// there may be are those of peers.
bool TcpNic::makeRoom(const SocketAddress& from) {
    using State = ServerConnection::State;
    ServerConnection* oldest = nullptr;
    ServerConnection* oldest_of_host = nullptr;
    std::size_t greetings = 0;
    for (ServerConnection* each : greeting_) {
        if (each->state() != State::Greeting) continue;
        if (oldest == nullptr) oldest = each;
        if (!each->isFrom(from)) continue;
        if (oldest_of_host == nullptr) oldest_of_host = each;
        ++greetings;
    }
    const auto open = std::count_if(servers_.begin(), servers_.end(),
                                    [](const auto& server) { return server->state() != State::Closed; });
    if (greetings >= shared_.config.peer_greetings) {
        oldest_of_host->close("others of its address wait to greet (peer.greetings)");
        anyone_closed_ = true;
    } else if (static_cast<std::size_t>(open) >= shared_.config.tcp_max_connections) {
        if (oldest == nullptr) return false;
        (oldest_of_host != nullptr ? oldest_of_host : oldest)->close("others wait to greet (tcp.max_connections)");
        anyone_closed_ = true;
    }
    return true;
}

void TcpNic::admit(ServerConnection& connection, TimePoint now) {
    const Hello& hello = connection.hello();
    std::uint32_t of_peer = 0;
    if (hello.target != shared_.incarnation) return connection.answerHello(Code::StaleIncarnation);
    for (const auto& other : servers_) {
        if (other.get() == &connection || other->state() != ServerConnection::State::Serving ||
            other->hello().lane.initiator != hello.lane.initiator)
            continue;
        connection.countWith(other->bytesOfPeer());
        if (!(other->hello().lane == hello.lane)) {
            ++of_peer;
            continue;
        }
        if (other->hello().attempt > hello.attempt) return connection.answerHello(Code::StaleHandle);
        // Before the reply, so that nothing the old connection still holds is applied once the new one has work.
        other->close("the initiator opened its successor");
        anyone_closed_ = true;
    }
    // Those that wait count as well. Of one lane the newest stays.
    for (ServerConnection* other : waiting_) {
        if (other == &connection || other->state() != ServerConnection::State::Greeted ||
            other->hello().lane.initiator != hello.lane.initiator)
            continue;
        if (!(other->hello().lane == hello.lane)) {
            ++of_peer;
        } else if (other->hello().attempt <= hello.attempt) {
            other->close("the initiator opened its successor");
            anyone_closed_ = true;
        }
    }
    if (of_peer >= shared_.config.peer_tcp_connections) {
        shared_.refusals.say(shared_.log, now,
                             shared_.name + ": data connection of " + hello.lane.initiator.toString() +
                                 " refused: it has " + std::to_string(of_peer) + " (peer.tcp_connections)");
        return connection.answerHello(Code::CapacityExceeded);
    }
    if (shared_.gpu.isLeftBehind(hello.lane.initiator)) {
        // What an earlier connection received is on its way to a GPU, and may overtake what comes by this one.
        waiting_.push_back(&connection);
        shared_.events.setInterest(connection, 0);
        return;
    }
    connection.answerHello(Code::Ok);
}

/// True when any of those that wait was admitted.
bool TcpNic::admitWaiting() {
    bool moved = false;
    for (ServerConnection* connection : std::exchange(waiting_, {})) {
        if (connection->state() != ServerConnection::State::Greeted) continue;
        if (shared_.gpu.isLeftBehind(connection->hello().lane.initiator)) {
            waiting_.push_back(connection);
            continue;
        }
        moved = true;
        shared_.events.setInterest(*connection, EPOLLIN);
        admit(*connection, looked_at_);
        if (connection->state() == ServerConnection::State::Closed)
            anyone_closed_ = true;
        else
            makeHot(*connection);
    }
    return moved;
}

void TcpNic::bury() {
    const auto closed = [](const ServerConnection* server) {
        return server->state() == ServerConnection::State::Closed;
    };
    std::erase_if(hot_, closed);
    std::erase_if(greeting_, closed);
    std::erase_if(waiting_, closed);
    std::erase_if(servers_, [&](const auto& server) { return closed(server.get()); });
    anyone_closed_ = false;
}

}  // namespace troupe::tcp
