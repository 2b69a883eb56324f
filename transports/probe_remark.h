#pragma once

#include "base/status.h"

namespace troupe {

/// A TransportProbe that may have more to say than whether it came through: the transport reaches the peer, but not by
/// every way it has.
class ProbeRemark {
  public:
    virtual ~ProbeRemark() = default;

    /// Ok, or what does not work and why, for explain. Call it when the probe has come through.
    virtual Status remark() const = 0;
};

}  // namespace troupe
