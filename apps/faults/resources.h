#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/status.h"

namespace troupe::apps::faults {

/// What resident memory may grow by before it counts as a leak: an allocator keeps and splits pages as it likes. A leak
/// passes it in any run that is worth the name.
inline constexpr std::uint64_t kMemorySlack = 32u << 20;
/// Descriptors that may be left for a moment: connections of peers that just died.
inline constexpr std::uint64_t kDescriptorSlack = 8;

/// What a process has of what a leak takes.
struct Resources {
    std::uint64_t memory = 0;  ///< Resident, bytes.
    std::uint64_t descriptors = 0;
};

/// Of a process of the same user. NotFound: it is gone.
Result<Resources> resourcesOf(pid_t process);
/// Of this process, once free memory is given back to the system.
Result<Resources> ownResources();

}  // namespace troupe::apps::faults
