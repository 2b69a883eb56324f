#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/memory.h"
#include "tests/support/engine_pair.h"

namespace troupe::gpu::testing {

using cuda::testing::noise;
using test::BatchHolder;
using test::EngineSetup;
using test::expectCode;
using test::expectCompleted;
using test::makeRequest;
using test::runBatch;
using test::startEngine;

/// Engines of a process with two GPUs. At the end nothing of them is left on the GPUs, and nothing was done that a
/// driver does not define.
class GpuTest : public cuda::testing::CudaTest {
  protected:
    static EngineSetup setup() {
        EngineSetup setup;
        setup.config.gpu_driver = fake_cuda::Control::path();
        // Small, so that tests see many chunks and rings that are exhausted.
        setup.config.gpu_staging_chunk_bytes = 64u << 10;
        setup.config.gpu_staging_chunks = 4;
        return setup;
    }
    Memory make(const std::string& kind, std::uint64_t bytes) {
        return Memory(kind, bytes, *runtime, control, [this](int ordinal) -> device::Device& { return gpu(ordinal); });
    }
    static void registerAll(TransferEngine& engine, Memory& memory) {
        const Status done = engine.registerLocalMemory(memory.pointer(), memory.size());
        EXPECT_TRUE(done) << memory.kind() << ": " << done.toString();
    }
    Memory registered(TransferEngine& engine, const std::string& kind, std::uint64_t bytes) {
        Memory memory = make(kind, bytes);
        registerAll(engine, memory);
        return memory;
    }
    static SegmentID open(TransferEngine& engine, const std::string& name) {
        const auto segment = engine.openSegment(name);
        EXPECT_TRUE(segment) << segment.status().toString();
        return segment ? *segment : kInvalidSegmentID;
    }
};

}  // namespace troupe::gpu::testing
