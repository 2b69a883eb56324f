#pragma once

#include <memory>

#include "base/status.h"

namespace troupe::apps {

/// Turns SIGINT and SIGTERM into something that can be asked. Made on the main thread before any other is started, so
/// that all of them inherit the blocked signals: none is interrupted by one. The first signal is what requested() says;
/// a second one ends the process at once, whatever it is doing then.
class StopSignal {
  public:
    static Result<StopSignal> install();
    StopSignal(StopSignal&&) noexcept;
    StopSignal& operator=(StopSignal&&) = delete;
    /// Signals stay blocked.
    ~StopSignal();

    /// Any thread.
    bool requested() const;
    /// Readable when a signal has come, and ever after; for poll(2).
    int fd() const;

  private:
    class Watch;
    explicit StopSignal(std::unique_ptr<Watch> watch);
    std::unique_ptr<Watch> watch_;
};

}  // namespace troupe::apps
