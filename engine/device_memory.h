#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "topology/machine.h"
#include "transports/device.h"
#include "transports/memory_exporter.h"
#include "transports/region.h"
#include "transports/staging.h"

namespace troupe {

/// The GPUs of one engine. Nothing of a driver is loaded before the application has named a GPU or has a driver loaded
/// by itself, and no GPU is opened but by memory on it. Thread-safe; never on a data loop.
class DeviceMemory {
  public:
    /// `settings` outlives this.
    DeviceMemory(const Config& settings, Logger log);
    ~DeviceMemory();

    /// The GPUs as the priority matrix counts them. Once, before the first `locate`.
    void setMachine(std::vector<Gpu> gpus) { gpus_ = std::move(gpus); }

    /// Finds out what the region's memory is, by asking the driver, whatever its location says: of a GPU's it fills in
    /// location and place, of the host's whether it is pinned.
    /// InvalidArgument: it is not what the location says, or of several kinds; says what it is. Unsupported: a GPU is
    /// named, and there is no driver, with the reason.
    Status locate(Region& region);

    /// Why memory of a GPU would not have been found out to be that: the process has a driver, and it cannot be used.
    /// Ok: it would, or there can be none.
    Status whyUnknown();

    /// For transports whose devices reach GPUs by files of their memory (dma-bufs). It outlives this.
    std::shared_ptr<MemoryExporter> exporter() const;

  private:
    class Exporter;
    Result<std::shared_ptr<device::DeviceRuntime>> find(bool load);

    const Config& settings_;
    const Logger log_;
    std::vector<Gpu> gpus_;
    std::mutex mutex_;
    std::shared_ptr<device::DeviceRuntime> runtime_;
    const std::shared_ptr<Exporter> exporter_;
};

/// The GPUs that a process with these settings sees, as it counts them; opens none. Loads the driver, and the error
/// says why there is none.
Result<std::vector<device::DeviceInfo>> visibleGpus(const Config& settings);

/// The rings of an engine with these settings.
std::shared_ptr<device::StagingPool> makeStagingPool(const Config& settings, unsigned loops, Logger log);

}  // namespace troupe
