#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bench/row.h"

namespace troupe::bench {

/// The first lines of the table.
std::string tableHead();
/// One line of the table.
std::string tableLine(const Outcome& outcome);
/// The outcomes as the JSON list [{name, value, unit, peer, peer_value, ratio, target, met}], null where there is none;
/// with an `error` where a figure is missing. Makes the folder. ResourceExhausted: the file cannot be written.
/// `keep`: a file that was written so before; its rows of other names come first. Empty, or there is none: nothing to
/// keep.
Status writeJson(const std::vector<Outcome>& outcomes, const std::string& path, const std::string& keep = {});

}  // namespace troupe::bench
