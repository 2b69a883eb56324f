#pragma once

#include <signal.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/fake_cuda/peer_process.h"
#include "tests/support/standstill.h"

namespace troupe::gpu::testing {

/// gpu_peer as a child of the test.
class GpuPeerProcess : public fake_cuda::PeerProcess {
  public:
    explicit GpuPeerProcess(const std::vector<std::string>& environment = {})
        : PeerProcess(TROUPE_GPU_PEER, environment) {}

    /// The name of its segment.
    std::string start(bool host_peers, bool tcp) {
        return word(std::string("start ") + (host_peers ? "1 " : "0 ") + (tcp ? "1" : "0"));
    }

    /// Returns when it stands still.
    void stop() {
        ::kill(pid(), SIGSTOP);
        const auto limit = Clock::now() + test::kPatience;
        while (!test::allThreadsStopped(pid()) && Clock::now() < limit) std::this_thread::yield();
    }
    void goOn() { ::kill(pid(), SIGCONT); }
};

}  // namespace troupe::gpu::testing
