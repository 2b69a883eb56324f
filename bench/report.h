#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "bench/row.h"

namespace troupe::bench {

/// Rows of a file that writeJson wrote before, each as JSON.
using KeptRows = std::vector<std::string>;

/// NotFound: there is no such file; InvalidArgument: it is another one.
Result<KeptRows> readRows(const std::string& path);

/// The same of a file that is to be written anew: none where there is none yet, or an empty one, or no plain file.
/// InvalidArgument: it could not be written, or holds something else.
Result<KeptRows> rowsOfOut(const std::string& path);

/// The first lines of the table.
std::string tableHead();
/// One line of the table.
std::string tableLine(const Outcome& outcome);
/// The outcomes as the JSON list [{name, value, unit, peer, peer_value, ratio, target, met}], null where there is none;
/// with an `error` where a figure is missing. Makes the folder. ResourceExhausted: the file cannot be written.
/// Those of `keep` that have other names come first.
Status writeJson(const std::vector<Outcome>& outcomes, const std::string& path, const KeptRows& keep);

}  // namespace troupe::bench
