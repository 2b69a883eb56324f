#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda_backend/cuda_runtime.h"
#include "tests/fake_cuda/control.h"

namespace troupe::cuda::testing {

/// A process with two GPUs, by the fake. At the end nothing is left of what a test made, and nothing was done that a
/// driver does not define.
class CudaTest : public ::testing::Test {
  protected:
    void SetUp() override {
        control.reset();
        auto made = CudaRuntime::create({fake_cuda::Control::path(), false});
        ASSERT_TRUE(made) << made.status().toString();
        runtime = *made;
    }
    void TearDown() override {
        for (auto& gpu : gpus) gpu.reset();
        runtime.reset();
        EXPECT_EQ(control.violations(), "");
        EXPECT_EQ(control.leftovers(), "");
    }

    device::Device& gpu(int ordinal) {
        auto& opened = gpus.at(static_cast<std::size_t>(ordinal));
        if (!opened) {
            auto result = runtime->open(ordinal);
            EXPECT_TRUE(result) << result.status().toString();
            opened = *result;
        }
        return *opened;
    }
    const api::Calls& call() const { return runtime->driver().calls(); }

    template <class T>
    T must(Result<T> result) {
        EXPECT_TRUE(result) << result.status().toString();
        return result ? std::move(*result) : T{};
    }
    void must(const Status& status) { EXPECT_TRUE(status) << status.toString(); }

    fake_cuda::Control control;
    std::shared_ptr<CudaRuntime> runtime;
    std::vector<std::shared_ptr<device::Device>> gpus = std::vector<std::shared_ptr<device::Device>>(2);
};

/// Bytes that tell their place.
inline std::vector<std::uint8_t> noise(std::size_t bytes, unsigned seed = 1) {
    std::vector<std::uint8_t> out(bytes);
    std::uint32_t value = seed * 2654435761u + 1;
    for (auto& byte : out) {
        value = value * 1664525u + 1013904223u;
        byte = static_cast<std::uint8_t>(value >> 24);
    }
    return out;
}

}  // namespace troupe::cuda::testing
