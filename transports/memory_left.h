#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace troupe {

/// How much memory can still be had without driving somebody else out of memory, and what bounds it.
struct MemoryLeft {
    std::uint64_t bytes = 0;
    std::string bound;  ///< "MemAvailable", or the memory.max of which control group.
};

/// The least of MemAvailable and, in each control group (version 2) that this process is in, memory.max less what is
/// in use there and cannot be given back. None where the kernel does not say. `root` is put before every path: for
/// tests. Reads some small files, so not for a data loop.
std::optional<MemoryLeft> memoryLeft(const std::string& root = "");

/// The kernel promises memory that it does not have, and ends some process when the pages are touched. So whoever
/// touches all of `bytes` at once asks here first. ResourceExhausted names both figures; Ok when `left` is not known.
Status checkMemoryLeft(std::uint64_t bytes, const std::optional<MemoryLeft>& left);

}  // namespace troupe
