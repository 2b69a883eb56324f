#pragma once

#include <cstdint>

#include "base/status.h"

namespace troupe {

/// The code for a number that a peer sent. Internal for one that this version does not know, and for the codes of this
/// side's own doings (Canceled, Timeout, PathReset): a peer that says so might have a task end as its caller asked for,
/// or be tried again at no cost for ever. Any thread.
Code codeFromWire(std::uint32_t number);

}  // namespace troupe
