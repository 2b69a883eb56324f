#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace troupe {

/// Why a range of memory may not be used, and the first address that is at fault.
struct RangeFault {
    Code code = Code::Ok;    ///< Ok: it may. InvalidArgument (wraps), AddressNotRegistered, AccessDenied.
    bool read_only = false;  ///< Of AccessDenied: it is mapped read-only; else not remotely accessible.
    std::uint64_t addr = 0;

    explicit operator bool() const { return code != Code::Ok; }
    /// "0x7f00 is not registered": the words of every transport. The tracker says which range the task asked for.
    std::string toString() const;
};

}  // namespace troupe
