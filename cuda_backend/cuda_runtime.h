#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_backend/cuda_device.h"
#include "cuda_backend/driver.h"
#include "transports/device.h"

namespace troupe::cuda {

/// The NUMA node that the PCI device at `pci` ("0000:1b:00.0") is near, by what is below `sysfs`; -1: that does not
/// say.
int numaNodeOfPci(const std::string& pci, const std::string& sysfs = "/sys");

/// NVIDIA's GPUs, by the driver of this process.
class CudaRuntime final : public device::DeviceRuntime {
  public:
    /// Looks at each GPU, and opens none.
    static Result<std::shared_ptr<CudaRuntime>> create(const CudaDriver::Source& source);

    std::string vendor() const override { return "cuda"; }
    int count() const override { return static_cast<int>(devices_.size()); }
    Result<device::DeviceInfo> info(int ordinal) const override;
    /// One CudaDevice for all that have it open.
    Result<std::shared_ptr<device::Device>> open(int ordinal) override;
    bool reaches(int ordinal, int peer) const override;
    Result<device::MemoryPlace> locate(const ByteRange& range) override;

    const CudaDriver& driver() const { return *driver_; }

  private:
    explicit CudaRuntime(std::shared_ptr<const CudaDriver> driver) : driver_(std::move(driver)) {}
    Status look();
    Result<device::DeviceInfo> lookAt(int ordinal) const;
    Status noSuchDevice(int ordinal) const;
    Result<std::shared_ptr<CudaDevice>> openCuda(int ordinal);
    Result<device::MemoryPlace> locateHost(const ByteRange& range, const PointerFacts& first);
    Result<device::MemoryPlace> locateDevice(const ByteRange& range, int ordinal);

    const std::shared_ptr<const CudaDriver> driver_;
    std::vector<device::DeviceInfo> devices_;
    std::mutex mutex_;
    std::vector<std::weak_ptr<CudaDevice>> open_;
};

}  // namespace troupe::cuda
