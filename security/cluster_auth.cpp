#include "security/cluster_auth.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/random.h>

#include <random>
#include <utility>

#include "security/key_file.h"

namespace troupe {

namespace {

/// Of this format; another one would say so here, and its proofs would be no proofs of this one.
constexpr std::string_view kLabel = "troupe-auth-1";

std::span<const std::byte> asBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

struct FreeMac {
    void operator()(EVP_MAC* mac) const { EVP_MAC_free(mac); }
    void operator()(EVP_MAC_CTX* context) const { EVP_MAC_CTX_free(context); }
};
using Mac = std::unique_ptr<EVP_MAC, FreeMac>;
using MacContext = std::unique_ptr<EVP_MAC_CTX, FreeMac>;

/// Length first, so that two messages cannot be read as two others.
bool add(EVP_MAC_CTX* context, std::span<const std::byte> bytes) {
    std::array<unsigned char, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i)
        length[i] = static_cast<unsigned char>(std::uint64_t{bytes.size()} >> (8 * i) & 0xff);
    return EVP_MAC_update(context, length.data(), length.size()) == 1 &&
           EVP_MAC_update(context, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()) == 1;
}

Result<std::string> keyFrom(const std::string& value, const std::string& file, const std::string& name) {
    if (!value.empty() && !file.empty())
        return Status(Code::InvalidArgument, name + " and " + name + "_file are both set; leave one out");
    if (file.empty()) return value;
    auto read = readKeyFile(file, ClusterAuth::kMaxKeyBytes);
    return read ? read : Result<std::string>(read.status().withContext(name + "_file"));
}

Status checkLength(const std::string& key, const std::string& name) {
    if (key.size() >= ClusterAuth::kMinKeyBytes && key.size() <= ClusterAuth::kMaxKeyBytes) return Status::ok();
    return {Code::InvalidArgument,
            name + " has " + std::to_string(key.size()) + " bytes, " + std::to_string(ClusterAuth::kMinKeyBytes) +
                " to " + std::to_string(ClusterAuth::kMaxKeyBytes) + " are due; `openssl rand -hex 32` makes one"};
}

}  // namespace

/// HMAC-SHA-256 with one key, ready to be copied for each proof; OpenSSL wipes what it holds of the key.
class ClusterAuth::Key {
  public:
    /// Null when OpenSSL has no HMAC or no memory.
    static std::unique_ptr<const Key> make(std::string_view bytes) {
        const Mac mac(EVP_MAC_fetch(nullptr, "HMAC", nullptr));
        if (!mac) return nullptr;
        MacContext context(EVP_MAC_CTX_new(mac.get()));
        char digest[] = "SHA256";
        const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                         OSSL_PARAM_construct_end()};
        const auto* key = reinterpret_cast<const unsigned char*>(bytes.data());
        if (!context || EVP_MAC_init(context.get(), key, bytes.size(), parameters) != 1) return nullptr;
        return std::unique_ptr<const Key>(new Key(std::move(context)));
    }

    /// False only without memory.
    bool prove(AuthRole role, std::string_view protocol, Transcript transcript, Proof& proof) const {
        const MacContext context(EVP_MAC_CTX_dup(ready_.get()));
        const std::byte who{static_cast<std::uint8_t>(role)};
        if (!context || !add(context.get(), asBytes(kLabel)) || !add(context.get(), asBytes(protocol)) ||
            !add(context.get(), {&who, 1}))
            return false;
        for (const auto& message : transcript)
            if (!add(context.get(), message)) return false;
        std::size_t length = 0;
        return EVP_MAC_final(context.get(), reinterpret_cast<unsigned char*>(proof.data()), &length, proof.size()) ==
                   1 &&
               length == proof.size();
    }

  private:
    explicit Key(MacContext ready) : ready_(std::move(ready)) {}
    const MacContext ready_;
};

Nonce randomNonce() {
    Nonce nonce;
    if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
        // Only a kernel without getrandom (before 3.17) or a seccomp filter gets here.
        std::random_device device;
        for (std::byte& byte : nonce) byte = static_cast<std::byte>(device());
    }
    return nonce;
}

std::string toHex(std::span<const std::byte> bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    text.reserve(2 * bytes.size());
    for (const std::byte b : bytes) {
        text += kDigits[std::to_integer<unsigned>(b) >> 4];
        text += kDigits[std::to_integer<unsigned>(b) & 0xf];
    }
    return text;
}

std::optional<std::array<std::byte, 32>> bytesFromHex(std::string_view hex) {
    std::array<std::byte, 32> bytes{};
    if (hex.size() != 2 * bytes.size()) return std::nullopt;
    for (std::size_t i = 0; i < hex.size(); ++i) {
        const char c = hex[i];
        unsigned digit = 0;
        if (c >= '0' && c <= '9')
            digit = static_cast<unsigned>(c - '0');
        else if (c >= 'a' && c <= 'f')
            digit = static_cast<unsigned>(c - 'a' + 10);
        else
            return std::nullopt;
        bytes[i / 2] = static_cast<std::byte>(std::to_integer<unsigned>(bytes[i / 2]) << 4 | digit);
    }
    return bytes;
}

ClusterAuth::ClusterAuth() = default;
ClusterAuth::~ClusterAuth() = default;

Result<std::shared_ptr<const ClusterAuth>> ClusterAuth::load(const Config& config) {
    const auto first = keyFrom(config.auth_key, config.auth_key_file, "auth.key");
    if (!first) return first.status();
    const auto second = keyFrom(config.auth_accept_key, config.auth_accept_key_file, "auth.accept_key");
    if (!second) return second.status();
    std::vector<std::string> keys;
    if (!first->empty()) {
        if (const Status length = checkLength(*first, "auth.key"); !length) return length;
        keys.push_back(*first);
    }
    if (!second->empty()) {
        if (keys.empty())
            return Status(Code::InvalidArgument, "auth.accept_key is set and auth.key is not: set that first");
        if (const Status length = checkLength(*second, "auth.accept_key"); !length) return length;
        keys.push_back(*second);
    }
    return fromKeys(keys);
}

Result<std::shared_ptr<const ClusterAuth>> ClusterAuth::fromKeys(const std::vector<std::string>& keys) {
    std::shared_ptr<ClusterAuth> auth(new ClusterAuth());
    for (const std::string& bytes : keys) {
        auto key = Key::make(bytes);
        if (!key) return Status(Code::ResourceExhausted, "OpenSSL offers no HMAC-SHA-256, or has no memory for it");
        auth->keys_.push_back(std::move(key));
    }
    return std::shared_ptr<const ClusterAuth>(std::move(auth));
}

Proof ClusterAuth::prove(AuthRole role, std::string_view protocol, Transcript transcript) const {
    Proof proof{};
    // What stands in it after a failure nobody accepts, but by a chance of 2^-256.
    if (keys_.empty() || !keys_.front()->prove(role, protocol, transcript, proof)) proof = randomNonce();
    return proof;
}

bool ClusterAuth::accepts(AuthRole role, std::string_view protocol, Transcript transcript,
                          std::span<const std::byte> proof) const {
    if (proof.size() < 8 || proof.size() > kProofBytes) return false;
    bool accepted = false;
    for (const auto& key : keys_) {
        Proof expected{};
        const bool made = key->prove(role, protocol, transcript, expected);
        const bool same = CRYPTO_memcmp(expected.data(), proof.data(), proof.size()) == 0;
        accepted = (made && same) || accepted;
    }
    return accepted;
}

AuthCounts ClusterAuth::counts() const {
    AuthCounts counts;
    counts.accepted = accepted_.load(std::memory_order_relaxed);
    for (std::size_t i = 0; i < refused_.size(); ++i) counts.refused[i] = refused_[i].load(std::memory_order_relaxed);
    return counts;
}

Status needsKey(const std::string& who) {
    return {Code::AccessDenied, who +
                                    " asks for the cluster key, and whoever connects to it gave no proof of it; set "
                                    "auth.key_file on all engines (docs/security.md)"};
}

Status hasNoKey(const std::string& who) {
    return {Code::AccessDenied,
            who +
                " uses no cluster key, and whoever connects to it asks for it; set auth.key_file on all "
                "engines (docs/security.md)"};
}

Status otherKey(const std::string& who) {
    return {Code::AccessDenied, who +
                                    " does not accept the proof of the other end: the cluster keys differ "
                                    "(auth.key_file; docs/security.md)"};
}

}  // namespace troupe
