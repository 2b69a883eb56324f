#include "tcp_backend/tcp_transport.h"

#include <algorithm>

#include "transports/staging.h"

namespace troupe::tcp {

namespace {

/// Connections the kernel completes before the loop accepts them; the kernel cuts it to net.core.somaxconn.
constexpr int kBacklog = 512;

constexpr std::uint32_t kLastPort = 65535;

}  // namespace

Status TcpTransport::install(const TransportContext& context) {
    const unsigned loops = std::max(context.data_loops, 1u);
    const std::uint32_t first_port = context.config.tcp_port;
    const std::string setting = "tcp.port " + std::to_string(first_port);
    if (first_port != 0 && first_port + loops - 1 > kLastPort)
        return {Code::InvalidArgument, setting + ": " + std::to_string(loops) +
                                           " data loops need a port each, and there is none after " +
                                           std::to_string(kLastPort)};
    std::vector<PlacedNic> nics;
    std::vector<std::uint16_t> ports;
    for (unsigned loop = 0; loop < loops; ++loop) {
        const auto port = static_cast<std::uint16_t>(first_port == 0 ? 0 : first_port + loop);
        const auto address = SocketAddress::fromNumeric(context.bind_host, port);
        if (!address.isOk()) return address.status().withContext("tcp");
        auto listener = listenOn(*address, kBacklog);
        if (!listener.isOk()) {
            const std::string where = first_port == 0 ? "tcp" : setting + ", data loop " + std::to_string(loop);
            return listener.status().withContext(where);
        }
        const auto bound = SocketAddress::local(listener->get());
        if (!bound.isOk()) return bound.status().withContext("tcp");
        auto nic = TcpNic::create(context, loop, std::move(*listener));
        if (!nic.isOk()) return nic.status().withContext("tcp");
        ports.push_back(bound->port());
        nics.push_back({loop, std::move(*nic)});
    }
    staging_ = context.staging;
    nics_ = std::move(nics);
    ports_ = std::move(ports);
    return {};
}

Status TcpTransport::registerMemory(const Region& region) {
    if (!region.isOnDevice()) return {};
    if (!staging_)
        return {Code::Unsupported, "tcp: " + region.range.toString() + " is memory of " + region.location +
                                       ", and there is no staging memory for it"};
    return staging_->acquire(name(), region);
}

Status TcpTransport::unregisterMemory(const Region& region) {
    if (region.isOnDevice() && staging_) staging_->release(name(), region);
    return {};
}

void TcpTransport::describe(SegmentDesc& desc) const {
    if (ports_.empty()) return;
    desc.transports.push_back(name());
    desc.lane_ports = ports_;
    desc.tcp_data_port = ports_.front();
}

Status TcpTransport::reaches(const SegmentDesc& peer) const {
    if (std::find(peer.transports.begin(), peer.transports.end(), name()) == peer.transports.end())
        return {Code::TransportMissing, "segment '" + peer.name + "' does not serve tcp"};
    if (peer.lane_ports.empty() && peer.tcp_data_port == 0)
        return {Code::TransportMissing, "segment '" + peer.name + "' serves tcp but names no data port"};
    return {};
}

std::string TcpTransport::deviceWay(const DeviceRequest& request) const {
    const bool is_here_on_device = request.from != nullptr && request.from->isOnDevice();
    return std::string("staged through pinned memory ") + (!is_here_on_device           ? "there"
                                                           : request.is_there_on_device ? "at both ends"
                                                                                        : "here");
}

}  // namespace troupe::tcp
