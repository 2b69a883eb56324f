#pragma once

#include <fcntl.h>

#include <iomanip>
#include <istream>
#include <sstream>
#include <string>

#include "transports/device.h"

namespace troupe::cuda::testing {

/// A SharedMemory as words: KIND ID BASE LENGTH HANDLE FD. The descriptor is named by its number, and taken over from
/// the other process's table.
inline std::string toText(const device::SharedMemory& shared) {
    std::ostringstream out;
    out << static_cast<int>(shared.kind) << ' ' << shared.allocation_id << ' ' << shared.allocation.addr << ' '
        << shared.allocation.length << ' ' << std::hex << std::setfill('0');
    for (const std::uint8_t byte : shared.handle) out << std::setw(2) << static_cast<int>(byte);
    out << std::dec << ' ' << shared.fd.get();
    return out.str();
}

inline device::SharedMemory fromText(std::istream& in, int process) {
    device::SharedMemory shared;
    int kind = 0;
    int fd = -1;
    std::string handle;
    in >> kind >> shared.allocation_id >> shared.allocation.addr >> shared.allocation.length >> handle >> fd;
    shared.kind = static_cast<device::ShareKind>(kind);
    for (std::size_t index = 0; index < shared.handle.size(); ++index)
        shared.handle[index] = static_cast<std::uint8_t>(std::stoi(handle.substr(2 * index, 2), nullptr, 16));
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(fd);
    if (fd >= 0) shared.fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    return shared;
}

}  // namespace troupe::cuda::testing
