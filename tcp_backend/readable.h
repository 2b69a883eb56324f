#pragma once

#include <optional>

#include "base/byte_range.h"

namespace troupe::tcp {

/// The first address of `range` that cannot be read: its mapping is gone or forbids it, or its file was cut short. One
/// system call for each page (0.2 us): for when a send has failed, to find out what of it did. Any thread.
std::optional<std::uint64_t> firstUnreadable(const ByteRange& range);

}  // namespace troupe::tcp
