#pragma once

#include <memory>
#include <string>

#include "apps/support/command_loop.h"
#include "base/config.h"
#include "base/status.h"
#include "control/fault_asker.h"
#include "metadata/segment_desc.h"

namespace troupe::apps::faults {

/// Breaks the engine of another process, which allows it (`faults.remote`), over a connection and a thread of its own.
/// What it broke is mended with its end, and after kLongestFault.
///
/// One thread makes and destroys it; any one at a time may call.
class FaultLine {
  public:
    /// Waits until that engine has agreed. AccessDenied: it does not; else why it cannot be asked.
    static Result<std::unique_ptr<FaultLine>> open(const Config& config, const SegmentDesc& engine);
    ~FaultLine();
    FaultLine(const FaultLine&) = delete;
    FaultLine& operator=(const FaultLine&) = delete;

    /// In the words of injection.h; "off" mends what this has broken. Waits for the answer, within a bound.
    Status inject(const std::string& what);
    /// Whom it reaches.
    const Incarnation& whom() const { return whom_; }
    /// False once the connection has ended.
    bool isOpen();

  private:
    FaultLine() = default;
    Status ask(const FaultRequest& request);

    Incarnation whom_;
    std::unique_ptr<CommandLoop> loop_;
    std::unique_ptr<FaultAsker> asker_;  ///< Used and destroyed on the loop's turn.
};

}  // namespace troupe::apps::faults
