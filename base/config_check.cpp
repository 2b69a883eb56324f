// What no setting says by itself: values that are each in their range and hinder each other.

#include <algorithm>
#include <initializer_list>
#include <thread>
#include <utility>

#include "base/config.h"
#include "base/config_units.h"

namespace troupe {

namespace {

constexpr unsigned kMostAutomaticLoops = 4;
constexpr std::uint32_t kLastPort = 65535;
/// The most that one request of TCP carries (docs/design.md, "Formats"), however large a slice may be.
constexpr std::uint64_t kMostTcpSlice = 256u << 20;

/// A setting as a message names it, "tcp.lanes 4".
struct Named {
    const char* name;
    std::string value;
    std::string text() const { return std::string(name) + " " + value; }
};

/// `less` is below `more`, and what comes of it.
Status tooSmall(const Named& less, const Named& more, const std::string& why) {
    return {Code::InvalidArgument, less.text() + " is less than " + more.text() + ": " + why + "; raise " + less.name +
                                       ", or lower " + more.name};
}

/// A Nic has its window in flight to a peer, or a slice where that is more.
Status checkReadsOfOnePeer(const Config& config) {
    const std::uint64_t slice_bytes = std::min(config.slice_bytes, kMostTcpSlice);
    const bool slice = slice_bytes > config.tcp_window_bytes;
    const std::uint64_t window = slice ? slice_bytes : config.tcp_window_bytes;
    if (config.peer_tcp_bytes >= window) return {};
    return tooSmall({"peer.tcp_bytes", formatBytesSetting(config.peer_tcp_bytes)},
                    {slice ? "slice_bytes" : "tcp.window_bytes", formatBytesSetting(window)},
                    "so much does a peer with these settings ask for at once, and its READs would be refused");
}

/// Each of the settings on the left bounds the lanes of one peer, which open all of them.
Status checkLanes(const Config& config) {
    struct Bound {
        const char* name;
        std::uint32_t value;
        const char* lanes_name;
        std::uint32_t lanes;
    };
    for (const Bound& bound : std::initializer_list<Bound>{
             {"peer.tcp_connections", config.peer_tcp_connections, "tcp.lanes", config.tcp_lanes},
             {"tcp.max_connections", config.tcp_max_connections, "tcp.lanes", config.tcp_lanes},
             {"peer.rdma_connections", config.peer_rdma_connections, "rdma.lanes", config.rdma_lanes},
             {"rdma.max_connections", config.rdma_max_connections, "rdma.lanes", config.rdma_lanes},
             {"rdma.max_endpoints", config.rdma_max_endpoints, "rdma.lanes", config.rdma_lanes}})
        if (bound.value < bound.lanes)
            return tooSmall({bound.name, std::to_string(bound.value)}, {bound.lanes_name, std::to_string(bound.lanes)},
                            "one peer with these settings opens so many connections, and some would be refused");
    return {};
}

Status checkKeepalive(const Config& config) {
    // Equal is too little, too: the answer to a ping would have to be there the moment it is sent.
    if (config.keepalive_timeout > config.keepalive_interval) return {};
    const std::string timeout = formatTimeSetting(config.keepalive_timeout);
    const std::string interval = formatTimeSetting(config.keepalive_interval);
    return {Code::InvalidArgument, "keepalive_timeout " + timeout + " is not more than keepalive_interval " + interval +
                                       ": a peer that is asked so seldom would be taken for dead in between; raise "
                                       "keepalive_timeout (three intervals are usual), or lower keepalive_interval"};
}

Status checkPorts(const Config& config) {
    const unsigned loops = dataLoopCount(config);
    if (config.tcp_port == 0 || config.tcp_port + loops - 1 <= kLastPort) return {};
    return {Code::InvalidArgument, "tcp.port " + std::to_string(config.tcp_port) + ": " + std::to_string(loops) +
                                       " data loops (data_loops " + std::to_string(config.data_loops) +
                                       ") need a port each, and there is none after " + std::to_string(kLastPort) +
                                       "; take tcp.port " + std::to_string(kLastPort + 1 - loops) +
                                       " or less, or fewer data_loops"};
}

Status checkFaults(const Config& config) {
    if (!config.faults_remote || config.faults_enabled) return {};
    return {Code::InvalidArgument,
            "faults.remote lets others break this engine, which faults.enabled does not: set both, or neither"};
}

}  // namespace

unsigned dataLoopCount(const Config& config) {
    if (config.data_loops != 0) return config.data_loops;
    return std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostAutomaticLoops);
}

Status checkConfig(const Config& config) {
    for (const ConfigKey& key : ConfigLoader::schema()) {
        Config scratch = config;
        if (const Status sound = key.set(scratch, key.get(config)); !sound) return sound.withContext(key.name);
    }
    for (const auto check : {checkReadsOfOnePeer, checkLanes, checkKeepalive, checkPorts, checkFaults})
        if (Status sound = check(config); !sound) return sound;
    return {};
}

}  // namespace troupe
