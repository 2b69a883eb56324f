#include "verbs_backend/handshake.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/wire_code.h"
#include "verbs_backend/little_endian.h"

namespace troupe::verbs {

namespace {

constexpr std::uint32_t kMagic = 0x4d445254;  // "TRDM"
constexpr std::uint16_t kFlagFence = 1;
constexpr unsigned kMtuShift = 1;
constexpr std::uint16_t kMtuMask = 7u << kMtuShift;

Status bad(const std::string& what) { return {Code::ProtocolError, "rdma handshake: " + what}; }

/// Checks length, magic and version; `at` is behind them.
Status start(std::span<const std::byte> bytes, std::size_t need, const std::byte*& at) {
    if (bytes.size() < need)
        return bad(std::to_string(bytes.size()) + " bytes of private data, " + std::to_string(need) + " are due");
    at = bytes.data();
    if (take<std::uint32_t>(at) != kMagic) return bad("not from a Troupe engine");
    if (const auto version = take<std::uint16_t>(at); version != kHandshakeVersion)
        return bad("version " + std::to_string(version) + ", this engine speaks " + std::to_string(kHandshakeVersion));
    return {};
}

}  // namespace

Code refusalCode(const Answer& answer) {
    const Code code = codeFromWire(static_cast<std::uint32_t>(answer.code));
    return code == Code::Ok ? Code::ProtocolError : code;
}

std::uint16_t mtuNumber(std::uint32_t bytes) {
    return bytes == 0 ? std::uint16_t{0} : static_cast<std::uint16_t>(std::bit_width(bytes) - 8);
}

Result<std::uint32_t> mtuOfNumber(std::uint16_t number) {
    if (number > 5) return bad("path MTU " + std::to_string(number));
    return number == 0 ? std::uint32_t{0} : std::uint32_t{128} << number;
}

std::array<std::byte, kGreetingBytes> encode(const Greeting& greeting) {
    std::array<std::byte, kGreetingBytes> bytes{};
    std::byte* at = bytes.data();
    put(at, kMagic);
    put(at, kHandshakeVersion);
    put(at, static_cast<std::uint16_t>((greeting.fence ? kFlagFence : 0) | mtuNumber(greeting.mtu) << kMtuShift));
    put(at, greeting.initiator);
    put(at, greeting.target);
    put(at, greeting.nic);
    put(at, greeting.lane);
    put(at, greeting.attempt);
    return bytes;
}

std::array<std::byte, kAnswerBytes> encode(const Answer& answer) {
    std::array<std::byte, kAnswerBytes> bytes{};
    std::byte* at = bytes.data();
    put(at, kMagic);
    put(at, kHandshakeVersion);
    put(at, static_cast<std::uint16_t>(answer.code));
    put(at, answer.target);
    put(at, answer.mtu);
    put(at, std::uint32_t{0});
    std::memcpy(at, answer.device.data(), std::min(answer.device.size(), kMaxDeviceName));
    return bytes;
}

Result<Greeting> decodeGreeting(std::span<const std::byte> bytes) {
    const std::byte* at = nullptr;
    if (Status status = start(bytes, kGreetingBytes, at); !status) return status;
    const auto flags = take<std::uint16_t>(at);
    if ((flags & ~(kFlagFence | kMtuMask)) != 0) return bad("flags that this version does not know");
    const auto mtu = mtuOfNumber(static_cast<std::uint16_t>((flags & kMtuMask) >> kMtuShift));
    if (!mtu) return mtu.status();
    Greeting greeting;
    greeting.mtu = *mtu;
    greeting.fence = (flags & kFlagFence) != 0;
    greeting.initiator = takeIncarnation(at);
    greeting.target = takeIncarnation(at);
    greeting.nic = take<std::uint32_t>(at);
    greeting.lane = take<std::uint32_t>(at);
    greeting.attempt = take<std::uint64_t>(at);
    if (greeting.initiator.isNull()) return bad("the initiator names no incarnation");
    return greeting;
}

Result<Answer> decodeAnswer(std::span<const std::byte> bytes) {
    const std::byte* at = nullptr;
    if (Status status = start(bytes, kAnswerBytes, at); !status) return status;
    Answer answer;
    answer.code = static_cast<Code>(take<std::uint16_t>(at));
    answer.target = takeIncarnation(at);
    answer.mtu = take<std::uint32_t>(at);
    if (take<std::uint32_t>(at) != 0) return bad("a reserved field is not zero");
    for (std::size_t i = 0; i < kMaxDeviceName && at[i] != std::byte{0}; ++i) {
        const char c = static_cast<char>(at[i]);
        if (c <= ' ' || c > '~') return bad("the device's name is not text");
        answer.device += c;
    }
    return answer;
}

}  // namespace troupe::verbs
