#pragma once

#include <cstdint>

#include "base/status.h"

namespace troupe::apps {

/// A TCP port of the loopback interface that was free a moment ago, by the kernel's choice, so that others get other
/// ones.
Result<std::uint16_t> freePort();

}  // namespace troupe::apps
