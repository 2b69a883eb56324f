#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace troupe {

/// The bit of a worker in Task::workers, Run::barred and TaskHistory; the last one is shared by all from 63 on.
inline std::uint64_t workerBit(std::uint32_t worker) { return 1ull << (worker < 63 ? worker : 63); }

/// What became of the parts of a task that did not go smoothly, in order: which came back from where and why, when
/// something was sent again, and what arrived by whom. Kept by the task's tracker from the first failure on; bounded.
struct TaskHistory {
    /// More says nothing new: paths that fail again and again fail for the same causes.
    static constexpr std::size_t kMost = 32;

    /// What one worker carried, or brought back in one incident.
    struct Attempt {
        std::uint32_t worker = 0;
        std::uint64_t bytes = 0;
        Status cause;                ///< Why they came back; Ok: they arrived.
        std::uint64_t incident = 0;  ///< What came back from a worker with the same number is one attempt.
        TimePoint when{};            ///< When the last of it came back, or the first of it arrived.
        /// Of what came back: from then until something of the task was sent again. Of what arrived after something had
        /// come back: from then until the first of it arrived. 0: there is nothing to tell.
        Duration pause{};
    };

    /// Bytes came back from a worker.
    void failed(std::uint32_t worker, std::uint64_t bytes, const Status& cause, std::uint64_t incident, TimePoint now) {
        open = true;
        for (auto known = attempts.rbegin(); known != attempts.rend(); ++known) {
            if (known->worker != worker || known->incident != incident || known->cause.isOk()) continue;
            known->bytes += bytes;
            known->when = now;
            return;
        }
        add({worker, bytes, cause, incident, now, {}});
    }

    /// Bytes arrived by a worker.
    void arrived(std::uint32_t worker, std::uint64_t bytes, TimePoint now) {
        if (bytes == 0) return;
        carried |= workerBit(worker);
        const Attempt* const last = attempts.empty() ? nullptr : &attempts.back();
        if (last != nullptr && last->worker == worker && last->cause.isOk())
            attempts.back().bytes += bytes;
        else
            add({worker, bytes, {}, 0, now, last == nullptr || last->cause.isOk() ? Duration{} : now - last->when});
    }

    /// The worker's transport does not carry what it gave back.
    void wasDeclined(std::uint32_t worker) { declined |= workerBit(worker); }

    /// Of these workers, as in Task::workers, those that did not only decline; all, where there is no other.
    std::uint64_t carriersAmong(std::uint64_t workers) const {
        const std::uint64_t left = workers & ~(declined & ~carried);
        return left != 0 ? left : workers;
    }

    /// Something of the task went out; it ends the pause of what came back before.
    void sentAgain(TimePoint now) {
        if (!open) return;
        open = false;
        for (auto last = attempts.rbegin(); last != attempts.rend(); ++last) {
            if (last->cause.isOk()) continue;
            if (last->pause == Duration::zero()) last->pause = now - last->when;
            return;
        }
    }

    /// Why a part came back first; null: none did.
    const Status* firstCause() const {
        for (const Attempt& attempt : attempts)
            if (!attempt.cause.isOk()) return &attempt.cause;
        return nullptr;
    }

    /// How the task stood when its tracker ended it, and no Nic had refused it.
    struct Ending {
        Status cause;
        std::uint64_t arrived = 0;  ///< Bytes.
        std::uint32_t flights = 0;  ///< Out with workers; what comes back of them are attempts.
        std::uint64_t lost = 0;     ///< Workers whose path to the peer was lost, as in Task::workers.
        std::uint16_t retries_left = 0;
    };

    std::optional<Ending> ending;
    std::vector<Attempt> attempts;
    std::uint64_t left_out = 0;  ///< Attempts that came after those.
    bool open = false;           ///< Something came back, and nothing was sent since.
    std::uint64_t declined = 0;  ///< Workers, as in Task::workers, that gave something back for good.
    std::uint64_t carried = 0;   ///< Workers that something arrived by.

  private:
    void add(Attempt attempt) {
        if (attempts.size() < kMost)
            attempts.push_back(std::move(attempt));
        else
            ++left_out;
    }
};

}  // namespace troupe
