#include "transports/staging_user.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

namespace troupe::device {

namespace {

/// How long what nobody uses stays with the Nic, which spares the epoll set most changes; and how often a Nic that
/// sleeps looks whether a GPU was lost, of which no bell tells.
constexpr std::chrono::milliseconds kLookEvery{10};
/// A copy takes some milliseconds at most. One that does not end within this waits for something else on the GPU, and
/// a task's end must not.
constexpr std::chrono::milliseconds kDoubtAfter{1000};
constexpr std::chrono::milliseconds kShutBound{200};
constexpr std::chrono::microseconds kShutStep{100};

ByteRange localOf(const Failure& failure) {
    return {reinterpret_cast<std::uint64_t>(failure.request.local), failure.request.length};
}

}  // namespace

StagingUser::~StagingUser() {
    // Others may have them, too.
    for (const Active& active : active_) forget(*active.staging);
}

void StagingUser::forget(const Staging& staging) const {
    for (const int bell : staging.bells()) bells_.unwatch(bell);
}

Result<Staging*> StagingUser::at(int device) {
    for (const Active& active : active_)
        if (active.staging->device().info().ordinal == device) return active.staging.get();
    auto found = pool_ ? pool_->find(loop_, device) : nullptr;
    if (!found) return Status(Code::ResourceExhausted, "there is no staging memory for the GPU");
    const auto bells = found->bells();
    for (std::size_t index = 0; index < bells.size(); ++index) {
        const Status watched = bells_.watch(bells[index]);
        if (watched) continue;
        for (std::size_t before = 0; before < index; ++before) bells_.unwatch(bells[before]);
        return watched;
    }
    active_.push_back({std::move(found), polled_at_});
    return active_.back().staging.get();
}

bool StagingUser::poll(TimePoint now) {
    polled_at_ = now;
    bool moved = false;
    // Each GPU by itself: whoever lets go of the last region of one must not have to wait until all are idle.
    std::erase_if(active_, [&](Active& active) {
        const Staging& staging = *active.staging;
        const bool ended = staging.poll();
        moved = ended || moved;
        if (ended || staging.hasWork() || staging.hasHolders()) active.used_at = now;
        if (now - active.used_at < kLookEvery) return false;
        forget(staging);
        return true;
    });
    return moved;
}

void StagingUser::sift(TimePoint now, Sweep& sweep) {
    std::erase_if(doubts_, [&](const Doubt& doubt) {
        if (touches(doubt.range)) return false;
        sweep.proven.push_back(doubt.number);
        return true;
    });
    if (sweep.failed.empty() && held_.empty()) return;
    std::vector<Failure> told;
    for (Held& held : std::exchange(held_, {})) {
        if (!touches(localOf(held.failure))) {
            told.push_back(std::move(held.failure));
        } else if (now - held.since >= kDoubtAfter) {
            held.failure.quiesced = false;
            held.failure.doubt = next_doubt_++;
            doubts_.push_back({localOf(held.failure), held.failure.doubt});
            told.push_back(std::move(held.failure));
        } else {
            held_.push_back(std::move(held));
        }
    }
    for (Failure& failure : sweep.failed) {
        if (failure.quiesced && touches(localOf(failure)))
            held_.push_back({std::move(failure), now});
        else
            told.push_back(std::move(failure));
    }
    sweep.failed = std::move(told);
}

bool StagingUser::arm() const {
    return std::all_of(active_.begin(), active_.end(), [](const Active& active) { return active.staging->arm(); });
}

Status StagingUser::shut() const {
    const TimePoint until = Clock::now() + kShutBound;
    for (const Active& active : active_) {
        const Staging& staging = *active.staging;
        staging.poll();
        while (staging.hasWork()) {
            if (Clock::now() >= until) return staging.heldIn({0, UINT64_MAX});
            std::this_thread::sleep_for(kShutStep);
            staging.poll();
        }
    }
    return {};
}

TimePoint StagingUser::nextDeadline() const { return isActive() ? saturatedAdd(polled_at_, kLookEvery) : kForever; }

bool StagingUser::touches(const ByteRange& range) const {
    return std::any_of(active_.begin(), active_.end(),
                       [&](const Active& active) { return active.staging->touches(range); });
}

Status StagingUser::heldIn(const ByteRange& range) const {
    for (const Active& active : active_)
        if (Status held = active.staging->heldIn(range); !held) return held;
    return {};
}

}  // namespace troupe::device
