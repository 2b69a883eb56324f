#pragma once

#include "base/byte_range.h"

namespace troupe {

/// True when the first or the last page of `range` can be read but not written (a mapping of weights, say). Where the
/// kernel cannot tell (before 5.14, or a device's memory) it is taken to be writable. Makes these two pages exist.
/// Any thread.
bool isReadOnly(const ByteRange& range);

}  // namespace troupe
