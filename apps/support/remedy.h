#pragma once

#include <string>

#include "base/status.h"

namespace troupe::apps {

/// What a user of `troupe` can try after an error; empty where its message says it all.
std::string remedyFor(const Status& status);

}  // namespace troupe::apps
