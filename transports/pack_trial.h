#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "transports/device.h"
#include "transports/pack_border.h"
#include "transports/page_packing.h"

namespace troupe::device {

/// Measures on a GPU from which page size on copies win over the kernel, with memory of its own: 1.5 MiB there and
/// 512 KiB pinned. Bounded: what it has not measured when its time is up is the copies'. Never on a data loop.
class PackTrial {
  public:
    /// `budget`: of one way; `patience`: how long anything of it may take before it is given up.
    struct Options {
        std::chrono::microseconds budget{2000};
        std::chrono::microseconds patience{20000};
    };

    static Result<std::unique_ptr<PackTrial>> create(std::shared_ptr<Device> device,
                                                     std::shared_ptr<const PageMover> mover, const Options& options);
    /// Waits for what was given up, and as long as the driver does to give memory back: until the GPU has done all that
    /// it was given.
    ~PackTrial();
    PackTrial(const PackTrial&) = delete;
    PackTrial& operator=(const PackTrial&) = delete;

    /// None: the GPU did not come to an end in time, or failed; then it is not asked again.
    std::optional<PackBorders> run();

  private:
    PackTrial() = default;
    std::optional<PackBorder> measure(PageWay way);
    std::vector<PageMove> pagesOf(PageWay way, std::size_t pages, std::uint64_t bytes) const;
    /// From the first call to the end on the GPU, as a loop has to wait for it.
    std::optional<std::chrono::nanoseconds> take(const std::vector<PageMove>& moves, bool kernel);

    std::shared_ptr<Device> device_;
    std::shared_ptr<const PageMover> mover_;
    Options options_;
    DeviceMemory memory_;
    HostMemory pinned_;
    DeviceStream stream_;
    DeviceEvent event_;
};

}  // namespace troupe::device
