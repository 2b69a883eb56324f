#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <utility>

#include "tests/gpu/fixture.h"

namespace troupe::gpu::testing {

/// A kernel of the application on a stream of its own, which runs until the test ends it.
class LongKernel {
  public:
    explicit LongKernel(device::Device& gpu) : gpu_(gpu), stream_(std::move(*gpu.makeStream())) {
        EXPECT_TRUE(gpu.notify(
            stream_, [](void* ended) { static_cast<std::promise<void>*>(ended)->get_future().wait(); }, &ended_));
    }
    ~LongKernel() {
        end();
        EXPECT_TRUE(gpu_.synchronize(stream_));
    }
    LongKernel(const LongKernel&) = delete;
    LongKernel& operator=(const LongKernel&) = delete;

    const device::DeviceStream& stream() const { return stream_; }
    void end() {
        if (!std::exchange(has_ended_, true)) ended_.set_value();
    }

  private:
    device::Device& gpu_;
    std::promise<void> ended_;
    bool has_ended_ = false;
    device::DeviceStream stream_;
};

/// Two engines that have only TCP between them.
class GpuEvents : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        a = startEngine(setup());
        b = startEngine(setup());
        segment = open(*a, b->localSegmentName());
    }
    void TearDown() override {
        a.reset();
        b.reset();
        GpuTest::TearDown();
    }
    static void* handle(std::uintptr_t value) { return reinterpret_cast<void*>(value); }
    static void waitFor(TransferRequest& request, bool by_stream, std::uintptr_t value) {
        if (by_stream)
            request.wait_stream = handle(value);
        else
            request.wait_event = handle(value);
    }
    device::DeviceEvent recorded(const device::DeviceStream& stream) {
        device::DeviceEvent event = must(gpu(0).makeEvent());
        must(gpu(0).record(event, stream));
        return event;
    }

    std::unique_ptr<TransferEngine> a;
    std::unique_ptr<TransferEngine> b;
    SegmentID segment = kInvalidSegmentID;
};

}  // namespace troupe::gpu::testing
