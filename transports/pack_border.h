#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::device {

/// Up to which size pages are moved faster by one launch of a kernel than by a copy each. A launch costs more than a
/// copy, once; a copy engine moves large pages faster. So the more pages and the smaller, the sooner the kernel wins:
/// what it wins with some it wins with more, and with smaller ones.
class PackBorder {
  public:
    /// A measurement: so many pages of so many bytes each, by one launch and by a copy each.
    struct Sample {
        std::size_t pages = 0;
        std::uint64_t bytes = 0;
        std::chrono::nanoseconds kernel{};
        std::chrono::nanoseconds copies{};
    };

    /// Never.
    PackBorder() = default;
    /// For two pages already, of any size.
    static PackBorder always();
    /// What `samples`, in any order, say: of each number of pages up to the size before the first one at which the
    /// kernel did not win, by a tenth at least; of two of the same, only if both say so. A draw goes to the copies,
    /// which leave the GPU's processors alone.
    static PackBorder of(std::span<const Sample> samples);

    /// Whether so many pages of `bytes` together are the kernel's. One never is.
    bool takes(std::size_t pages, std::uint64_t bytes) const;
    /// "2 or more up to 4096 bytes, 8 or more up to 65536 bytes", "never".
    std::string toString() const;

  private:
    struct Step {
        std::size_t pages;    ///< So many or more,
        std::uint64_t bytes;  ///< of so many bytes each or fewer.
    };
    std::vector<Step> steps_;
};

}  // namespace troupe::device
