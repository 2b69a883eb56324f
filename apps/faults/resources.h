#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/status.h"

namespace troupe::apps::faults {

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
