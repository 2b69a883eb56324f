#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace troupe {

/// Why registered memory may not be used.
enum class Denial : std::uint8_t {
    LocalOnly,    ///< It is not remotely accessible.
    ReadOnly,     ///< It is mapped read-only.
    Untouchable,  ///< Its owner may not touch it any more: it was protected, or its file cut short.
    NotCopied,    ///< Of a GPU, whose driver does not copy it: it was freed while it was registered, say.
};

/// Why a range of memory may not be used, and the first address that is at fault.
struct RangeFault {
    Code code = Code::Ok;               ///< Ok: it may. InvalidArgument (wraps), AddressNotRegistered, AccessDenied.
    std::uint64_t addr = 0;             ///< 0: of a Denial::Untouchable that nobody can place.
    Denial denial = Denial::LocalOnly;  ///< Of AccessDenied.

    explicit operator bool() const { return code != Code::Ok; }
    /// "0x7f00 is not registered": the words of every transport. The tracker says which range the task asked for.
    std::string toString() const;
};

}  // namespace troupe
