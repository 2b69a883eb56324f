#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "messages/transfer_types.h"

namespace troupe::apps {

/// {"bytes", "ever", "proven", "entries": [{"addr", "length", "region", "may_still_be", "segment", "nic", "batch",
/// "task", "tasks", "ms", "cause"}]}.
nlohmann::json toJson(const Quarantined& quarantined, TimePoint now);
/// A line for what there ever was and one for each entry, with newlines; empty when there never was any.
std::string describe(const Quarantined& quarantined, TimePoint now);

}  // namespace troupe::apps
