#include "apps/sim/network.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "apps/sim/sim_nic.h"

namespace troupe::sim {

namespace {

// Bytes of a stream on the wire; more has to wait, so that senders meet a full socket.
constexpr std::size_t kOnTheWire = 16u << 10;

// Between attempts of a kernel to get through: a connect, or bytes that were not acknowledged.
constexpr auto kAgain = 100 * kMillisecond;

}  // namespace

std::string hostAddress(int host) { return "10.0.0." + std::to_string(host + 1); }

int hostOfAddress(const std::string& address) {
    const auto dot = address.rfind('.');
    int number = 0;
    const char* const last = address.data() + address.size();
    if (dot == std::string::npos || std::from_chars(address.data() + dot + 1, last, number).ptr != last) return -1;
    return number >= 1 && number <= kMaxHosts ? number - 1 : -1;
}

/// Both ends of a stream and what is on its way between them.
struct Network::Connection {
    struct Chunk {
        std::string bytes;
        bool last;
    };
    struct End {
        SimLoop* loop = nullptr;  ///< Null: no process has this end (any more).
        int host = 0;
        bool connecting = false;
        int error = 0;
        std::string received;
        bool ended = false;  ///< The other side's output is over.
        bool output_over = false;
        std::deque<Chunk> wire;  ///< To the other end.
        std::size_t on_wire = 0;
        bool pumping = false;
        bool firing = false;
        std::uint32_t interest = 0;
        std::shared_ptr<std::function<void(std::uint32_t)>> ready;

        std::uint32_t events() const {
            std::uint32_t found = 0;
            if (error != 0) found |= EPOLLERR | EPOLLHUP;
            if (!connecting && (!received.empty() || ended || error != 0)) found |= EPOLLIN;
            if (!connecting && on_wire < kOnTheWire) found |= EPOLLOUT;
            return found & (interest | EPOLLERR | EPOLLHUP);
        }
    };
    std::array<End, 2> ends;
};

class Network::SimStream final : public Stream {
  public:
    SimStream(Network& network, ConnectionPtr connection, int end)
        : network_(network), connection_(std::move(connection)), end_(end) {}
    ~SimStream() override {
        if (self().loop == nullptr) return;  // The process is gone, and its kernel has said so.
        self().loop = nullptr;
        self().ready = nullptr;
        network_.push(connection_, end_, {}, true);
    }
    void watch(std::uint32_t events, std::function<void(std::uint32_t)> ready) override {
        self().interest = events;
        self().ready = std::make_shared<std::function<void(std::uint32_t)>>(std::move(ready));
        network_.wake(connection_, end_);
    }
    Status connectOutcome() override {
        if (self().error == 0) return Status::ok();
        return {self().error == ECONNREFUSED ? Code::ConnectionRefused : Code::ConnectionLost,
                std::strerror(self().error)};
    }
    ssize_t send(std::span<iovec> parts) override {
        if (self().error != 0) return -self().error;
        if (self().on_wire >= kOnTheWire) return -EAGAIN;
        std::string bytes;
        for (const iovec& part : parts) bytes.append(static_cast<const char*>(part.iov_base), part.iov_len);
        // Sometimes a socket takes only a part.
        std::size_t room = kOnTheWire - self().on_wire;
        if (network_.world_.chance(10)) room = std::min<std::size_t>(room, 1 + network_.world_.random().below(100));
        if (bytes.size() > room) bytes.resize(room);
        const auto taken = static_cast<ssize_t>(bytes.size());
        network_.push(connection_, end_, std::move(bytes), false);
        return taken;
    }
    ssize_t receive(std::span<std::byte> room) override {
        auto& received = self().received;
        if (received.empty()) {
            if (self().error != 0) return -self().error;
            return self().ended ? 0 : -EAGAIN;
        }
        std::size_t count = std::min(room.size(), received.size());
        if (network_.world_.chance(20)) count = 1 + network_.world_.random().below(count);
        std::memcpy(room.data(), received.data(), count);
        received.erase(0, count);
        return static_cast<ssize_t>(count);
    }
    void endOutput() override { network_.push(connection_, end_, {}, true); }

  private:
    Connection::End& self() { return connection_->ends[static_cast<std::size_t>(end_)]; }

    Network& network_;
    const ConnectionPtr connection_;
    const int end_;
};

class Network::SimListener final : public Listener {
  public:
    SimListener(Network& network, SimLoop& loop) : network_(network), loop_(loop) {
        network_.listeners_[at(loop_.seat().host)] = this;
    }
    ~SimListener() override {
        auto& place = network_.listeners_[at(loop_.seat().host)];
        if (place == this) place = nullptr;
        if (!network_.powered(loop_.seat().host)) return;
        for (const auto& connection : waiting_) network_.reset(connection, 0);
    }
    void watch(std::function<void()> ready) override {
        ready_ = std::make_shared<std::function<void()>>(std::move(ready));
        wakeUp();
    }
    void unwatch() override { ready_ = nullptr; }
    Result<Accepted> accept() override {
        if (waiting_.empty()) return Status(Code::NotFound, "nobody waits");
        const ConnectionPtr connection = std::move(waiting_.front());
        waiting_.pop_front();
        connection->ends[1].loop = &loop_;
        return Accepted{std::make_unique<SimStream>(network_, connection, 1),
                        hostAddress(connection->ends[0].host) + ":50000"};
    }
    void add(ConnectionPtr connection) {
        waiting_.push_back(std::move(connection));
        wakeUp();
    }

  private:
    void wakeUp() {
        if (waiting_.empty() || !ready_) return;
        loop_.post([weak = std::weak_ptr(ready_)] {
            if (const auto ready = weak.lock()) (*ready)();
        });
    }

    Network& network_;
    SimLoop& loop_;
    std::deque<ConnectionPtr> waiting_;
    std::shared_ptr<std::function<void()>> ready_;
};

// --- weather -----------------------------------------------------------------------------------------------------

void Network::heal() {
    blocked_ = {};
    cut_off_ = -1;
    loss = 0;
    duplicate = 0;
    latest = {};
}

Duration Network::travel() {
    Duration span = world_.span(5 * kMicrosecond, 60 * kMicrosecond);
    if (latest > Duration::zero() && world_.chance(30)) span += world_.span({}, latest);
    return span;
}

void Network::processGone(int host) {
    listeners_[at(host)] = nullptr;
    nics_[at(host)].clear();
    for (const auto& weak : connections_) {
        const auto connection = weak.lock();
        if (!connection) continue;
        for (int end = 0; end < 2; ++end) {
            auto& self = connection->ends[at(end)];
            if (self.host != host) continue;
            const bool had = self.loop != nullptr;
            self.loop = nullptr;
            self.ready = nullptr;
            if (!powered(host))
                self.wire.clear();
            else if (had)
                push(connection, end, {}, true);
            self.output_over = true;
        }
    }
}

// --- streams -----------------------------------------------------------------------------------------------------

Result<std::unique_ptr<Stream>> Network::connect(SimLoop& loop, const SocketAddress& address) {
    const int to = hostOfAddress(address.host());
    if (to < 0) return Status(Code::ConnectionLost, "connect " + address.toString() + ": no route to host");
    auto connection = std::make_shared<Connection>();
    connection->ends[0].loop = &loop;
    connection->ends[0].host = loop.seat().host;
    connection->ends[0].connecting = true;
    connection->ends[1].host = to;
    std::erase_if(connections_, [](const auto& each) { return each.expired(); });
    connections_.push_back(connection);
    world_.after(travel(), [this, connection] { tryConnect(connection); });
    return std::unique_ptr<Stream>(std::make_unique<SimStream>(*this, connection, 0));
}

std::unique_ptr<Listener> Network::listen(SimLoop& loop) { return std::make_unique<SimListener>(*this, loop); }

std::string Network::openEnds() const {
    std::string open;
    for (const auto& weak : connections_) {
        const auto connection = weak.lock();
        for (int end = 0; connection && end < 2; ++end) {
            if (connection->ends[at(end)].loop == nullptr) continue;
            if (!open.empty()) open += ", ";
            open += fmt::format("{} has one that {} made to {}", hostAddress(connection->ends[at(end)].host),
                                hostAddress(connection->ends[0].host), hostAddress(connection->ends[1].host));
        }
    }
    return open;
}

void Network::tryConnect(const ConnectionPtr& connection) {
    auto& from = connection->ends[0];
    const int to = connection->ends[1].host;
    if (from.loop == nullptr) return;
    if (blocked(from.host, to) || blocked(to, from.host) || !powered(to)) {
        world_.after(kAgain, [this, connection] { tryConnect(connection); });
        return;
    }
    from.connecting = false;
    if (SimListener* const listener = listeners_[at(to)])
        listener->add(connection);
    else
        from.error = ECONNREFUSED;
    wake(connection, 0);
}

void Network::push(const ConnectionPtr& connection, int end, std::string bytes, bool last) {
    auto& self = connection->ends[at(end)];
    if (self.output_over) return;
    self.output_over = last;
    self.on_wire += bytes.size();
    self.wire.push_back({std::move(bytes), last});
    if (std::exchange(self.pumping, true)) return;
    world_.after(travel(), [this, connection, end] { pump(connection, end); });
}

/// Brings the next chunk to the other end, in order whatever happens.
void Network::pump(const ConnectionPtr& connection, int end) {
    auto& self = connection->ends[at(end)];
    auto& other = connection->ends[at(1 - end)];
    if (self.wire.empty()) {
        self.pumping = false;
        return;
    }
    const bool stuck = blocked(self.host, other.host) || !powered(other.host);
    if (stuck) {
        world_.after(kAgain, [this, connection, end] { pump(connection, end); });
        return;
    }
    auto chunk = std::move(self.wire.front());
    self.wire.pop_front();
    self.on_wire -= chunk.bytes.size();
    const bool accepted =
        other.loop != nullptr || (end == 0 && !other.output_over && listeners_[at(other.host)] != nullptr);
    if (accepted) {
        other.received += chunk.bytes;
        other.ended = other.ended || chunk.last;
        wake(connection, 1 - end);
        wake(connection, end);
    } else if (!chunk.last) {
        reset(connection, end);
    }
    world_.after(travel(), [this, connection, end] { pump(connection, end); });
}

/// The other side has no such stream.
void Network::reset(const ConnectionPtr& connection, int end) {
    auto& self = connection->ends[at(end)];
    if (blocked(connection->ends[at(1 - end)].host, self.host)) return;
    self.error = ECONNRESET;
    self.wire.clear();
    self.on_wire = 0;
    wake(connection, end);
}

void Network::wake(const ConnectionPtr& connection, int end) {
    auto& self = connection->ends[at(end)];
    if (self.loop == nullptr || !self.ready || self.events() == 0 || std::exchange(self.firing, true)) return;
    self.loop->post([this, connection, end] { fire(connection, end); });
}

void Network::fire(const ConnectionPtr& connection, int end) {
    auto& self = connection->ends[at(end)];
    self.firing = false;
    const auto ready = self.ready;
    const std::uint32_t events = self.events();
    if (self.loop == nullptr || !ready || events == 0) return;
    (*ready)(events);
    wake(connection, end);
}

// --- packets -----------------------------------------------------------------------------------------------------

void Network::addNic(int host, unsigned port, SimNic* nic) {
    auto& nics = nics_[at(host)];
    if (nics.size() <= port) nics.resize(port + 1);
    nics[port] = nic;
}

void Network::removeNic(int host, unsigned port, const SimNic* nic) {
    auto& nics = nics_[at(host)];
    if (port < nics.size() && nics[port] == nic) nics[port] = nullptr;
}

void Network::send(Packet packet) {
    world_.note(packet.id);
    if (loss != 0 && world_.chance(loss)) {
        world_.count("packets_lost");
        return;
    }
    if (duplicate != 0 && world_.chance(duplicate)) {
        world_.count("packets_duplicated");
        world_.after(travel() * 3, [this, packet] { deliver(packet); });
    }
    world_.after(travel(), [this, packet = std::move(packet)] { deliver(packet); });
}

void Network::deliver(const Packet& packet) {
    if (blocked(packet.from_host, packet.to_host)) return;
    auto& nics = nics_[at(packet.to_host)];
    SimNic* const nic = packet.to_nic < nics.size() ? nics[packet.to_nic] : nullptr;
    if (nic != nullptr) return nic->arrived(packet);
    // Its kernel says that nobody is there; who is told knows what to do with it.
    if (powered(packet.to_host) && packet.isRequest()) send(packet.unreachable());
}

}  // namespace troupe::sim
