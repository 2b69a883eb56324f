#pragma once

#include <cstdint>
#include <vector>

#include "transports/nic.h"

namespace troupe::verbs {

/// The accounting of one queue pair's send queue: which requests are posted, how many work requests each took, and
/// which of those have been accounted for by a completion. Knows nothing of verbs. One thread.
///
/// Work requests are numbered as they are posted. A completion names one and stands for all before it, because a send
/// queue completes in order; that is what selective signalling relies on. The last work request of every list is
/// signalled, so the last one posted always has a completion to come, and when it came nothing is left with the device.
///
/// Only a successful completion completes requests. After an error even those posted before the failed one, but not
/// confirmed, count as failed: to send them again costs little, and no device's order of flushed completions needs to
/// be trusted.
class SendQueue {
  public:
    /// `capacity`: work requests that may be outstanding, > 0.
    explicit SendQueue(std::uint32_t capacity) : capacity_(capacity) {}

    std::uint32_t room() const { return capacity_ - outstanding(); }
    std::uint32_t capacity() const { return capacity_; }
    /// Work requests that no completion has accounted for.
    std::uint32_t outstanding() const { return static_cast<std::uint32_t>(posted_ - accounted_); }
    bool idle() const { return posted_ == accounted_; }
    /// Of the next work request; only its lower half travels in a work request id.
    std::uint64_t nextNumber() const { return posted_; }

    /// `request` was posted as `work_requests` work requests, as many as there is room for.
    void push(const WorkRequest& request, std::uint32_t work_requests) {
        requests_.push_back({request, posted_, posted_ + work_requests});
        posted_ += work_requests;
    }

    /// The same for a request of which only the first `work_requests` were posted: whatever completes, it does not.
    void pushPart(const WorkRequest& request, std::uint32_t work_requests) { push(request, work_requests + 1); }

    /// What a completion did.
    struct Accounted {
        bool known = false;          ///< False: it is of no outstanding work request; nothing changed.
        std::uint32_t released = 0;  ///< Work requests that it accounted for.
    };

    /// A completion without error for work request `low` (lower half). `done(request)` for each request that it
    /// completes.
    template <class Done>
    Accounted succeed(std::uint32_t low, Done&& done) {
        const Accounted result = account(low);
        while (result.known && !failed_ && head_ < requests_.size() && requests_[head_].end <= accounted_)
            done(requests_[head_++].request);
        compact();
        return result;
    }

    /// A completion with an error. With `is_cause` the request it belongs to becomes the culprit, unless there is one.
    Accounted fail(std::uint32_t low, bool is_cause) {
        const Accounted result = account(low);
        if (!result.known) return result;
        failed_ = true;
        if (is_cause && culprit_ == kNone) culprit_ = accounted_ - 1;
        return result;
    }

    /// Gives back every request that was not completed, `failed(request, is_culprit)`, and forgets them.
    template <class Failed>
    void drain(Failed&& failed) {
        for (; head_ < requests_.size(); ++head_) {
            const Posted& entry = requests_[head_];
            failed(entry.request, entry.begin <= culprit_ && culprit_ < entry.end);
        }
        requests_.clear();
        head_ = 0;
        accounted_ = posted_;
        culprit_ = kNone;
        failed_ = false;
    }
    bool holdsRequests() const { return head_ < requests_.size(); }

  private:
    struct Posted {
        WorkRequest request;
        std::uint64_t begin = 0;  ///< Its work requests are [begin, end).
        std::uint64_t end = 0;
    };
    static constexpr std::uint64_t kNone = UINT64_MAX;
    /// Requests behind `head_` are dropped when there are this many, so that it costs little each.
    static constexpr std::size_t kCompactAt = 256;

    Accounted account(std::uint32_t low) {
        const std::uint64_t number = accounted_ + (low - static_cast<std::uint32_t>(accounted_));
        if (number >= posted_) return {};
        const auto released = static_cast<std::uint32_t>(number + 1 - accounted_);
        accounted_ = number + 1;
        return {true, released};
    }
    void compact() {
        if (head_ == requests_.size()) {
            requests_.clear();
            head_ = 0;
        } else if (head_ >= kCompactAt) {
            requests_.erase(requests_.begin(), requests_.begin() + static_cast<std::ptrdiff_t>(head_));
            head_ = 0;
        }
    }

    std::uint32_t capacity_;
    std::vector<Posted> requests_;  ///< In the order posted; those before head_ are done.
    std::size_t head_ = 0;
    std::uint64_t posted_ = 0;     ///< Work requests ever.
    std::uint64_t accounted_ = 0;  ///< Of those, the first so many are accounted for.
    std::uint64_t culprit_ = kNone;
    bool failed_ = false;  ///< A completion had an error; no request completes after it.
};

}  // namespace troupe::verbs
