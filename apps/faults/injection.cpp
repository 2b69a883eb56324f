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

Result<FaultRequest> injection(const std::string& what) {
    FaultRequest request;
    const auto drop = [&](const char* where, milliseconds time) {
        request.kind = FaultRequest::Kind::DropPath;
        request.where = where;
        request.time = time;
        return request;
    };
    const auto freeze = [&](unsigned loop) {
        request.kind = FaultRequest::Kind::FreezeLoop;
        request.loop = loop;
        request.time = kShortWhile;
        return request;
    };
    if (what == "off") return request;
    if (what == "dropped-path") return drop("", kShortWhile);
    // Of an engine with two data loops.
    if (what == "one-of-two-paths") return drop("tcp0 ", std::chrono::seconds(2));
    if (what == "frozen-loop") return freeze(0);
    if (what == "frozen-control-loop") return freeze(FaultInjector::kControlLoop);
    request.kind = FaultRequest::Kind::Add;
    if (what == "one-lost-completion") {
        request.rule.point = FaultPoint::Completion;
        request.rule.action = FaultAction::Lose;
        request.rule.nth = 1;
        return request;
    }
    const auto found =
        std::find_if(rules().begin(), rules().end(), [&](const Injection& each) { return each.name == what; });
    if (found == rules().end()) {
        std::string known;
        for (const std::string& name : injections()) known += name + ", ";
        return {Code::InvalidArgument, "it is " + known + "one-of-two-paths, one-lost-completion or off"};
    }
    request.rule.point = found->point;
    request.rule.action = found->action;
    request.rule.fraction = found->fraction;
    request.rule.delay = found->delay;
    return request;
}

Status inject(FaultInjector& faults, const std::string& what) {
    const auto request = injection(what);
    if (!request) return request.status();
    switch (request->kind) {
        case FaultRequest::Kind::Add: return faults.add(request->rule).status();
        case FaultRequest::Kind::DropPath: return faults.dropPath(request->where, request->time);
        case FaultRequest::Kind::FreezeLoop: return faults.freezeLoop(request->loop, request->time);
        default: faults.clear(); return Status::ok();
    }
}

}  // namespace troupe::apps::faults
