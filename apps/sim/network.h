#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "apps/sim/sim_loop.h"
#include "apps/sim/world.h"
#include "base/stream.h"

namespace troupe::sim {

class SimNic;
struct Packet;

inline constexpr int kMaxHosts = 5;
inline constexpr std::uint16_t kControlPort = 7000;
inline constexpr std::uint16_t kFirstNicPort = 7100;
/// Ports of a process's Nics, as many as it may have. Those of a transport that is installed anew are others.
inline constexpr unsigned kNicPorts = 16;

/// "10.0.0.1" and so on.
std::string hostAddress(int host);
/// Of such an address; -1: none.
int hostOfAddress(const std::string& address);

/// What connects the hosts: streams, on which the control plane talks, and packets, by which Nics do. Its faults are
/// plain numbers that the faults of a simulation set.
class Network {
  public:
    struct Connection;

    explicit Network(World& world) : world_(world) {}
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;

    // --- weather ---------------------------------------------------------------------------------------------------

    /// Packets and bytes from one host to another vanish. Not symmetric: both directions are a partition, one of
    /// them half of one.
    bool blocked(int from, int to) const {
        return blocked_[at(from)][at(to)] || (from != to && (from == cut_off_ || to == cut_off_));
    }
    void block(int from, int to, bool on) { blocked_[at(from)][at(to)] = on; }
    /// From all others, until all heals.
    void cutOff(int host) { cut_off_ = host; }
    unsigned loss = 0;       ///< Percent of packets.
    unsigned duplicate = 0;  ///< Percent of packets.
    Duration latest{};       ///< Packets overtake each other by up to this.
    void heal();

    // --- hosts -----------------------------------------------------------------------------------------------------

    /// The host has power, so its kernel answers for a process that is gone.
    bool powered(int host) const { return powered_[at(host)]; }
    void setPower(int host, bool on) { powered_[at(host)] = on; }
    /// The streams of the process on this host end, and its Nics are gone. Without power nobody is told.
    void processGone(int host);

    // --- streams ---------------------------------------------------------------------------------------------------

    Result<std::unique_ptr<Stream>> connect(SimLoop& loop, const SocketAddress& address);
    std::unique_ptr<Listener> listen(SimLoop& loop);
    /// Ends that processes hold, in words; empty: none.
    std::string openEnds() const;

    // --- Nics ------------------------------------------------------------------------------------------------------

    /// `port` counts from kFirstNicPort.
    void addNic(int host, unsigned port, SimNic* nic);
    void removeNic(int host, unsigned port, const SimNic* nic);
    void send(Packet packet);

  private:
    class SimStream;
    class SimListener;
    using ConnectionPtr = std::shared_ptr<Connection>;

    static std::size_t at(int host) { return static_cast<std::size_t>(host); }
    Duration travel();
    void tryConnect(const ConnectionPtr& connection);
    void push(const ConnectionPtr& connection, int end, std::string bytes, bool last);
    void pump(const ConnectionPtr& connection, int end);
    void reset(const ConnectionPtr& connection, int end);
    void wake(const ConnectionPtr& connection, int end);
    void fire(const ConnectionPtr& connection, int end);
    void deliver(const Packet& packet);

    World& world_;
    std::array<std::array<bool, kMaxHosts>, kMaxHosts> blocked_{};
    int cut_off_ = -1;  ///< -1: none.
    std::array<bool, kMaxHosts> powered_{true, true, true, true, true};
    std::array<SimListener*, kMaxHosts> listeners_{};
    std::array<std::vector<SimNic*>, kMaxHosts> nics_;
    std::vector<std::weak_ptr<Connection>> connections_;
};

}  // namespace troupe::sim
