#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace troupe {

/// The latest version of an immutable value, published by one writer and read from any thread.
///
/// Readers are callers' threads and data loops that must not wait for the writer: the lock is held only while one
/// pointer is copied, never while a version is made or destroyed. (std::atomic<std::shared_ptr> takes such a lock too;
/// that of libstdc++ 12 releases it without ordering in load(), which is a data race.) A reader that looks often keeps
/// its own copy in a SnapshotReader, which costs one load while nothing changed.
template <class T>
class Snapshot {
  public:
    explicit Snapshot(std::shared_ptr<const T> initial) : current_(std::move(initial)) {}

    std::shared_ptr<const T> load() const {
        const std::lock_guard lock(copying_);
        return current_;
    }

    /// One writer at a time; the caller sees to that.
    void publish(std::shared_ptr<const T> next) {
        {
            const std::lock_guard lock(copying_);
            current_.swap(next);
        }
        version_.fetch_add(1, std::memory_order_release);
        // The last version, if this was its last user, dies here, outside the lock.
    }

    std::uint64_t version() const { return version_.load(std::memory_order_acquire); }

  private:
    mutable std::mutex copying_;
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
