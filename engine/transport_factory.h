#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "transports/transport.h"

namespace troupe {

/// A transport as the engine knows it by name.
struct MadeTransport {
    std::unique_ptr<Transport> transport;
    int preference;  ///< Lower is tried first for a peer that several reach.
};

/// NotFound lists the known names.
Result<MadeTransport> makeTransport(const std::string& name);

}  // namespace troupe
