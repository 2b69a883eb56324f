#include "control/fault_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include <nlohmann/json.hpp>

#include "control/field_reader.h"

namespace troupe {

namespace {

using Json = nlohmann::json;
using Kind = FaultRequest::Kind;
using std::chrono::microseconds;

constexpr std::uint64_t kBillion = 1'000'000'000;
constexpr std::uint64_t kLongestUs = microseconds(kLongestFault).count();

// By their number.
constexpr std::array<std::string_view, 6> kKinds = {"add", "remove", "count", "drop path", "freeze loop", "clear"};
constexpr std::array<std::string_view, 4> kActions = {"fail", "delay", "lose", "corrupt"};
constexpr std::size_t kLongestWord = 16;

const std::array<std::string_view, kFaultPoints>& points() {
    static const auto all = [] {
        std::array<std::string_view, kFaultPoints> names;
        for (std::size_t i = 0; i < names.size(); ++i) names[i] = faultPointName(static_cast<FaultPoint>(i));
        return names;
    }();
    return all;
}

template <class Enum, std::size_t N>
std::string nameIn(const std::array<std::string_view, N>& names, Enum value) {
    const auto index = static_cast<std::size_t>(value);
    return std::string(index < N ? names[index] : "?");
}

Status wrong(const std::string& what) { return {Code::ProtocolError, "FaultRequest: " + what}; }

/// One of `names`, which are those of an enumeration by their number.
template <class Enum, std::size_t N>
Status takeWord(FieldReader& reader, std::string_view field, const std::array<std::string_view, N>& names,
                Enum& value) {
    const std::string word = reader.takeString(field, kLongestWord);
    if (!reader.status()) return reader.status();
    const auto found = std::find(names.begin(), names.end(), word);
    if (found == names.end()) return wrong("field '" + std::string(field) + "' is none that is known");
    value = static_cast<Enum>(std::distance(names.begin(), found));
    return Status::ok();
}

/// It is said in logs, which are lines.
Status takeWhere(FieldReader& reader, std::string& where) {
    where = reader.takeString("where", FaultRequest::kMaxWhere);
    if (std::any_of(where.begin(), where.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
        return wrong("field 'where' has control characters");
    return reader.status();
}

Status takeTime(FieldReader& reader, std::string_view field, microseconds& time) {
    time = microseconds(reader.takeNumber(field, kLongestUs));
    if (reader.status() && time.count() == 0) return wrong("field '" + std::string(field) + "' is 0");
    return reader.status();
}

Status takeRule(FieldReader& reader, FaultRule& rule) {
    if (const Status point = takeWord(reader, "point", points(), rule.point); !point) return point;
    if (const Status action = takeWord(reader, "action", kActions, rule.action); !action) return action;
    rule.nth = reader.takeNumber("nth");
    rule.fraction = static_cast<double>(reader.takeNumber("billionths", kBillion)) / static_cast<double>(kBillion);
    rule.times = reader.takeNumber("times");
    if (const Status where = takeWhere(reader, rule.where); !where) return where;
    rule.delay = microseconds(reader.takeNumber("delay_us", kLongestUs));
    rule.code = static_cast<Code>(reader.takeNumber("code", INT32_MAX));
    if (reader.status() && codeName(rule.code) == "Unknown") return wrong("field 'code' is none that is known");
    rule.retryable = reader.takeNumber("retryable", 1) == 1;
    return takeTime(reader, "lasts_us", rule.lasts);
}

std::uint64_t billionthsOf(double fraction) {
    if (!(fraction > 0)) return 0;
    return static_cast<std::uint64_t>(std::llround(std::min(fraction, 1.0) * static_cast<double>(kBillion)));
}

std::string textOf(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string ofWhat(const std::string& where) { return where.empty() ? "" : " of '" + where + "'"; }

std::string timeText(microseconds time) {
    return time.count() % 1000 == 0 ? fmt::format("{} ms", time.count() / 1000) : fmt::format("{} us", time.count());
}

std::string describeRule(const FaultRule& rule) {
    std::string text = rule.nth != 0 ? fmt::format("{}: {} {} from now on", nameIn(kActions, rule.action),
                                                   faultPointName(rule.point), rule.nth)
                                     : fmt::format("{}: {:.6g} % of {}s", nameIn(kActions, rule.action),
                                                   rule.fraction * 100, faultPointName(rule.point));
    text += ofWhat(rule.where);
    if (rule.action == FaultAction::Delay) text += " by " + timeText(rule.delay);
    if (rule.action == FaultAction::Fail) text += fmt::format(" with {}", codeName(rule.code));
    if (rule.times != 0) text += fmt::format(", at most {} times", rule.times);
    return text + ", for " + timeText(rule.lasts);
}

}  // namespace

// --- the request -------------------------------------------------------------------------------------------------

std::string FaultRequest::encode() const {
    Json json{{"do", nameIn(kKinds, kind)}};
    switch (kind) {
        case Kind::Add:
            json.update({{"point", nameIn(points(), rule.point)},
                         {"action", nameIn(kActions, rule.action)},
                         {"nth", rule.nth},
                         {"billionths", billionthsOf(rule.fraction)},
                         {"times", rule.times},
                         {"where", rule.where},
                         {"delay_us", rule.delay.count()},
                         {"code", static_cast<int>(rule.code)},
                         {"retryable", rule.retryable ? 1 : 0},
                         {"lasts_us", rule.lasts.count()}});
            break;
        case Kind::Remove:
        case Kind::Count: json.update({{"rule", id}}); break;
        case Kind::DropPath: json.update({{"where", where}, {"time_us", time.count()}}); break;
        case Kind::FreezeLoop: json.update({{"loop", loop}, {"time_us", time.count()}}); break;
        case Kind::Clear: break;
    }
    return textOf(json);
}

Result<FaultRequest> FaultRequest::decode(std::string_view text) {
    if (text.size() > kMaxText)
        return wrong(fmt::format("it has {} bytes, at most {} are accepted", text.size(), kMaxText));
    FieldReader reader(text, "FaultRequest");
    FaultRequest request;
    if (const Status kind = takeWord(reader, "do", kKinds, request.kind); !kind) return kind;
    Status taken;
    switch (request.kind) {
        case Kind::Add: taken = takeRule(reader, request.rule); break;
        case Kind::Remove:
        case Kind::Count: request.id = reader.takeNumber("rule"); break;
        case Kind::DropPath:
            taken = takeWhere(reader, request.where);
            if (taken) taken = takeTime(reader, "time_us", request.time);
            break;
        case Kind::FreezeLoop:
            request.loop = static_cast<unsigned>(reader.takeNumber("loop", FaultInjector::kControlLoop));
            taken = takeTime(reader, "time_us", request.time);
            break;
        case Kind::Clear: break;
    }
    if (!taken) return taken;
    if (!reader.status()) return reader.status();
    return request;
}

std::string FaultRequest::describe() const {
    switch (kind) {
        case Kind::Add: return describeRule(rule);
        case Kind::Remove: return fmt::format("remove: rule {}", id);
        case Kind::Count: return fmt::format("count: rule {}", id);
        case Kind::DropPath:
            return (where.empty() ? "lose: every path" : "lose: paths" + ofWhat(where)) + ", for " + timeText(time);
        case Kind::FreezeLoop:
            return (loop == FaultInjector::kControlLoop ? std::string("freeze: the control loop")
                                                        : fmt::format("freeze: data loop {}", loop)) +
                   ", for " + timeText(time);
        case Kind::Clear: return "clear";
    }
    return "?";
}

// --- the answer --------------------------------------------------------------------------------------------------

std::string FaultAnswer::encode() const { return textOf({{"rule", id}, {"seen", seen}, {"fired", fired}}); }

Result<FaultAnswer> FaultAnswer::decode(std::string_view text) {
    FieldReader reader(text, "FaultAnswer");
    FaultAnswer answer;
    answer.id = reader.takeNumber("rule");
    answer.seen = reader.takeNumber("seen");
    answer.fired = reader.takeNumber("fired");
    if (!reader.status()) return reader.status();
    return answer;
}

}  // namespace troupe
