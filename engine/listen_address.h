#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace troupe {

/// The numeric address that an engine listens on and tells its peers; TransferEngine::init says how it is chosen.
/// `named_by_address`: with p2p, where the segment's name will be that address. InvalidArgument says what to give
/// instead. Reads sysfs and asks the kernel for its interfaces; never on a data loop.
Result<std::string> chooseListenAddress(const std::string& ip_or_host, const std::string& server_name,
                                        bool named_by_address);

/// The control port: `rpc_port`, or that of a name which is an address, or 0 for any free one. InvalidArgument when
/// both are given and differ.
Result<std::uint16_t> chooseControlPort(std::uint16_t rpc_port, const std::string& server_name, bool named_by_address);

}  // namespace troupe
