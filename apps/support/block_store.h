#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <unordered_map>

namespace troupe::apps {

/// Which block lies in which slot of a peer's memory, the least recently used one leaving first. Bookkeeping only; the
/// bytes are the caller's. One thread.
class BlockStore {
  public:
    /// `slots` > 0.
    explicit BlockStore(std::size_t slots) : capacity_(slots) {}

    /// The slot of a held block, which becomes the most recently used.
    std::optional<std::size_t> touch(std::uint64_t block);

    struct Placement {
        std::size_t slot = 0;
        std::optional<std::uint64_t> evicted;  ///< The block that lay there before.
    };
    /// Gives a block that is not held a slot: a free one, else the least recently used block's.
    Placement insert(std::uint64_t block);

    std::size_t size() const { return by_block_.size(); }
    std::size_t capacity() const { return capacity_; }

  private:
    struct Entry {
        std::uint64_t block;
        std::size_t slot;
    };
    std::size_t capacity_;
    std::list<Entry> order_;  ///< Most recently used first.
    std::unordered_map<std::uint64_t, std::list<Entry>::iterator> by_block_;
};

}  // namespace troupe::apps
