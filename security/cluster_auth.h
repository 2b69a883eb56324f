#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "security/auth_counts.h"

namespace troupe {

inline constexpr std::size_t kNonceBytes = 32;
inline constexpr std::size_t kProofBytes = 32;  ///< HMAC-SHA-256.

using Nonce = std::array<std::byte, kNonceBytes>;
using Proof = std::array<std::byte, kProofBytes>;

/// Never used before by anybody: from getrandom(2).
Nonce randomNonce();

/// Lower-case hexadecimal digits.
std::string toHex(std::span<const std::byte> bytes);
/// Exactly 32 bytes of them; nothing for any other text.
std::optional<std::array<std::byte, 32>> bytesFromHex(std::string_view hex);

/// Whose proof it is. A part of what is proven, so that a proof is not taken back to the end that made it.
enum class AuthRole : std::uint8_t {
    Initiator = 'I',
    Responder = 'R',
    Record = 'D',  ///< Who signed a record in a store.
};

/// The bytes of one message of a conversation, as they were sent.
using Transcript = std::initializer_list<std::span<const std::byte>>;

/// What one engine knows of the key of its cluster. The first key makes proofs, each of them is accepted, so that a
/// cluster can change its key engine by engine. An engine without any has one of these, too, and lets everybody in.
///
/// A proof is an HMAC-SHA-256 over a label of this format, the protocol, the role, and every message of the
/// conversation so far with its length: incarnations, nonces of both ends and whatever else they said are in these.
/// Comparisons take the same time whatever differs. No call blocks; a proof takes some microseconds.
///
/// Any thread.
class ClusterAuth {
  public:
    /// The keys of `auth.key`, `auth.key_file`, `auth.accept_key` and `auth.accept_key_file`. InvalidArgument names the
    /// setting, never a key: a key that is too short, a file that cannot be read or that others may read, both ways of
    /// giving one key at once, a second key without a first.
    static Result<std::shared_ptr<const ClusterAuth>> load(const Config& config);
    /// From keys as they are, for tests: none, one or two of them.
    static Result<std::shared_ptr<const ClusterAuth>> fromKeys(const std::vector<std::string>& keys);

    ~ClusterAuth();
    ClusterAuth(const ClusterAuth&) = delete;
    ClusterAuth& operator=(const ClusterAuth&) = delete;

    bool hasKey() const { return !keys_.empty(); }

    /// With the first key; there must be one. `protocol` is a short name: "control", "tcp".
    Proof prove(AuthRole role, std::string_view protocol, Transcript transcript) const;
    /// Whether any of the keys made `proof`, or the first `proof.size()` bytes of it (8 to kProofBytes). False without
    /// a key.
    bool accepts(AuthRole role, std::string_view protocol, Transcript transcript,
                 std::span<const std::byte> proof) const;

    void countAccepted() const { accepted_.fetch_add(1, std::memory_order_relaxed); }
    void count(AuthRefusal why) const {
        refused_[static_cast<std::size_t>(why)].fetch_add(1, std::memory_order_relaxed);
    }
    AuthCounts counts() const;

    /// Shortest key, bytes: what a guess over the network cannot find.
    static constexpr std::size_t kMinKeyBytes = 32;
    static constexpr std::size_t kMaxKeyBytes = 4096;

  private:
    class Key;
    ClusterAuth();

    std::vector<std::unique_ptr<const Key>> keys_;
    mutable std::atomic<std::uint64_t> accepted_{0};
    mutable std::array<std::atomic<std::uint64_t>, kAuthRefusals> refused_{};
};

/// Null stands for an engine without a key.
inline bool hasKey(const std::shared_ptr<const ClusterAuth>& auth) { return auth && auth->hasKey(); }
/// Counts, unless there is nothing to count in.
inline void countRefusal(const std::shared_ptr<const ClusterAuth>& auth, AuthRefusal why) {
    if (auth) auth->count(why);
}

/// AccessDenied with what both ends have to do about it. `who` begins it: "peer 10.0.0.1:7000", "this engine".
Status needsKey(const std::string& who);  ///< It has a key and we gave no proof.
Status hasNoKey(const std::string& who);  ///< It has none and we have one.
Status otherKey(const std::string& who);  ///< Its key is another one.

}  // namespace troupe
