#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "apps/bench.h"

namespace troupe::apps {

/// The places that one thread of a bench works on, and the order it takes them in. Each local block is paired with one
/// remote block, for good, so that the contents of both sides are known afterwards.
class BlockWalk {
  public:
    struct Pair {
        std::uint64_t local;   ///< Offset in the thread's local share.
        std::uint64_t remote;  ///< Offset in the thread's remote share.
    };
    /// `blocks` > 0. Scattered: every block once a turn, none beside the one before it, and in another order on each
    /// side. Else in order of address.
    BlockWalk(std::uint64_t blocks, std::uint64_t block_size, bool scatter);

    Pair at(std::uint64_t step) const;
    std::uint64_t blocks() const { return blocks_; }

  private:
    std::uint64_t blocks_;
    std::uint64_t block_size_;
    std::uint64_t local_stride_ = 1;
    std::uint64_t remote_stride_ = 1;
};

/// One row's parameters, once for all of its threads.
struct RowPlan {
    bool write = false;
    std::uint64_t block_size = 0;
    std::uint32_t batch_size = 0;
    unsigned threads = 1;
    std::uint64_t share = 0;  ///< Bytes per thread, on each side; a multiple of block_size.
};

/// Where a bench works.
struct BenchMemory {
    std::span<std::byte> local;  ///< At least threads * share.
    Target remote;               ///< Likewise.
};

/// "write 64 KiB x 16".
std::string describe(const RowPlan& plan);

/// Runs one row: sets contents up, warms up, measures, verifies. Ok with batches == 0 when stopped in between.
/// `tick` hears some times a second how much of the row is done, 0..1.
Result<BenchRow> runRow(const BenchOptions& options, const RowPlan& plan, TransferEngine& engine,
                        const BenchMemory& memory, const Console& console, const std::function<void(double)>& tick);

}  // namespace troupe::apps
