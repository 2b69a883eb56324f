#include "topology/addresses.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>

#include "base/endpoint.h"

namespace troupe {

namespace {

/// Interfaces that container and virtual machine managers make: their addresses mean nothing to another machine.
constexpr std::array<std::string_view, 8> kBridgePrefixes = {"docker", "veth",    "br-",  "virbr",
                                                             "cni",    "flannel", "cali", "lxc"};

bool isBridge(std::string_view name) {
    return std::any_of(kBridgePrefixes.begin(), kBridgePrefixes.end(),
                       [&](std::string_view prefix) { return name.substr(0, prefix.size()) == prefix; });
}

AddressScope scopeOfV4(std::uint32_t address) {
    const auto in = [&](std::uint32_t network, int bits) { return address >> (32 - bits) == network >> (32 - bits); };
    if (in(0x7f000000, 8)) return AddressScope::Loopback;
    if (in(0x00000000, 8) || in(0xe0000000, 3)) return AddressScope::Unusable;  // "This" network; multicast and above.
    if (in(0xa9fe0000, 16)) return AddressScope::LinkLocal;
    if (in(0x0a000000, 8) || in(0xac100000, 12) || in(0xc0a80000, 16) || in(0x64400000, 10))
        return AddressScope::Private;
    return AddressScope::GlobalV4;
}

AddressScope scopeOfV6(const in6_addr& address, bool has_scope) {
    if (IN6_IS_ADDR_LOOPBACK(&address)) return AddressScope::Loopback;
    if (IN6_IS_ADDR_UNSPECIFIED(&address) || IN6_IS_ADDR_MULTICAST(&address)) return AddressScope::Unusable;
    if (IN6_IS_ADDR_LINKLOCAL(&address)) return has_scope ? AddressScope::LinkLocal : AddressScope::Unusable;
    if ((address.s6_addr[0] & 0xfe) == 0xfc) return AddressScope::Private;
    return AddressScope::GlobalV6;
}

/// Where an address stands among the candidates; the smallest is told to peers. Nothing when it must never be.
struct Rank {
    int kind;  ///< 0: real interface, 1: container bridge, 2: loopback.
    AddressScope scope;
    std::uint32_t slowness;  ///< Falls with the speed.

    auto tie() const { return std::tie(kind, scope, slowness); }
};

std::optional<Rank> rankOf(const NetworkInterface& interface, const std::string& address) {
    const AddressScope scope = scopeOf(address);
    if (!interface.up || scope == AddressScope::Unusable) return std::nullopt;
    const int kind = scope == AddressScope::Loopback ? 2 : isBridge(interface.name) ? 1 : 0;
    return Rank{kind, scope, UINT32_MAX - interface.speed_mbps};
}

std::string list(const std::vector<NetworkInterface>& interfaces) {
    std::string text;
    for (const auto& interface : interfaces) {
        text += (text.empty() ? "" : ", ") + interface.name + (interface.up ? "" : " (down)");
        for (const auto& address : interface.addresses) text += " " + address;
    }
    return text.empty() ? "none" : text;
}

/// An address in the one spelling that inet_ntop gives, so that two spellings compare equal.
std::string canonical(const std::string& address) {
    const auto parsed = SocketAddress::fromNumeric(address, 0);
    return parsed ? parsed->host() : address;
}

std::optional<std::string> bestOf(const std::vector<NetworkInterface>& interfaces, const std::string& only) {
    std::optional<Rank> best;
    std::string chosen;
    for (const auto& interface : interfaces) {
        if (!only.empty() && interface.name != only) continue;
        for (const auto& address : interface.addresses) {
            const auto rank = rankOf(interface, address);
            if (!rank || (best && best->tie() <= rank->tie())) continue;
            best = rank;
            chosen = address;
        }
    }
    if (!best) return std::nullopt;
    return chosen;
}

std::optional<std::string> numericHost(const sockaddr& address) {
    const socklen_t length = address.sa_family == AF_INET    ? sizeof(sockaddr_in)
                             : address.sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                             : 0;
    char host[NI_MAXHOST];
    if (length == 0 || ::getnameinfo(&address, length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0)
        return std::nullopt;
    return std::string(host);
}

}  // namespace

AddressScope scopeOf(const std::string& address) {
    const auto percent = address.find('%');
    const std::string bare = address.substr(0, percent);
    const bool has_scope = percent != std::string::npos && percent + 1 < address.size();
    in_addr v4{};
    if (percent == std::string::npos && ::inet_pton(AF_INET, bare.c_str(), &v4) == 1)
        return scopeOfV4(ntohl(v4.s_addr));
    in6_addr v6{};
    if (::inet_pton(AF_INET6, bare.c_str(), &v6) == 1) return scopeOfV6(v6, has_scope);
    return AddressScope::Unusable;
}

Status addInterfaceAddresses(std::vector<NetworkInterface>& interfaces) {
    ifaddrs* raw = nullptr;
    if (::getifaddrs(&raw) != 0) return errnoStatus(Code::ResourceExhausted, "getifaddrs", errno);
    const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> guard(raw, &::freeifaddrs);
    for (const ifaddrs* entry = raw; entry; entry = entry->ifa_next) {
        if (!entry->ifa_addr) continue;
        const auto host = numericHost(*entry->ifa_addr);
        if (!host) continue;
        auto found = std::find_if(interfaces.begin(), interfaces.end(),
                                  [&](const auto& interface) { return interface.name == entry->ifa_name; });
        if (found == interfaces.end()) {
            NetworkInterface interface;
            interface.name = entry->ifa_name;
            interface.up = (entry->ifa_flags & IFF_UP) != 0 && (entry->ifa_flags & IFF_RUNNING) != 0;
            found = interfaces.insert(interfaces.end(), std::move(interface));
        }
        found->addresses.push_back(*host);
    }
    return Status::ok();
}

bool isLocalAddress(const std::vector<NetworkInterface>& interfaces, const std::string& address) {
    const std::string wanted = canonical(address);
    for (const auto& interface : interfaces)
        for (const auto& each : interface.addresses)
            if (canonical(each) == wanted) return true;
    return false;
}

Result<std::string> pickAdvertisedAddress(const std::vector<NetworkInterface>& interfaces,
                                          const std::string& preferred) {
    if (!preferred.empty() && scopeOf(preferred) != AddressScope::Unusable) return preferred;
    if (auto best = bestOf(interfaces, preferred)) return std::move(*best);
    if (preferred.empty())
        return {Code::NotFound, "no interface that is up has a usable address; interfaces: " + list(interfaces)};
    return {Code::InvalidArgument, "'" + preferred +
                                       "' is neither an address that peers can be told (0.0.0.0 is none) nor an "
                                       "interface that is up and has one; interfaces: " +
                                       list(interfaces)};
}

}  // namespace troupe
