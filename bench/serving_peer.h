#pragma once

#include <cstdint>
#include <string>

#include "apps/support/child_process.h"
#include "base/status.h"
#include "bench/row.h"

namespace troupe::bench {

/// Another process of this program with an engine of its own, which exposes memory over one transport and "host".
class ServingPeer {
  public:
    /// One region of the settings' footprint, or `regions` regions of 4 KiB that do not touch.
    /// `engine_memory`: that one region is memory of the engine's own.
    static Result<ServingPeer> start(const Settings& settings, std::size_t regions = 1, bool engine_memory = false,
                                     const std::string& transport = "tcp");
    ServingPeer() = default;  ///< None: to be assigned.
    ServingPeer(ServingPeer&&) = default;
    ServingPeer& operator=(ServingPeer&&) = default;
    ~ServingPeer();  ///< It frees its engine and ends, as its input ends; killed where that takes seconds.

    const std::string& segment() const { return segment_; }
    /// Where its (first) region begins.
    std::uint64_t address() const { return address_; }
    double cpuSeconds() const { return process_.cpuSeconds(); }
    pid_t pid() const { return process_.pid(); }

  private:
    apps::ChildProcess process_;
    std::string segment_;
    std::uint64_t address_ = 0;
};

/// The process itself: prints {"segment": ..., "address": ..., "length": ...} and ends when standard input closes.
/// Returns the exit code.
int servePeer(const Settings& settings, std::size_t regions, bool engine_memory, const std::string& transport);

}  // namespace troupe::bench
