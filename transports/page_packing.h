#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/log.h"
#include "base/status.h"
#include "transports/device.h"
#include "transports/pack_border.h"

namespace troupe::device {

/// Which way pages go, as far as it makes a difference to what moves them.
enum class PageWay : std::uint8_t {
    FromDevice,  ///< Of the GPU into pinned memory.
    ToDevice,    ///< The other way.
    Within,      ///< Between memories of GPUs.
};
inline constexpr std::size_t kPageWays = 3;

/// Up to where the kernel is the faster, for each way.
using PackBorders = std::array<PackBorder, kPageWays>;

/// What became of moves, in their order.
struct MovesBegun {
    std::size_t whole = 0;    ///< So many will be done.
    std::size_t touched = 0;  ///< Of so many something may be under way: after an error of more than that.
};

/// How the pages of one GPU are moved: by its kernel where it has one that wins, else by a copy each. For all rings and
/// loops of a GPU; thread-safe.
class PagePacking {
  public:
    /// By copies, until `use`. `where`: "cuda:1".
    PagePacking(std::string where, Logger log) : where_(std::move(where)), log_(std::move(log)) {}

    /// Once at most.
    void use(std::shared_ptr<const PageMover> mover, PackBorders borders);
    /// Whether so many pages of `bytes` together would be moved by the kernel.
    bool takes(PageWay way, std::size_t pages, std::uint64_t bytes) const;
    /// Begins all moves on a stream, in any order. After an error `begun` may have some all the same. When the driver
    /// refuses the kernel it is not asked again, says so, and copies it is.
    Status begin(Device& device, StreamRef stream, PageWay way, std::span<const PageMove> moves, MovesBegun& begun);

  private:
    const std::string where_;
    const Logger log_;
    std::shared_ptr<const PageMover> mover_;  ///< Both as soon as `usable_` says so.
    PackBorders borders_;
    std::atomic<bool> usable_{false};
};

}  // namespace troupe::device
