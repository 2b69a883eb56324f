#include "base/fault_injector.h"

#include <algorithm>
#include <iterator>

#include "base/reactor.h"

namespace troupe {

namespace {

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014): every bit of the input matters to every bit of the
/// output.
std::uint64_t mix(std::uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

/// In [0, 1).
double drawn(std::uint64_t seed, std::uint64_t rule, std::uint64_t number) {
    return static_cast<double>(mix(mix(mix(seed) ^ rule) ^ number) >> 11) * 0x1p-53;
}

bool fits(FaultPoint point, FaultAction action) {
    if (point == FaultPoint::Payload) return action == FaultAction::Corrupt;
    if (point == FaultPoint::StoreCall) return action == FaultAction::Fail || action == FaultAction::Delay;
    return action != FaultAction::Corrupt;
}

Status checkTime(std::chrono::microseconds time) {
    if (time > std::chrono::microseconds::zero() && time <= kLongestFault) return Status::ok();
    return {Code::InvalidArgument, "a fault lasts more than 0 and at most " + std::to_string(kLongestFault.count()) +
                                       " s, not " + std::to_string(time.count()) + " us"};
}

Status checkRule(const FaultRule& rule) {
    if (static_cast<std::size_t>(rule.point) >= kFaultPoints) return {Code::InvalidArgument, "no such FaultPoint"};
    if (!fits(rule.point, rule.action))
        return {Code::InvalidArgument, "a " + std::string(faultPointName(rule.point)) +
                                           " takes no such FaultAction; base/fault_injector.h says which"};
    if ((rule.nth == 0) == (rule.fraction == 0))
        return {Code::InvalidArgument, "a FaultRule has either nth or fraction"};
    if (!(rule.fraction >= 0 && rule.fraction <= 1))
        return {Code::InvalidArgument, "fraction is " + std::to_string(rule.fraction) + "; it is in (0, 1]"};
    if (rule.action == FaultAction::Fail && rule.code == Code::Ok)
        return {Code::InvalidArgument, "what fails does so with a code that is not Ok"};
    if (rule.lasts.count() != 0)
        if (const Status sound = checkTime(rule.lasts); !sound) return sound.withContext("lasts");
    if (rule.action == FaultAction::Delay) return checkTime(rule.delay).withContext("delay");
    return Status::ok();
}

bool matches(const std::string& pattern, std::string_view where) { return where.find(pattern) != where.npos; }

}  // namespace

std::string_view faultPointName(FaultPoint point) {
    switch (point) {
        case FaultPoint::Post: return "post";
        case FaultPoint::Completion: return "completion";
        case FaultPoint::ControlFrame: return "control frame";
        case FaultPoint::StoreCall: return "store call";
        case FaultPoint::Payload: return "payload";
    }
    return "?";
}

// --- the program's side ------------------------------------------------------------------------------------------

Result<FaultInjector::RuleId> FaultInjector::add(const FaultRule& rule, Owner owner) {
    if (const Status sound = checkRule(rule); !sound) return sound;
    const std::lock_guard lock(mutex_);
    const TimePoint now = Clock::now();
    endExpired(now);
    if (rules_.size() >= kMostRules)
        return {Code::CapacityExceeded, std::to_string(kMostRules) + " fault rules hold; remove some"};
    const RuleId id = next_rule_++;
    rules_.emplace(id, Rule{rule, owner, rule.lasts.count() == 0 ? kForever : now + rule.lasts, {}});
    active_[static_cast<std::size_t>(rule.point)].fetch_add(1, std::memory_order_release);
    return id;
}

Status FaultInjector::remove(RuleId rule) {
    const std::lock_guard lock(mutex_);
    endExpired(Clock::now());
    const auto found = rules_.find(rule);
    if (found == rules_.end()) return {Code::NotFound, "no fault rule " + std::to_string(rule)};
    erase(found);
    return Status::ok();
}

Result<FaultInjector::Count> FaultInjector::count(RuleId rule) const {
    const std::lock_guard lock(mutex_);
    const auto found = rules_.find(rule);
    if (found == rules_.end()) return {Code::NotFound, "no fault rule " + std::to_string(rule)};
    return found->second.count;
}

Status FaultInjector::dropPath(const std::string& where, std::chrono::microseconds time, Owner owner) {
    if (const Status sound = checkTime(time); !sound) return sound;
    const std::lock_guard lock(mutex_);
    const TimePoint now = Clock::now();
    endExpired(now);
    if (drops_.size() >= kMostRules)
        return {Code::CapacityExceeded, std::to_string(kMostRules) + " paths are dropped already"};
    drops_.push_back({where, now + time, owner});
    drop_count_.store(static_cast<std::uint32_t>(drops_.size()), std::memory_order_release);
    wakeLoops();
    return Status::ok();
}

Status FaultInjector::freezeLoop(unsigned loop, std::chrono::microseconds time, Owner owner) {
    if (const Status sound = checkTime(time); !sound) return sound;
    const std::lock_guard lock(mutex_);
    if (control_loop_ == nullptr) return {Code::NotInitialised, "the engine does not run"};
    if (loop != kControlLoop && loop >= data_loops_.size())
        return {Code::NotFound, "no data loop " + std::to_string(loop) + " of " + std::to_string(data_loops_.size())};
    const TimePoint now = Clock::now();
    endExpired(now);
    if (freezes_.size() >= kMostRules)
        return {Code::CapacityExceeded, std::to_string(kMostRules) + " loops are frozen, or about to be"};
    const auto freeze = std::make_shared<Freeze>(Freeze{now + time, owner});
    freezes_.push_back(freeze);
    Reactor& frozen = loop == kControlLoop ? *control_loop_ : *data_loops_[loop];
    frozen.post([this, freeze] {
        std::unique_lock held(mutex_);
        thawed_.wait_until(held, freeze->until, [&] { return freeze->over; });
    });
    return Status::ok();
}

void FaultInjector::clear() {
    const std::lock_guard lock(mutex_);
    end([](Owner) { return true; });
}

void FaultInjector::clear(Owner owner) {
    const std::lock_guard lock(mutex_);
    end([owner](Owner each) { return each == owner; });
}

FaultInjector::Rules::iterator FaultInjector::erase(Rules::iterator rule) {
    active_[static_cast<std::size_t>(rule->second.what.point)].fetch_sub(1, std::memory_order_release);
    return rules_.erase(rule);
}

/// Forgets what has ended by itself. Under the mutex.
void FaultInjector::endExpired(TimePoint now) {
    for (auto rule = rules_.begin(); rule != rules_.end();)
        rule = rule->second.until <= now ? erase(rule) : std::next(rule);
    std::erase_if(drops_, [now](const Drop& drop) { return drop.until <= now; });
    drop_count_.store(static_cast<std::uint32_t>(drops_.size()), std::memory_order_release);
    std::erase_if(freezes_, [now](const auto& freeze) { return freeze->until <= now; });
}

/// Ends the faults of the owners that are chosen. Under the mutex.
template <class Chosen>
void FaultInjector::end(Chosen chosen) {
    for (auto rule = rules_.begin(); rule != rules_.end();)
        rule = chosen(rule->second.owner) ? erase(rule) : std::next(rule);
    std::erase_if(drops_, [&](const Drop& drop) { return chosen(drop.owner); });
    drop_count_.store(static_cast<std::uint32_t>(drops_.size()), std::memory_order_release);
    std::erase_if(freezes_, [&](const auto& freeze) { return freeze->over = chosen(freeze->owner); });
    thawed_.notify_all();
    wakeLoops();
}

// --- the engine's side -------------------------------------------------------------------------------------------

bool FaultInjector::fires(RuleId id, const Rule& rule) const {
    if (rule.what.times != 0 && rule.count.fired >= rule.what.times) return false;
    if (rule.what.nth != 0) return rule.count.seen == rule.what.nth;
    return drawn(seed_, id, rule.count.seen) < rule.what.fraction;
}

std::optional<FaultInjector::Verdict> FaultInjector::judgeSlowly(FaultPoint point, std::string_view where) {
    const std::lock_guard lock(mutex_);
    std::optional<Verdict> verdict;
    endExpired(Clock::now());
    for (auto& [id, rule] : rules_) {
        if (rule.what.point != point || !matches(rule.what.where, where)) continue;
        ++rule.count.seen;
        if (verdict || !fires(id, rule)) continue;
        ++rule.count.fired;
        verdict = Verdict{rule.what.action, rule.what.delay, {}, rule.what.retryable};
        if (rule.what.action == FaultAction::Fail)
            verdict->cause = Status(rule.what.code, "fault rule " + std::to_string(id) + " fails this " +
                                                        std::string(faultPointName(point)) + ": " + std::string(where));
    }
    return verdict;
}

void FaultInjector::corrupt(std::string_view where, std::span<std::byte> bytes) {
    if (bytes.empty() || !judge(FaultPoint::Payload, where)) return;
    bytes[mix(seed_ ^ bytes.size()) % bytes.size()] ^= std::byte{0x40};
}

std::optional<TimePoint> FaultInjector::droppedUntil(std::string_view path, TimePoint now) const {
    if (drop_count_.load(std::memory_order_acquire) == 0) return std::nullopt;
    const std::lock_guard lock(mutex_);
    std::optional<TimePoint> until;
    for (const Drop& drop : drops_)
        if (drop.until > now && matches(drop.where, path) && (!until || drop.until > *until)) until = drop.until;
    return until;
}

void FaultInjector::attach(Reactor& control_loop, const std::vector<Reactor*>& data_loops) {
    const std::lock_guard lock(mutex_);
    control_loop_ = &control_loop;
    data_loops_ = data_loops;
}

void FaultInjector::detach() {
    const std::lock_guard lock(mutex_);
    end([](Owner) { return true; });
    control_loop_ = nullptr;
    data_loops_.clear();
}

/// An iteration of each data loop polls its Nics, which look at their paths then. Under the mutex.
void FaultInjector::wakeLoops() const {
    for (Reactor* loop : data_loops_) loop->post([] {});
}

}  // namespace troupe
