#pragma once

#include <cstdint>
#include <vector>

namespace troupe::tcp {

/// A queue whose items are found by their number: consecutive numbers, oldest first. Grows by doubling and keeps
/// its memory, so that a steady state allocates nothing.
template <class T>
class Ring {
  public:
    std::uint64_t first() const { return first_; }  ///< Number of the oldest item; end() when empty.
    std::uint64_t end() const { return end_; }      ///< Number the next item gets.
    std::size_t size() const { return static_cast<std::size_t>(end_ - first_); }
    bool empty() const { return first_ == end_; }

    T& operator[](std::uint64_t number) { return items_[number & mask_]; }
    const T& operator[](std::uint64_t number) const { return items_[number & mask_]; }
    T& front() { return (*this)[first_]; }
    T& back() { return (*this)[end_ - 1]; }

    T& push() {
        if (size() == items_.size()) grow();
        return items_[end_++ & mask_];
    }
    void pop() { ++first_; }
    void clear() { first_ = end_; }

  private:
    void grow() {
        std::vector<T> larger(items_.empty() ? 32 : 2 * items_.size());
        for (auto i = first_; i != end_; ++i) larger[i & (larger.size() - 1)] = items_[i & mask_];
        items_.swap(larger);
        mask_ = items_.size() - 1;
    }

    std::vector<T> items_;  ///< A power of two, or none yet.
    std::uint64_t mask_ = 0;
    std::uint64_t first_ = 0;
    std::uint64_t end_ = 0;
};

}  // namespace troupe::tcp
