#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/faults/network.h"
#include "apps/support/child_process.h"
#include "base/byte_range.h"
#include "base/status.h"

namespace troupe::apps::faults {

/// A process of this program that serves memory (`troupe serve`). Killed with it.
class Target {
  public:
    struct Options {
        std::uint64_t size = 16u << 20;
        std::string transport = "tcp";
        std::string metadata = "p2p";
        std::string name;  ///< With a store.
        std::string host = "127.0.0.1";
        std::vector<std::string> settings;  ///< "key=value".
        const Network* network = nullptr;   ///< Inside of it; outlives this.
    };

    explicit Target(Options options) : options_(std::move(options)) {}
    ~Target() { kill(); }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    /// Starts the process, on the port that it had before if it had one; `isUp` says when it serves.
    Status launch();
    /// Waits a millisecond at most. Once true, segment and memory are known. The process's own error when it ended.
    Result<bool> isUp();
    bool runs() const { return process_.has_value(); }
    pid_t pid() const { return process_ ? process_->pid() : -1; }
    void kill();
    void stop() { process_->signal(SIGSTOP); }
    /// The same, and returns when no thread of it runs any more.
    void stopWholly();
    void proceed() { process_->signal(SIGCONT); }
    /// Leaves it no descriptor but those it has, or as many as before.
    Status setFewFiles(bool few);
    /// Gives it no page of memory more than it has, or as many as before. Unsupported: under AddressSanitizer.
    Status setFewMemory(bool few);

    const std::string& segment() const { return segment_; }
    const ByteRange& memory() const { return memory_; }

  private:
    struct Limit {
        int resource = 0;
        rlim_t few = 0;
        rlimit before{};
    };
    Status setLimit(Limit& limit, bool few);

    const Options options_;
    std::optional<ChildProcess> process_;
    std::string segment_;
    ByteRange memory_;
    std::uint16_t port_ = 0;
    /// Lower than every descriptor it has, but for the standard ones: it keeps those, and gets none.
    Limit files_{RLIMIT_NOFILE, 3};
    Limit address_space_{RLIMIT_AS, 0};
    Limit data_{RLIMIT_DATA, 0};
};

}  // namespace troupe::apps::faults
