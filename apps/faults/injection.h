#pragma once

#include <string>
#include <vector>

#include "base/fault_injector.h"
#include "base/status.h"
#include "control/fault_request.h"

namespace troupe::apps::faults {

/// What "fault inject WHAT" takes, but for "off", for "one-of-two-paths", which needs an engine that has two, and for
/// "one-lost-completion", after which one operation ends by its deadline alone.
const std::vector<std::string>& injections();

/// The same and the others, as what is asked of an injector; rules of it last until they are removed. InvalidArgument
/// lists what there is.
Result<FaultRequest> injection(const std::string& what);

/// Breaks the traffic's own engine so, in addition to what is broken already; "off" ends all of it. InvalidArgument
/// lists what there is.
Status inject(FaultInjector& faults, const std::string& what);

}  // namespace troupe::apps::faults
