#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/byte_range.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe {

/// What this process's mappings allow to be done with its memory, as they are while the object lives: make one for each
/// call that registers.
///
/// One mapping costs one question to the kernel (0.6 us, and 4 us for the first). Before Linux 6.11 there is no such
/// question, and the first one reads the list of all mappings (0.8 us for each that the process has, so 60 us for one
/// with few). Not for two threads at once.
class MemoryRights {
  public:
    /// How the kernel is asked; List is for tests on a kernel that can do better.
    enum class Ask { AsItCan, List };
    explicit MemoryRights(Ask how = Ask::AsItCan) : how_(how) {}

    /// Whether all of `range` may be written; a mapping that says nothing of reading counts as readable then, as it is
    /// to the processor. InvalidArgument where a part of it may be neither read nor written, or lies behind the end of
    /// the file that it maps: the message names the first such address. Whoever touched it would end the process. Holes
    /// are not looked for. Ranges that are empty or wrap are writable.
    Result<bool> areAllWritable(const ByteRange& range);

  private:
    struct Mapping {
        std::uint64_t begin = 0;
        std::uint64_t end = 0;
        bool readable = false;
        bool writable = false;
        bool of_file = false;
    };

    void open();
    /// The mapping that holds `addr`, or else the first behind it.
    std::optional<Mapping> from(std::uint64_t addr);
    void readAll();

    Ask how_;
    UniqueFd maps_;
    bool opened_ = false;
    bool listed_ = false;            ///< `mappings_` is what is asked.
    std::vector<Mapping> mappings_;  ///< By address.
};

}  // namespace troupe
