#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/host_backend/host_peer_process.h"

namespace troupe::test {

/// This process and another; the parameter says whether their memory is mapped or copied by process_vm.
class HostProcess : public testing::TestWithParam<bool> {
  protected:
    HostProcess() : HostProcess(hostSetup()) {}
    explicit HostProcess(const EngineSetup& setup) : engine_(startEngine(setup)) {
        if (mapped()) {
            const auto memory = engine_->allocateLocalMemory(kBytes);
            EXPECT_TRUE(memory) << memory.status().toString();
            if (memory) data_ = static_cast<std::byte*>(*memory);
        } else {
            data_ = plain_.data();
            EXPECT_TRUE(engine_->registerLocalMemory(data_, kBytes));
        }
    }

    bool mapped() const { return GetParam(); }
    void begin(std::uint16_t port = 0) {
        peer_.reset();
        peer_.emplace(mapped(), std::vector<std::string>(), port);
    }
    void open() {
        const auto segment = engine_->openSegment(peer_->segment());
        EXPECT_TRUE(segment) << segment.status().toString();
        if (segment) segment_ = *segment;
    }
    TransferRequest request(Opcode opcode, std::size_t offset, std::uint64_t remote, std::size_t length) {
        return makeRequest(opcode, segment_, data_ + offset, remote, length);
    }
    TransferStatus run(Opcode opcode, std::size_t offset, std::size_t length) {
        return runBatch(*engine_, {request(opcode, offset, peer_->address(offset), length)});
    }
    std::uint64_t own(std::size_t offset = 0) const { return reinterpret_cast<std::uint64_t>(data_) + offset; }
    Status release() { return mapped() ? engine_->freeLocalMemory(data_) : engine_->unregisterLocalMemory(data_); }
    bool holdsOnly(std::byte value) const {
        return std::all_of(data_, data_ + kBytes, [value](std::byte b) { return b == value; });
    }

    Buffer plain_{kBytes};
    std::unique_ptr<TransferEngine> engine_;
    std::byte* data_ = nullptr;
    std::optional<HostPeer> peer_;
    SegmentID segment_ = kInvalidSegmentID;
};

}  // namespace troupe::test
