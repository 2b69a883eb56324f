#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace troupe {

class Reactor;

/// Where something can be broken on purpose.
enum class FaultPoint : std::uint8_t {
    Post,          ///< A work request, on its way from the engine to a Nic. Of `where`: "tcp0 SEGMENT".
    Completion,    ///< A work request that succeeded, on its way back. As Post.
    ControlFrame,  ///< A frame that this engine sends. "Ping PEER", by its type in docs/design.md section 9.
    StoreCall,     ///< A call of the metadata store. "publish", "withdraw", "resolve", "inspect", "evict", "list".
    Payload,       ///< Bytes that this engine received by tcp, before their checksum is looked at. "tcp0".
};
inline constexpr std::size_t kFaultPoints = 5;

/// What is done there.
enum class FaultAction : std::uint8_t {
    Fail,     ///< It fails with `code`. A control frame ends its connection so.
    Delay,    ///< It takes `delay` longer. A control frame holds up those behind it.
    Lose,     ///< Nothing comes of it, and nobody is told. Not of store calls, which always answer.
    Corrupt,  ///< One byte of it is changed; of Payload only.
};

/// One thing to break. Which of the calls that match `where`: the `nth`, or a `fraction` of all.
struct FaultRule {
    FaultPoint point = FaultPoint::Post;
    FaultAction action = FaultAction::Fail;
    std::uint64_t nth = 0;              ///< From now on, 1 is the next; 0: by `fraction`.
    double fraction = 0;                ///< (0, 1], drawn from `faults.seed`; 0: by `nth`.
    std::uint64_t times = 0;            ///< At most so often; 0: no bound.
    std::string where;                  ///< Part of the text that FaultPoint says; empty: everywhere.
    std::chrono::microseconds delay{};  ///< Of Delay; at most kLongestFault.
    Code code = Code::ConnectionLost;   ///< Of Fail; not Ok.
    bool retryable = true;              ///< Of Post and Completion: as if the path broke. False: as if it was refused.
    std::chrono::microseconds
        lasts{};  ///< It ends by itself so long after it was added; at most kLongestFault; 0: never.

    bool operator==(const FaultRule&) const = default;
};

/// No fault lasts longer.
inline constexpr std::chrono::seconds kLongestFault{60};

/// Breaks parts of one engine on purpose, so that a program can see what it does then: TransferEngine::faults. Where it
/// is off (`faults.enabled`, the default) nothing of it is in any path but for a null pointer at each received piece of
/// a TCP payload and at each control frame.
///
/// Thread-safe. What is drawn depends on `faults.seed`, the rule's id (they count from 1) and the number of the call
/// among those that match the rule, so the same calls in the same order meet the same faults.
class FaultInjector {
  public:
    using RuleId = std::uint64_t;
    /// Who broke something, so that it can be mended without what others broke.
    using Owner = std::uint64_t;
    static constexpr Owner kProgram = 0;  ///< The engine's own program.
    struct Count {
        std::uint64_t seen = 0;   ///< Calls that matched.
        std::uint64_t fired = 0;  ///< Of these, broken ones.
    };
    static constexpr unsigned kControlLoop = std::numeric_limits<unsigned>::max();

    explicit FaultInjector(std::uint64_t seed) : seed_(seed) {}
    FaultInjector(const FaultInjector&) = delete;
    FaultInjector& operator=(const FaultInjector&) = delete;

    // --- the program's side ------------------------------------------------------------------------------------

    /// The rule holds from now on. Where several match, the oldest that fires wins. InvalidArgument says what is wrong
    /// with it; CapacityExceeded: kMostRules hold.
    Result<RuleId> add(const FaultRule& rule, Owner owner = kProgram);
    /// NotFound: no such rule, or it was removed or has ended.
    Status remove(RuleId rule);
    Result<Count> count(RuleId rule) const;
    /// Paths of which `where` is a part of "tcp0 SEGMENT" are lost for so long: what is under way on them and what is
    /// posted comes back as ConnectionLost, retryable. InvalidArgument: the time. CapacityExceeded: kMostRules are
    /// lost.
    Status dropPath(const std::string& where, std::chrono::microseconds time, Owner owner = kProgram);
    /// Nothing runs on a data loop (or kControlLoop) for so long; who waits on its turn stands still with it.
    /// InvalidArgument: the time. NotFound: no such loop; NotInitialised: the engine does not run; CapacityExceeded:
    /// kMostRules are frozen, or about to be.
    Status freezeLoop(unsigned loop, std::chrono::microseconds time, Owner owner = kProgram);
    /// Ends every fault: rules, lost paths, frozen loops.
    void clear();
    /// The same of those that `owner` broke alone.
    void clear(Owner owner);

    static constexpr std::size_t kMostRules = 256;

    // --- the engine's side -------------------------------------------------------------------------------------

    struct Verdict {
        FaultAction action;
        Duration delay;
        Status cause;  ///< Of Fail.
        bool retryable;
    };
    /// What is to be done to a call; nothing, as a rule.
    std::optional<Verdict> judge(FaultPoint point, std::string_view where) {
        if (active_[static_cast<std::size_t>(point)].load(std::memory_order_acquire) == 0) return std::nullopt;
        return judgeSlowly(point, where);
    }
    /// Changes one of the bytes if a rule says so.
    void corrupt(std::string_view where, std::span<std::byte> bytes);
    /// Until when this path is lost; nothing: it is not.
    std::optional<TimePoint> droppedUntil(std::string_view path, TimePoint now) const;

    void attach(Reactor& control_loop, const std::vector<Reactor*>& data_loops);
    /// clear(), and no loop is touched any more. Before the loops end.
    void detach();

  private:
    struct Rule {
        FaultRule what;
        Owner owner;
        TimePoint until;
        Count count;
    };
    using Rules = std::map<RuleId, Rule>;
    struct Drop {
        std::string where;
        TimePoint until;
        Owner owner;
    };
    /// Of a loop; shared with what stands still on it.
    struct Freeze {
        TimePoint until;
        Owner owner;
        bool over = false;
    };

    std::optional<Verdict> judgeSlowly(FaultPoint point, std::string_view where);
    bool fires(RuleId id, const Rule& rule) const;
    Rules::iterator erase(Rules::iterator rule);
    void endExpired(TimePoint now);
    template <class Chosen>
    void end(Chosen chosen);
    void wakeLoops() const;

    const std::uint64_t seed_;
    mutable std::mutex mutex_;
    /// Rules of each point, written under the mutex: who has none does not take it.
    std::array<std::atomic<std::uint32_t>, kFaultPoints> active_{};
    Rules rules_;
    RuleId next_rule_ = 1;
    std::vector<Drop> drops_;
    std::atomic<std::uint32_t> drop_count_{0};
    Reactor* control_loop_ = nullptr;
    std::vector<Reactor*> data_loops_;
    std::vector<std::shared_ptr<Freeze>> freezes_;
    std::condition_variable thawed_;
};

/// "post", "completion", "control frame", "store call", "payload".
std::string_view faultPointName(FaultPoint point);

}  // namespace troupe
