#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string_view>

#include "security/cluster_auth.h"

/// What libFuzzer calls, and replay.cpp.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace troupe::fuzz {

/// Ends the program: libFuzzer and ctest both take it for what it is.
inline void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "broken: %s\n", what);
    std::abort();
}

/// An input taken apart from its front; zeros when it is used up.
class Input {
  public:
    Input(const std::uint8_t* data, std::size_t size) : left_(reinterpret_cast<const std::byte*>(data), size) {}

    std::uint8_t byte() {
        if (left_.empty()) return 0;
        const auto value = std::to_integer<std::uint8_t>(left_.front());
        left_ = left_.subspan(1);
        return value;
    }
    std::span<const std::byte> take(std::size_t count) {
        const auto taken = left_.first(std::min(count, left_.size()));
        left_ = left_.subspan(taken.size());
        return taken;
    }
    std::span<const std::byte> rest() const { return left_; }
    std::string_view text() const { return {reinterpret_cast<const char*>(left_.data()), left_.size()}; }
    bool empty() const { return left_.empty(); }

  private:
    std::span<const std::byte> left_;
};

/// A key as any other, made once.
inline const std::shared_ptr<const ClusterAuth>& someKey() {
    static const auto auth = *ClusterAuth::fromKeys({"a key of thirty-two bytes or more"});
    return auth;
}

/// Memory at an address that is the same in every run, so that inputs may name it, between pages that must not be
/// touched.
class GuardedMemory {
  public:
    static constexpr std::size_t kPage = 4096;
    static constexpr std::size_t kBytes = 4 * kPage;
#ifdef __SANITIZE_THREAD__
    // ThreadSanitizer has its own at the other one; inputs that name that are refused then.
    static constexpr std::uint64_t kAddress = 0x004000000000;
#else
    static constexpr std::uint64_t kAddress = 0x200000000000;
#endif

    GuardedMemory() {
        void* const wanted = reinterpret_cast<void*>(kAddress - kPage);
        void* const all =
            ::mmap(wanted, kBytes + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        require(all == wanted, "the memory lies where inputs expect it");
        require(::mprotect(data(), kBytes, PROT_READ | PROT_WRITE) == 0, "mprotect");
    }
    static std::byte* data() { return reinterpret_cast<std::byte*>(kAddress); }
};

}  // namespace troupe::fuzz
