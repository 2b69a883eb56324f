#pragma once

#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe::apps {

/// Turns SIGINT and SIGTERM into something that can be asked. Made on the main thread before any other is started, so
/// that all of them inherit the blocked signals. After the first signal the default action is back: a second one ends
/// the process at once.
class StopSignal {
  public:
    static Result<StopSignal> install();

    /// One thread.
    bool requested();
    /// Readable when a signal has come; for poll(2).
    int fd() const { return fd_.get(); }

  private:
    UniqueFd fd_;
    bool requested_ = false;
};

}  // namespace troupe::apps
