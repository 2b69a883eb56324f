#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transports/device.h"
#include "transports/memory_file.h"
#include "transports/pack_border.h"
#include "transports/page_packing.h"

namespace troupe::device {

/// Measures on a GPU from which page size on copies win over the kernel, with memory of its own: 1.5 MiB there and
/// 512 KiB that are pinned as a ring's. Bounded: what it has not measured when its time is up is the copies'. Never on
/// a data loop; of one thread at a time.
class PackTrial {
  public:
    /// `budget`: of one way; `patience`: how long anything of it may take before it is given up.
    struct Options {
        std::chrono::microseconds budget{2000};
        std::chrono::microseconds patience{20000};
    };

    struct Outcome {
        PackBorders borders;
        bool is_complete = true;  ///< No way was cut short by its budget.
    };

    /// Unsupported: kernels do not reach what is pinned.
    static Result<std::unique_ptr<PackTrial>> create(std::shared_ptr<Device> device,
                                                     std::shared_ptr<const PageMover> mover, const Options& options);
    /// Waits for what was given up, and as long as the driver does to give memory back: until the GPU has done all that
    /// it was given.
    ~PackTrial();
    PackTrial(const PackTrial&) = delete;
    PackTrial& operator=(const PackTrial&) = delete;

    /// Timeout: the GPU is busy, and did not come to an end in time. Any other error is the driver's. Once more is
    /// allowed after either.
    Result<Outcome> run();

  private:
    PackTrial() = default;
    Result<PackBorder> measure(PageWay way, bool& is_complete);
    std::vector<PageMove> pagesOf(PageWay way, std::size_t pages, std::uint64_t bytes) const;
    /// From the first call to the end on the GPU, as a loop has to wait for it.
    Result<std::chrono::nanoseconds> take(const std::vector<PageMove>& moves, bool kernel);

    std::shared_ptr<Device> device_;
    std::shared_ptr<const PageMover> mover_;
    Options options_;
    DeviceMemory memory_;
    std::unique_ptr<MemoryFile> pinned_;
    Pinning pinning_;
    DeviceStream stream_;
    DeviceEvent event_;
};

}  // namespace troupe::device
