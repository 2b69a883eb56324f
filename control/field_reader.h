#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/incarnation.h"
#include "base/status.h"

namespace troupe {

/// Reads the scalar members of one flat JSON object from hostile text, and keeps the first thing that is wrong, so
/// that a decoder is a list of `take` calls and one look at `status()`. Unknown members are ignored, whatever they
/// hold; a member that stands twice is an error. Bounded: kMaxMembers members, kMaxDepth levels.
///
/// Not thread-safe.
class FieldReader {
  public:
    static constexpr std::size_t kMaxMembers = 64;
    static constexpr std::size_t kMaxDepth = 16;

    /// `what` names the object in messages: "Hello".
    FieldReader(std::string_view text, std::string what);

    /// An unsigned integer of at most `max`.
    std::uint64_t takeNumber(std::string_view name, std::uint64_t max = UINT64_MAX);
    /// A string of at most `max_bytes` bytes.
    std::string takeString(std::string_view name, std::size_t max_bytes);
    /// At most `max_bytes` bytes, as twice as many hexadecimal digits.
    std::string takeBytes(std::string_view name, std::size_t max_bytes);
    /// 32 hexadecimal digits, not all zero.
    Incarnation takeIncarnation(std::string_view name);
    /// The same, or null for the null incarnation.
    Incarnation takeIncarnationOrNull(std::string_view name);

    /// Ok, or ProtocolError with the object, the field and what is wrong.
    const Status& status() const { return status_; }

  private:
    class Handler;
    struct Nested {};  ///< An object, an array or a number that is no unsigned integer: never what a field holds.
    using Value = std::variant<std::nullptr_t, bool, std::uint64_t, std::string, Nested>;
    struct Member {
        std::string name;
        Value value;
    };

    const Value* find(std::string_view name);
    void fail(std::string_view name, const std::string& why);

    std::string what_;
    std::vector<Member> members_;
    Status status_;
};

}  // namespace troupe
