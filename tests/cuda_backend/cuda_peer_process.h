#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cuda_backend/cuda_peer_wire.h"
#include "tests/fake_cuda/peer_process.h"

namespace troupe::cuda::testing {

/// cuda_peer as a child of the test.
class CudaPeerProcess : public fake_cuda::PeerProcess {
  public:
    explicit CudaPeerProcess(const std::vector<std::string>& environment = {})
        : PeerProcess(TROUPE_CUDA_PEER, environment) {}

    std::vector<device::SharedMemory> exported(std::uint64_t addr, std::uint64_t bytes, bool fabric = false) {
        std::istringstream answer(
            ask("export " + std::to_string(addr) + " " + std::to_string(bytes) + (fabric ? " 1" : " 0")));
        std::string ok;
        std::size_t pieces = 0;
        answer >> ok >> pieces;
        EXPECT_EQ(ok, "ok") << answer.str();
        std::vector<device::SharedMemory> shared;
        for (std::size_t index = 0; index < pieces; ++index) shared.push_back(fromText(answer, pid()));
        return shared;
    }
};

}  // namespace troupe::cuda::testing
