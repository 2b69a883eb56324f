#include "engine/listen_address.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <vector>

#include "base/endpoint.h"
#include "topology/addresses.h"
#include "topology/topology.h"

namespace troupe {

namespace {

std::string ownHostName() {
    char name[HOST_NAME_MAX + 1] = "";
    return ::gethostname(name, sizeof name) == 0 ? std::string(name) : std::string();
}

}  // namespace

Result<std::string> chooseListenAddress(const std::string& ip_or_host, const std::string& server_name,
                                        bool named_by_address) {
    std::vector<NetworkInterface> interfaces = discoverTopology().interfaces;
    if (const Status listed = addInterfaceAddresses(interfaces); !listed) return listed;
    if (!ip_or_host.empty()) {
        if (ip_or_host == "localhost") return std::string("127.0.0.1");
        // "[::1]" is how the address stands in a name.
        const bool brackets = ip_or_host.size() > 2 && ip_or_host.front() == '[' && ip_or_host.back() == ']';
        return pickAdvertisedAddress(interfaces, brackets ? ip_or_host.substr(1, ip_or_host.size() - 2) : ip_or_host);
    }
    const auto named = Endpoint::parse(server_name);
    if (server_name.empty() || (named && named->host == "localhost")) return std::string("127.0.0.1");
    if (named && isLocalAddress(interfaces, named->host)) return named->host;
    const bool is_interface = std::any_of(interfaces.begin(), interfaces.end(),
                                          [&](const NetworkInterface& each) { return each.name == server_name; });
    if (named_by_address && is_interface)
        return {Code::InvalidArgument, "'" + server_name +
                                           "' is an interface and no address, and with p2p a segment is " +
                                           "named by its address; give it as ip_or_host (--host " + server_name + ")"};
    // An address that is not of this machine: what is wrong with it says this, or the attempt to listen there.
    if (named_by_address && named && SocketAddress::fromNumeric(named->host, 0))
        return pickAdvertisedAddress(interfaces, named->host);
    // A name that says nothing about this machine must not put its memory on the network unasked.
    if (named_by_address && !(named && named->host == ownHostName()))
        return {Code::InvalidArgument,
                "'" + server_name + "' is no address and not the name of this machine, and with p2p " +
                    "a segment is named by its address; give ip_or_host (--host), or an empty name"};
    return pickAdvertisedAddress(interfaces, "");
}

Result<std::uint16_t> chooseControlPort(std::uint16_t rpc_port, const std::string& server_name, bool named_by_address) {
    const auto named = Endpoint::parse(server_name);
    if (!named_by_address || !named || named->port == 0) return rpc_port;
    if (rpc_port != 0 && rpc_port != named->port)
        return {Code::InvalidArgument, "local_server_name '" + server_name + "' and rpc_port " +
                                           std::to_string(rpc_port) + " name two ports; leave one out"};
    return named->port;
}

}  // namespace troupe
