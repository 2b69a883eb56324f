#include "host_backend/grant_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/endpoint.h"

namespace troupe::host {

namespace {

/// Connections of one engine: one per data loop of each initiator.
constexpr std::size_t kMaxConnections = 1024;
/// Of those, how many may be in their greeting; one more ends the oldest, so that silent ones keep nobody out.
constexpr std::size_t kMaxGreeting = 64;
constexpr int kAcceptsPerPass = 16;
constexpr int kFramesPerPass = 64;
/// With more answers than this unsent, a connection is not read.
constexpr std::size_t kMaxUnsent = 64;
constexpr std::chrono::milliseconds kAcceptPause{100};
/// How long an end of the transport that was not announced by closeToPeers, as a defect's is, waits for processes that
/// hold grants. One that runs answers in less than a millisecond, so it is one that was stopped for which this is
/// spent. It is the one place where a data loop waits, and nothing of the engine's own is held up: the other Nics end
/// as well.
constexpr std::chrono::milliseconds kReleaseBound{500};

constexpr ByteRange kEverything{0, UINT64_MAX};

/// To an initiator: look for another transport.
/// Passing: it may stay after all, or another be installed in its place, and then nobody is told.
Status leaves() { return {Code::ConnectionLost, "its host transport is about to end"}; }

}  // namespace

GrantServer::Connection::Connection(UniqueFd with)
    : socket(std::move(with)), socket_link(Link::Kind::Connection, this), process_link(Link::Kind::Process, this) {}

GrantServer::GrantServer(const HostShared& shared, Links& links, UniqueFd listener)
    : shared_(shared),
      links_(links),
      regions_(shared.regions.regions()),
      listener_(std::move(listener)),
      listener_link_(Link::Kind::Listener, this) {
    std::uint64_t seed = 0;
    std::memcpy(&seed, shared.incarnation.bytes.data(), sizeof seed);
    random_.seed(seed ^ static_cast<std::uint64_t>(Clock::now().time_since_epoch().count()));
}

GrantServer::~GrantServer() { awaitRelease(); }

Status GrantServer::open() { return links_.add(listener_link_, listener_.get(), EPOLLIN); }

// --- who comes in ------------------------------------------------------------------------------------------------

bool GrantServer::onEvent(const Link& link, TimePoint now) {
    if (link.kind == Link::Kind::Listener) return acceptAll(now);
    auto& connection = *static_cast<Connection*>(link.owner);
    if (connection.state == Connection::State::Closed) return false;
    if (link.kind == Link::Kind::Process) {
        close(connection, "it has ended");
        return true;
    }
    return serve(connection);
}

bool GrantServer::acceptAll(TimePoint now) {
    bool moved = false;
    for (int i = 0; i < kAcceptsPerPass; ++i) {
        UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (socket) {
            moved = true;
            admit(std::move(socket), now);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) break;
        const Status why = errnoStatus(Code::ResourceExhausted, "accept", errno);
        if (const auto more = accept_word_.turn(now))
            shared_.log->warn("host: new connections have to wait: {}{}", why.message(), *more);
        links_.change(listener_link_, listener_.get(), 0);
        accept_again_ = now + kAcceptPause;
        next_deadline_ = std::min(next_deadline_, accept_again_);
        break;
    }
    return moved;
}

void GrantServer::admit(UniqueFd socket, TimePoint now) {
    const auto turnAway = [&](const Status& why) {
        shared_.log->debug("host: a connection was turned away: {}", why.message());
        static_cast<void>(sendPacket(socket.get(), encode(Refuse{why.code(), why.message()})));
    };
    if (closed_) return turnAway(leaves());
    if (connections_.size() >= kMaxConnections)
        return turnAway(
            Status(Code::CapacityExceeded, "it has " + std::to_string(connections_.size()) + " connections already"));
    auto process = ProcessHandle::ofPeer(socket.get());
    if (!process) return turnAway(process.status());
    if (const auto status = checkUsers(process->uid(), ::geteuid()); !status) return turnAway(status);

    const auto of_process = std::count_if(connections_.begin(), connections_.end(), [&](const auto& connection) {
        return connection->state != Connection::State::Closed && connection->process->pid() == process->pid();
    });
    if (static_cast<std::size_t>(of_process) >= shared_.config.peer_host_connections)
        return turnAway(Status(Code::CapacityExceeded, process->name() + " has " + std::to_string(of_process) +
                                                           " connections already (peer.host_connections)"));
    if (greeting_ >= kMaxGreeting) {
        // One of the same process, if there is one, so that none ends the greetings of others.
        const auto oldest = [&](bool of_the_same) {
            return std::find_if(connections_.begin(), connections_.end(), [&](const auto& connection) {
                return connection->greets() && (!of_the_same || connection->process->pid() == process->pid());
            });
        };
        auto leaves_room = oldest(true);
        if (leaves_room == connections_.end()) leaves_room = oldest(false);
        if (leaves_room != connections_.end()) close(**leaves_room, "others wait to greet");
    }
    auto connection = std::make_unique<Connection>(std::move(socket));
    connection->process = std::make_unique<ProcessHandle>(std::move(*process));
    connection->deadline = saturatedAdd(now, shared_.config.handshake_timeout);
    connection->interest = EPOLLIN;
    if (!links_.add(connection->socket_link, connection->socket.get(), connection->interest)) return;
    if (!links_.add(connection->process_link, connection->process->fd(), EPOLLIN))
        return links_.remove(connection->socket.get());
    next_deadline_ = std::min(next_deadline_, connection->deadline);
    ++greeting_;
    connections_.push_back(std::move(connection));
}

void GrantServer::runTimers(TimePoint now) {
    next_deadline_ = kForever;
    for (const auto& connection : connections_) {
        if (!connection->greets()) continue;
        if (now >= connection->deadline)
            close(*connection, "its greeting did not come in time");
        else
            next_deadline_ = std::min(next_deadline_, connection->deadline);
    }
    if (now >= accept_again_) {
        accept_again_ = kForever;
        links_.change(listener_link_, listener_.get(), EPOLLIN);
    }
    next_deadline_ = std::min(next_deadline_, accept_again_);
    bury();
}

void GrantServer::close(Connection& connection, const std::string& why) {
    if (connection.state == Connection::State::Closed) return;
    if (!connection.mayHold()) --greeting_;
    shared_.log->debug("host: connection of {} closed: {}", connection.process->name(), why);
    connection.state = Connection::State::Closed;
    // For the initiator it ends even when a child made by fork has the descriptor too.
    ::shutdown(connection.socket.get(), SHUT_RDWR);
    links_.remove(connection.socket.get());
    connection.socket.reset();
    links_.remove(connection.process->fd());
    anyone_closed_ = true;
}

void GrantServer::condemn(Connection& connection, const std::string& why) {
    if (!connection.mayHold() || connection.held.empty()) return close(connection, why);
    if (connection.state == Connection::State::Condemned) return;
    sayCondemned(connection, why);
    connection.state = Connection::State::Condemned;
    connection.unsent.clear();
    watch(connection);
    // It reads the end of the connection, lets go of everything and closes its own end.
    ::shutdown(connection.socket.get(), SHUT_WR);
}

void GrantServer::sayCondemned(const Connection& connection, const std::string& why) {
    if (const auto more = condemned_word_.turn(Clock::now()))
        shared_.log->warn("host: connection of {} is ended: {}{}", connection.process->name(), why, *more);
    else
        shared_.log->debug("host: connection of {} is ended: {}", connection.process->name(), why);
}

void GrantServer::bury() {
    if (!std::exchange(anyone_closed_, false)) return;
    std::erase_if(connections_, [](const auto& connection) { return connection->state == Connection::State::Closed; });
}

// --- what they say -----------------------------------------------------------------------------------------------

bool GrantServer::serve(Connection& connection) {
    bool moved = flush(connection);
    for (int i = 0; i < kFramesPerPass; ++i) {
        if (connection.state == Connection::State::Closed || connection.unsent.size() >= kMaxUnsent) break;
        Received received;
        const Io io = receivePacket(connection.socket.get(), received);
        if (io == Io::Again) break;
        moved = true;
        if (io == Io::Closed) {
            close(connection, "it hung up");
            break;
        }
        if (connection.state == Connection::State::Condemned) continue;
        const auto frame = decode(received.packet.span());
        if (!frame || received.hasDescriptor())
            condemn(connection, frame ? "it sent a descriptor" : frame.status().message());
        else
            onFrame(connection, *frame, received.packet);
    }
    return moved;
}

void GrantServer::onFrame(Connection& connection, const Frame& frame, const Packet& packet) {
    using State = Connection::State;
    if (const auto* hello = std::get_if<Hello>(&frame); hello != nullptr && connection.state == State::Greeting)
        return onHello(connection, *hello, packet);
    if (const auto* proof = std::get_if<KeyProof>(&frame); proof != nullptr && connection.state == State::Challenged)
        return onProof(connection, *proof);
    if (const auto* ready = std::get_if<Ready>(&frame);
        ready != nullptr && connection.state == State::Welcomed && ready->nonce == connection.nonce) {
        // It answered what was sent after its pidfd was opened: the pidfd is its own. From here on it may hold grants.
        connection.state = State::Serving;
        --greeting_;
        return;
    }
    if (connection.state == State::Serving) {
        if (const auto* request = std::get_if<GrantRequest>(&frame)) return onRequest(connection, *request);
        if (const auto* ack = std::get_if<RevokeAck>(&frame)) return onAck(connection, *ack);
    }
    condemn(connection, "it sent a frame that has no place here");
}

void GrantServer::onHello(Connection& connection, const Hello& hello, const Packet& packet) {
    const bool keyed = hasKey(shared_.auth);
    if (keyed && !hello.nonce) return refuseKey(connection, AuthRefusal::NoProof, needsKey("this engine"));
    if (!keyed && hello.nonce) return refuseKey(connection, AuthRefusal::UnusedKey, hasNoKey("this engine"));
    connection.initiator = hello.initiator;
    connection.meant = hello.owner;
    if (!keyed) return welcome(connection);
    connection.hello = packet;
    connection.challenge = encode(Challenge{shared_.incarnation, randomNonce()});
    connection.state = Connection::State::Challenged;
    sendEncoded(connection, connection.challenge, -1);
}

void GrantServer::onProof(Connection& connection, const KeyProof& proof) {
    if (!shared_.auth->accepts(AuthRole::Initiator, kAuthProtocol,
                               {connection.hello.span(), connection.challenge.span()}, proof.proof))
        return refuseKey(connection, AuthRefusal::WrongProof, otherKey("this engine"));
    shared_.auth->countAccepted();
    welcome(connection);
}

void GrantServer::refuseKey(Connection& connection, AuthRefusal why, const Status& said) {
    countRefusal(shared_.auth, why);
    refusals_.say(shared_.log, Clock::now(),
                  "host: connection of " + connection.process->name() + " refused: " + said.message());
    connection.challenge.length = 0;
    refuse(connection, said);
}

/// It has proven what it has to.
void GrantServer::welcome(Connection& connection) {
    if (connection.meant != shared_.incarnation)
        return refuse(connection,
                      Status(Code::StaleIncarnation, "this is incarnation " + shared_.incarnation.toString() +
                                                         ", not " + connection.meant.toString()));
    if (closed_) return refuse(connection, leaves());
    connection.nonce = random_();
    connection.state = Connection::State::Welcomed;
    sendProven(connection, Welcome{shared_.incarnation, connection.nonce,
                                   reinterpret_cast<std::uint64_t>(shared_.incarnation.bytes.data()), allMapped()});
}

/// An answer to a greeting, and its proof where one is due.
void GrantServer::sendProven(Connection& connection, const Frame& frame) {
    const Packet answer = encode(frame);
    sendEncoded(connection, answer, -1);
    if (connection.challenge.length == 0) return;
    const Proof proof = shared_.auth->prove(AuthRole::Responder, kAuthProtocol,
                                            {connection.hello.span(), connection.challenge.span(), answer.span()});
    send(connection, KeyProof{proof});
}

/// Whether a peer that may only map can use all that peers may use. Looked at once for each version of the table.
bool GrantServer::allMapped() {
    auto regions = shared_.regions.regions().load();
    if (regions == looked_at_) return all_mapped_;
    const auto all = regions->all();
    all_mapped_ = std::all_of(all.begin(), all.end(), [](const Region& region) {
        return !region.remote_accessible || region.file >= 0 || region.place != nullptr;
    });
    looked_at_ = std::move(regions);
    return all_mapped_;
}

void GrantServer::onRequest(Connection& connection, const GrantRequest& request) {
    if (closed_) return send(connection, GrantRefused{request.id, leaves().code(), leaves().message()});
    const RegionMap& regions = regions_.get();
    const ByteRange range{request.addr, request.length};
    if (range.length == 0)
        return send(connection, GrantRefused{request.id, Code::InvalidArgument, "a range of no bytes"});
    if (const RangeFault fault = regions.faultOf(range, true, request.write))
        return send(connection, GrantRefused{request.id, fault.code, fault.toString()});
    const Region& region = *regions.find(range.addr);
    if (region.place) [[unlikely]]
        return grantDevice(connection, request, region);
    Held& held = connection.held[region.id];
    const bool anew = !std::exchange(held.granted, true);
    held.range = region.range;
    Grant grant;
    grant.id = request.id;
    grant.region = region.id;
    grant.base = region.range.addr;
    grant.length = region.range.length;
    grant.writable = region.writable;
    const bool mapped = region.file >= 0;
    if (mapped) grant.offset = region.file_offset;
    grant.kind = mapped ? Grant::Kind::Mapped : Grant::Kind::Vm;
    send(connection, grant, mapped && anew ? region.file : -1);
}

/// Of a region of a GPU's memory the allocation that the address lies in.
void GrantServer::grantDevice(Connection& connection, const GrantRequest& request, const Region& region) {
    const auto exported = shared_.exports->find(region.id);
    const auto* const piece = exported ? exported->find(request.addr) : nullptr;
    if (piece == nullptr) {
        const std::string why = exported ? exported->why.message() : "it is being unregistered";
        return send(connection,
                    GrantRefused{request.id, Code::Unsupported,
                                 "memory of " + region.location + " cannot be given to other processes: " + why});
    }
    Held& held = connection.held[piece->key];
    const bool anew = !std::exchange(held.granted, true);
    held.range = piece->range;
    DeviceGrant grant;
    grant.id = request.id;
    grant.region = piece->key;
    grant.base = piece->range.addr;
    grant.length = piece->range.length;
    grant.kind = piece->shared.kind;
    grant.allocation = piece->shared.allocation.addr;
    grant.allocation_bytes = piece->shared.allocation.length;
    grant.handle = piece->shared.handle;
    send(connection, grant, anew ? piece->shared.fd.get() : -1);
}

void GrantServer::onAck(Connection& connection, const RevokeAck& ack) {
    const auto found = connection.held.find(ack.region);
    if (found == connection.held.end() || found->second.revokes == 0)
        return condemn(connection, "it acknowledged what was not revoked");
    if (--found->second.revokes == 0 && !found->second.granted) connection.held.erase(found);
}

void GrantServer::refuse(Connection& connection, const Status& why) {
    sendProven(connection, Refuse{why.code(), why.message()});
    close(connection, why.message());
}

void GrantServer::send(Connection& connection, const Frame& frame, int descriptor) {
    sendEncoded(connection, encode(frame), descriptor);
}

void GrantServer::sendEncoded(Connection& connection, const Packet& packet, int descriptor) {
    if (connection.state == Connection::State::Closed || connection.state == Connection::State::Condemned) return;
    if (connection.unsent.empty()) {
        const Io io = sendPacket(connection.socket.get(), packet, descriptor);
        if (io == Io::Done) return;
        if (io == Io::Closed) return close(connection, "it hung up");
    }
    UniqueFd own(descriptor < 0 ? -1 : ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    if (descriptor >= 0 && !own) return condemn(connection, "there is no descriptor left for a grant");
    connection.unsent.emplace_back(packet, std::move(own));
    watch(connection);
}

/// What is not read is not waited for either, or the loop would spin on it.
void GrantServer::watch(Connection& connection) {
    std::uint32_t interest = 0;
    if (connection.unsent.size() < kMaxUnsent) interest |= EPOLLIN;
    if (!connection.unsent.empty()) interest |= EPOLLOUT;
    if (std::exchange(connection.interest, interest) == interest) return;
    links_.change(connection.socket_link, connection.socket.get(), connection.interest);
}

/// True when anything was sent.
bool GrantServer::flush(Connection& connection) {
    if (connection.unsent.empty()) return false;
    bool moved = false;
    while (!connection.unsent.empty()) {
        const auto& [packet, descriptor] = connection.unsent.front();
        const Io io = sendPacket(connection.socket.get(), packet, descriptor.get());
        if (io == Io::Again) break;
        moved = true;
        if (io == Io::Closed) {
            close(connection, "it hung up");
            return true;
        }
        connection.unsent.pop_front();
    }
    watch(connection);
    return moved;
}

// --- taking back -------------------------------------------------------------------------------------------------

void GrantServer::revoke(Connection& connection, const RangeSet& ranges) {
    std::vector<std::uint64_t> regions;
    for (auto& [region, held] : connection.held) {
        if (!held.granted || !ranges.overlaps(held.range)) continue;
        held.granted = false;
        ++held.revokes;
        regions.push_back(region);
    }
    for (const std::uint64_t region : regions) send(connection, Revoke{region});
}

void GrantServer::closeToPeers() {
    closed_ = true;
    revokeIn(kEverything);
}

void GrantServer::revokeIn(const RangeSet& ranges) {
    for (const auto& connection : connections_) revoke(*connection, ranges);
    bury();
}

bool GrantServer::holdsIn(const ByteRange& range) const {
    return std::any_of(connections_.begin(), connections_.end(), [&](const auto& connection) {
        return connection->mayHold() &&
               std::any_of(connection->held.begin(), connection->held.end(),
                           [&](const auto& entry) { return entry.second.range.overlaps(range); });
    });
}

Status GrantServer::heldIn(const ByteRange& range) const {
    for (const auto& connection : connections_) {
        if (!connection->mayHold()) continue;
        for (const auto& [region, held] : connection->held)
            if (held.range.overlaps(range))
                return {Code::BatchBusy,
                        "region " + held.range.toString() + " is still held by " + connection->process->name() +
                            ", which does not answer; do not free or reuse it while that process lives"};
    }
    return Status::ok();
}

std::vector<Nic::Holding> GrantServer::holdingsIn(const ByteRange& range) const {
    std::vector<Nic::Holding> all;
    for (const auto& connection : connections_) {
        if (!connection->mayHold()) continue;
        for (const auto& [region, held] : connection->held) {
            // What was acknowledged and granted again since is in use as any other.
            if (held.revokes == 0 || !held.range.overlaps(range)) continue;
            Nic::Holding holding{held.range, connection->process->name()};
            // A process has a connection for each of its loops.
            if (std::find(all.begin(), all.end(), holding) == all.end()) all.push_back(std::move(holding));
        }
    }
    return all;
}

std::size_t GrantServer::grants() const {
    std::size_t count = 0;
    for (const auto& connection : connections_) count += connection->held.size();
    return count;
}

void GrantServer::awaitRelease() {
    // Nobody else comes in, and nobody is given anything any more.
    listener_.reset();
    revokeIn(kEverything);
    const TimePoint until = closed_ ? Clock::now() : Clock::now() + kReleaseBound;
    while (holdsIn(kEverything)) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
        if (left <= 0) break;
        std::vector<pollfd> entries;
        std::vector<Connection*> whose;
        for (const auto& connection : connections_) {
            // These bits of epoll have the same values for poll.
            entries.push_back({connection->socket.get(), static_cast<short>(connection->interest), 0});
            entries.push_back({connection->process->fd(), POLLIN, 0});
            whose.push_back(connection.get());
        }
        ::poll(entries.data(), entries.size(), static_cast<int>(left));
        for (std::size_t i = 0; i < whose.size(); ++i) {
            if (entries[2 * i + 1].revents != 0)
                close(*whose[i], "it has ended");
            else if (entries[2 * i].revents != 0)
                serve(*whose[i]);
        }
        bury();
        // What was asked for meanwhile was granted by the newest table; it goes the same way.
        revokeIn(kEverything);
    }
    if (const Status held = heldIn(kEverything); !held)
        shared_.log->error("host: the transport ends while memory is in foreign hands: {}", held.message());
}

}  // namespace troupe::host
