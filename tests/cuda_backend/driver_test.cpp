#include "cuda_backend/driver.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <set>

#include "tests/fake_cuda/control.h"

namespace troupe::cuda {
namespace {

using fake_cuda::Control;

/// The fake under a file name of its own, so that the process has not loaded it, whatever ran before.
class Copy {
  public:
    Copy() : path_(std::filesystem::temp_directory_path() / ("libcuda-" + std::to_string(::getpid()) + ".so.1")) {
        std::filesystem::copy_file(Control::path(), path_, std::filesystem::copy_options::overwrite_existing);
    }
    ~Copy() { std::filesystem::remove(path_); }
    std::string path() const { return path_; }

  private:
    std::filesystem::path path_;
};

/// A variable of the environment while it lives.
class Variable {
  public:
    Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
    ~Variable() { ::unsetenv(name_); }

  private:
    const char* name_;
};

std::string whyNot(const CudaDriver::Source& source) {
    const auto driver = CudaDriver::load(source);
    EXPECT_FALSE(driver);
    EXPECT_EQ(driver.status().code(), Code::Unsupported);
    const std::string& message = driver.status().message();
    EXPECT_EQ(message.rfind("no CUDA driver: ", 0), 0u) << message;
    return message;
}

TEST(CudaDriver, WhereThereIsNoneTheAnswerSaysWhy) {
    const std::string none = whyNot({"/nowhere/libcuda.so.1", false});
    for (const char* part : {"/nowhere/libcuda.so.1", "libcuda1", "gpu.driver"})
        EXPECT_NE(none.find(part), std::string::npos) << none;
    const std::string why = whyNot({"libm.so.6", false});
    EXPECT_NE(why.find("libm.so.6 has no cuInit"), std::string::npos) << why;
}

TEST(CudaDriver, IsFoundByItsPath) {
    const auto driver = CudaDriver::load({Control::path(), false});
    ASSERT_TRUE(driver) << driver.status().toString();
    EXPECT_EQ((*driver)->path(), Control::path());
    EXPECT_EQ((*driver)->version(), 13000);
    EXPECT_NE(whyNot({"/nowhere/else.so", false}).find("/nowhere/else.so"), std::string::npos);
}

TEST(CudaDriver, IsNotLoadedForWhoOnlyAsks) {
    const Copy copy;
    EXPECT_NE(whyNot({copy.path(), true}).find("has not loaded"), std::string::npos);
    EXPECT_NE(whyNot({copy.path(), true}).find("has not loaded"), std::string::npos);
    ASSERT_TRUE(CudaDriver::load({copy.path(), false}));
    EXPECT_TRUE(CudaDriver::load({copy.path(), true}));
}

TEST(CudaDriver, AFailureOfItsInitIsTheReason) {
    Control control;
    control.reset();
    control.fail("cuInit", api::Result::NoDevice);
    const std::string why = whyNot({Control::path(), false});
    EXPECT_NE(why.find("cuInit: CUDA_ERROR_NO_DEVICE (100)"), std::string::npos) << why;
    EXPECT_TRUE(CudaDriver::load({Control::path(), false}));
}

TEST(CudaDriver, AnOldOneIsRefusedByTheCallThatItLacks) {
    {
        const Variable version("FAKE_CUDA_VERSION", "11000");
        Control().reset();
        const std::string why = whyNot({Control::path(), false});
        EXPECT_NE(why.find("has no cuDeviceGetUuid: CUDA 11.4 or newer is needed"), std::string::npos) << why;
    }
    {
        const Variable missing("FAKE_CUDA_MISSING", "cuMemGetHandleForAddressRange,cuStreamWaitEvent");
        Control().reset();
        EXPECT_NE(whyNot({Control::path(), false}).find("has no cuStreamWaitEvent"), std::string::npos);
    }
    Control().reset();
}

TEST(CudaDriver, ACallThatItMayLackAnswersForItself) {
    {
        const Variable version("FAKE_CUDA_VERSION", "11040");
        Control().reset();
        const auto driver = CudaDriver::load({Control::path(), false});
        ASSERT_TRUE(driver) << driver.status().toString();
        int fd = -1;
        const Outcome outcome = invoke((*driver)->calls().memGetHandleForAddressRange, static_cast<void*>(&fd),
                                       api::DevicePtr{4096}, std::size_t{4096}, api::RangeHandleType::DmaBufFd, 0ull);
        EXPECT_EQ(outcome.result, api::Result::CallRequiresNewerDriver);
        const Status status = (*driver)->toStatus(outcome);
        EXPECT_EQ(status.code(), Code::Unsupported);
        EXPECT_EQ(status.message().rfind("cuMemGetHandleForAddressRange: ", 0), 0u) << status.message();
    }
    Control().reset();
}

TEST(CudaDriver, EveryResultIsACauseWithTheCallsName) {
    const auto driver = CudaDriver::load({Control::path(), false});
    ASSERT_TRUE(driver);
    EXPECT_TRUE((*driver)->toStatus({api::Result::Success, "cuInit"}).isOk());
    std::set<unsigned> sticky;
    for (unsigned number = 1; number < 1000; ++number) {
        const auto result = static_cast<api::Result>(number);
        const Status status = (*driver)->toStatus({result, "cuMemcpyAsync"});
        EXPECT_NE(status.code(), Code::Ok) << number;
        EXPECT_EQ(status.message().rfind("cuMemcpyAsync: CUDA", 0), 0u) << status.message();
        EXPECT_NE(status.message().find("(" + std::to_string(number) + ")"), std::string::npos) << status.message();
        EXPECT_EQ(isSticky(result), status.code() == Code::DeviceLost) << number;
        if (isSticky(result)) sticky.insert(number);
    }
    EXPECT_EQ(sticky, (std::set<unsigned>{214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 806,
                                          810, 911}));
    EXPECT_EQ((*driver)->toStatus({api::Result::IllegalAddress, "cuEventQuery"}).message(),
              "cuEventQuery: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered");
    // One that no manual has yet.
    EXPECT_EQ((*driver)->nameOf(static_cast<api::Result>(123456)), "CUDA error (123456)");
}

}  // namespace
}  // namespace troupe::cuda
