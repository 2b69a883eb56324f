#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace troupe {

/// The latest version of an immutable value, published by one writer and read from any thread.
///
/// Readers are callers' threads and data loops, so one that looks often does it through a SnapshotReader, which costs
/// one atomic load while nothing changed. Only when something did does it take the mutex, which is held for the copy
/// of one pointer. (std::atomic<std::shared_ptr> of libstdc++ 12 is a spin lock inside, and its load lets go of the
/// lock in relaxed order: a data race with the next store, which ThreadSanitizer reports.)
template <class T>
class Snapshot {
  public:
    explicit Snapshot(std::shared_ptr<const T> initial) : current_(std::move(initial)) {}

    std::shared_ptr<const T> load() const {
        const std::lock_guard lock(mutex_);
        return current_;
    }

    /// One writer at a time; the caller sees to that.
    void publish(std::shared_ptr<const T> next) {
        {
            const std::lock_guard lock(mutex_);
            current_.swap(next);
        }
        // The old value, if this was its last holder, ends here: outside of the lock.
        version_.fetch_add(1, std::memory_order_release);
    }

    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

  private:
    mutable std::mutex mutex_;
    std::shared_ptr<const T> current_;
    std::atomic<std::uint64_t> version_{1};
};

/// A reader's private copy of a snapshot. One thread at a time.
template <class T>
class SnapshotReader {
  public:
    explicit SnapshotReader(const Snapshot<T>& source) : source_(&source) {}

    /// The value as of this call. The reference stays valid until the next call.
    const T& get() {
        const std::uint64_t version = source_->version();
        if (version != seen_) {
            // Read the version first: a publish in between only makes the next call load again.
            cached_ = source_->load();
            seen_ = version;
        }
        return *cached_;
    }

  private:
    const Snapshot<T>* source_;
    std::shared_ptr<const T> cached_;
    std::uint64_t seen_ = 0;
};

}  // namespace troupe
