#pragma once

#include <string>
#include <vector>

#include "base/byte_range.h"
#include "base/status.h"
#include "topology/location.h"

namespace troupe {

/// InvalidArgument unless every page of `range` is mapped in this process; names the first byte that is not. One system
/// call that walks the mappings, not the pages (0.3 us for one of any size, 0.2 us for each more). What it means may
/// change as soon as it has returned. Ok for ranges that are empty or wrap. Any thread.
Status checkMapped(const ByteRange& range);

/// InvalidArgument unless `text` is "*", "cuda:N", or "cpu:N" or "segments:..." with every node among `nodes`, which
/// the error names.
Result<Location> readLocation(const std::string& text, const std::vector<int>& nodes);

}  // namespace troupe
