#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fault_injector.h"
#include "base/status.h"

namespace troupe {

/// Names, in the place of a transport, the FaultInjector of the engine that a Question is put to.
inline constexpr std::string_view kFaultsExchange = "faults";

/// A call of another engine's FaultInjector as the text of a Question, one flat JSON object.
struct FaultRequest {
    enum class Kind : std::uint8_t { Add, Remove, Count, DropPath, FreezeLoop, Clear };
    /// Longest `where` that decodes, bytes.
    static constexpr std::size_t kMaxWhere = 1100;
    /// Longest text that decodes, bytes.
    static constexpr std::size_t kMaxText = 8192;

    Kind kind = Kind::Clear;
    FaultRule rule;                    ///< Of Add. `lasts` is not 0: nobody breaks another engine for good.
    FaultInjector::RuleId id = 0;      ///< Of Remove and Count.
    std::string where;                 ///< Of DropPath.
    unsigned loop = 0;                 ///< Of FreezeLoop.
    std::chrono::microseconds time{};  ///< Of DropPath and FreezeLoop: more than 0.

    /// `fraction` in billionths, to the nearest.
    std::string encode() const;
    /// Of hostile text. ProtocolError says what is wrong with it. No time in it is longer than kLongestFault, and no
    /// `where` has control characters; what else FaultInjector refuses may be there.
    static Result<FaultRequest> decode(std::string_view text);
    /// For people, on one line: "freeze: data loop 0, for 300 ms".
    std::string describe() const;
    bool operator==(const FaultRequest&) const = default;
};

/// What became of a FaultRequest that was not refused.
struct FaultAnswer {
    FaultInjector::RuleId id = 0;  ///< Of Add.
    std::uint64_t seen = 0;        ///< Of Count.
    std::uint64_t fired = 0;       ///< Of Count.

    std::string encode() const;
    /// Of hostile text; ProtocolError.
    static Result<FaultAnswer> decode(std::string_view text);
    bool operator==(const FaultAnswer&) const = default;
};

}  // namespace troupe
