#include "base/incarnation.h"

#include <sys/random.h>

#include <fstream>
#include <random>

namespace troupe {

namespace {

constexpr char kDigits[] = "0123456789abcdef";

int hexValue(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

}  // namespace

Incarnation Incarnation::random() {
    Incarnation result;
    if (getrandom(result.bytes.data(), result.bytes.size(), 0) != static_cast<ssize_t>(result.bytes.size())) {
        // Only a kernel without getrandom (before 3.17) or a seccomp filter gets here.
        std::random_device device;
        for (auto& byte : result.bytes) byte = static_cast<std::uint8_t>(device());
    }
    return result;
}

Result<Incarnation> Incarnation::parse(std::string_view hex) {
    Incarnation result;
    if (hex.size() != 2 * result.bytes.size())
        return {Code::InvalidArgument,
                "an incarnation has 32 hexadecimal digits, this has " + std::to_string(hex.size()) + " characters"};
    for (std::size_t i = 0; i < result.bytes.size(); ++i) {
        const int high = hexValue(hex[2 * i]);
        const int low = hexValue(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return {Code::InvalidArgument, "'" + std::string(hex) + "' is not an incarnation: not hexadecimal"};
        result.bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
    }
    return result;
}

std::string Incarnation::toString() const {
    std::string text;
    text.reserve(2 * bytes.size());
    for (const auto byte : bytes) {
        text.push_back(kDigits[byte >> 4]);
        text.push_back(kDigits[byte & 15]);
    }
    return text;
}

std::string readBootId() {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    std::getline(file, id);
    return id;
}

}  // namespace troupe
