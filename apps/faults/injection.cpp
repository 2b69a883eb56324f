#include "apps/faults/injection.h"

#include <algorithm>
#include <chrono>

namespace troupe::apps::faults {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kShortWhile{300};

struct Injection {
    std::string name;
    FaultPoint point;
    FaultAction action;
    double fraction;
    milliseconds delay{};
};

const std::vector<Injection>& rules() {
    static const std::vector<Injection> all = {
        {"posts", FaultPoint::Post, FaultAction::Fail, 0.02},
        {"late-posts", FaultPoint::Post, FaultAction::Delay, 0.05, milliseconds(20)},
        {"lost-posts", FaultPoint::Post, FaultAction::Lose, 0.002},
        {"completions", FaultPoint::Completion, FaultAction::Fail, 0.02},
        {"late-completions", FaultPoint::Completion, FaultAction::Delay, 0.05, milliseconds(20)},
        {"lost-completions", FaultPoint::Completion, FaultAction::Lose, 0.002},
        {"control-frames", FaultPoint::ControlFrame, FaultAction::Fail, 0.3},
        {"late-control-frames", FaultPoint::ControlFrame, FaultAction::Delay, 0.5, milliseconds(100)},
        {"lost-control-frames", FaultPoint::ControlFrame, FaultAction::Lose, 0.3},
        {"store-calls", FaultPoint::StoreCall, FaultAction::Fail, 0.5},
        {"late-store-calls", FaultPoint::StoreCall, FaultAction::Delay, 0.5, milliseconds(200)},
        {"corrupt-bytes", FaultPoint::Payload, FaultAction::Corrupt, 0.01},
    };
    return all;
}

}  // namespace

const std::vector<std::string>& injections() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> all;
        for (const Injection& each : rules()) all.push_back(each.name);
        for (const char* each : {"dropped-path", "frozen-loop", "frozen-control-loop"}) all.emplace_back(each);
        return all;
    }();
    return names;
}

Status inject(FaultInjector& faults, const std::string& what) {
    if (what == "off") {
        faults.clear();
        return Status::ok();
    }
    if (what == "dropped-path") return faults.dropPath("", kShortWhile);
    // Of an engine with two data loops.
    if (what == "one-of-two-paths") return faults.dropPath("tcp0 ", std::chrono::seconds(2));
    if (what == "frozen-loop") return faults.freezeLoop(0, kShortWhile);
    if (what == "frozen-control-loop") return faults.freezeLoop(FaultInjector::kControlLoop, kShortWhile);
    if (what == "one-lost-completion") {
        FaultRule next;
        next.point = FaultPoint::Completion;
        next.action = FaultAction::Lose;
        next.nth = 1;
        return faults.add(next).status();
    }
    const auto found =
        std::find_if(rules().begin(), rules().end(), [&](const Injection& each) { return each.name == what; });
    if (found == rules().end()) {
        std::string known;
        for (const std::string& name : injections()) known += name + ", ";
        return {Code::InvalidArgument, "it is " + known + "one-of-two-paths, one-lost-completion or off"};
    }
    FaultRule rule;
    rule.point = found->point;
    rule.action = found->action;
    rule.fraction = found->fraction;
    rule.delay = found->delay;
    return faults.add(rule).status();
}

}  // namespace troupe::apps::faults
