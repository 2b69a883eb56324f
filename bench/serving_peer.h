#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "bench/child_process.h"
#include "bench/row.h"

namespace troupe::bench {

/// Another process of this program with an engine of its own, which exposes memory over "tcp".
class ServingPeer {
  public:
    /// One region of the settings' footprint, or `regions` regions of 4 KiB that do not touch.
    static Result<ServingPeer> start(const Settings& settings, std::size_t regions = 1);

    const std::string& segment() const { return segment_; }
    /// Where its (first) region begins.
    std::uint64_t address() const { return address_; }
    double cpuSeconds() const { return process_.cpuSeconds(); }

  private:
    ChildProcess process_;
    std::string segment_;
    std::uint64_t address_ = 0;
};

/// The process itself: prints {"segment": ..., "address": ..., "length": ...} and ends when standard input closes.
/// Returns the exit code.
int servePeer(const Settings& settings, std::size_t regions);

}  // namespace troupe::bench
