#pragma once

#include <vector>

#include "bench/row.h"

namespace troupe::bench {

/// A part of redisRows: what an outage of the server costs.
std::vector<Row> redisOutageRows();

}  // namespace troupe::bench
