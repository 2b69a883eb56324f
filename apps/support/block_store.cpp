#include "apps/support/block_store.h"

namespace troupe::apps {

std::optional<std::size_t> BlockStore::touch(std::uint64_t block) {
    const auto found = by_block_.find(block);
    if (found == by_block_.end()) return std::nullopt;
    order_.splice(order_.begin(), order_, found->second);
    return found->second->slot;
}

BlockStore::Placement BlockStore::insert(std::uint64_t block) {
    Placement placement{order_.size(), std::nullopt};
    if (order_.size() == capacity_) {
        placement = {order_.back().slot, order_.back().block};
        by_block_.erase(order_.back().block);
        order_.pop_back();
    }
    order_.push_front({block, placement.slot});
    by_block_.emplace(block, order_.begin());
    return placement;
}

}  // namespace troupe::apps
