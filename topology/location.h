#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe {

/// Where a region's memory lies. "*": not said. "cpu:N", "cuda:N". "segments:<bytes>:<n>,<n>,...": equal parts, each
/// but the last of whole multiples of <bytes>, on these NUMA nodes in turn.
struct Location {
    /// No text of one is longer: a peer's decoder refuses it (metadata/segment_desc.h).
    static constexpr std::size_t kMaxText = 256;

    enum class Kind { Any, Cpu, Cuda, Segments } kind = Kind::Any;
    std::vector<int> numbers;      ///< Of the node or GPU; of each part.
    std::uint64_t granule = 4096;  ///< Segments.

    /// "cpu:<node>"; "*" for a negative one.
    static Location onNode(int node);

    /// The location ("cpu:1") of the byte `offset` of a region of `length` bytes.
    std::string at(std::uint64_t offset, std::uint64_t length) const;
    /// The number in it: of a node or a GPU; -1 where that is not said.
    int nodeAt(std::uint64_t offset, std::uint64_t length) const;
    /// Of the place where that byte lies: the first offset after it. At most `length`.
    std::uint64_t endOfPart(std::uint64_t offset, std::uint64_t length) const;

  private:
    std::uint64_t partBytes(std::uint64_t length) const;
};

/// InvalidArgument names the text, and what there is.
Result<Location> parseLocation(std::string_view text);

}  // namespace troupe
