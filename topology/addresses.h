#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "topology/topology.h"

namespace troupe {

/// How far an address reaches, the widest first.
enum class AddressScope { GlobalV4, GlobalV6, Private, LinkLocal, Loopback, Unusable };

/// Private: RFC 1918, RFC 6598 (100.64/10) and fc00::/7. LinkLocal: 169.254/16, and fe80::/10 with a scope. Unusable:
/// not numeric, unspecified, multicast, or fe80::/10 without a scope.
AddressScope scopeOf(const std::string& address);

/// Adds the addresses that getifaddrs(3) knows; interfaces that it knows alone are added, with its word for `up`.
/// ResourceExhausted when the kernel refuses. Never on a data loop.
Status addInterfaceAddresses(std::vector<NetworkInterface>& interfaces);

/// True when `address` belongs to one of the interfaces, up or not; the spelling of IPv6 does not matter.
bool isLocalAddress(const std::vector<NetworkInterface>& interfaces, const std::string& address);

/// The address that peers should be told.
///
/// @param preferred what the user said: a numeric address is taken as it is; the name of an interface means its best
///     address; empty means the best of all. Best: an interface that is up; not a container bridge (docker, veth,
///     br- and their like) unless there is nothing else; then the widest scope, the fastest, the first by name.
///     Loopback is last.
/// InvalidArgument: `preferred` is neither an address nor an interface with a usable address; lists the interfaces.
/// NotFound: `preferred` is empty and no interface has a usable address.
Result<std::string> pickAdvertisedAddress(const std::vector<NetworkInterface>& interfaces,
                                          const std::string& preferred);

}  // namespace troupe
