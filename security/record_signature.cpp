#include "security/record_signature.h"

namespace troupe {

namespace {

constexpr std::string_view kProtocol = "record";
constexpr std::string_view kBefore = R"(,"signature":")";
constexpr std::string_view kAfter = R"("})";
constexpr std::size_t kTail = kBefore.size() + 2 * kProofBytes + kAfter.size();

std::span<const std::byte> asBytes(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

}  // namespace

std::string_view signatureName(RecordSignature signature) {
    switch (signature) {
        case RecordSignature::None: return "none";
        case RecordSignature::Unchecked: return "unchecked";
        case RecordSignature::Good: return "good";
        case RecordSignature::Wrong: return "wrong";
    }
    return "unknown";
}

std::string signRecord(std::string json, const std::shared_ptr<const ClusterAuth>& auth) {
    if (!hasKey(auth) || json.empty() || json.back() != '}') return json;
    json.pop_back();
    const Proof proof = auth->prove(AuthRole::Record, kProtocol, {asBytes(json)});
    json.append(kBefore).append(toHex(proof)).append(kAfter);
    return json;
}

RecordSignature checkRecord(std::string_view json, const std::shared_ptr<const ClusterAuth>& auth) {
    if (json.size() <= kTail) return RecordSignature::None;
    std::string_view tail = json.substr(json.size() - kTail);
    if (tail.substr(0, kBefore.size()) != kBefore || tail.substr(tail.size() - kAfter.size()) != kAfter)
        return RecordSignature::None;
    if (!hasKey(auth)) return RecordSignature::Unchecked;
    const auto proof = bytesFromHex(tail.substr(kBefore.size(), 2 * kProofBytes));
    const std::string_view body = json.substr(0, json.size() - kTail);
    const bool good = proof && auth->accepts(AuthRole::Record, kProtocol, {asBytes(body)}, *proof);
    return good ? RecordSignature::Good : RecordSignature::Wrong;
}

Status judgeRecord(RecordSignature signature, const std::shared_ptr<const ClusterAuth>& auth) {
    if (!hasKey(auth) || signature == RecordSignature::Good) return Status::ok();
    auth->count(AuthRefusal::BadRecord);
    return {Code::AccessDenied,
            signature == RecordSignature::None
                ? "the record is not signed, and this engine uses a cluster key: its engine has "
                  "none, or somebody else wrote it (docs/security.md)"
                : "the record's signature is wrong: its engine has another cluster key, or somebody "
                  "changed it (docs/security.md)"};
}

}  // namespace troupe
