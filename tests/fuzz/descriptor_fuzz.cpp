// A segment's descriptor as JSON, the head of a record, and its signature.

#include <string>

#include "metadata/segment_desc.h"
#include "security/record_signature.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const fuzz::Input input(data, size);
    const std::string_view text = input.text();
    const auto desc = decodeSegmentDesc(text);
    if (desc) {
        for (const BufferDesc& buffer : desc->buffers)
            fuzz::require(buffer.length != 0 && buffer.addr + buffer.length - 1 >= buffer.addr, "no range wraps");
        const std::string encoded = encodeSegmentDesc(*desc);
        const auto back = decodeSegmentDesc(encoded);
        fuzz::require(back.isOk(), "what was decoded encodes to what decodes");
        fuzz::require(*back == *desc, "and to the same");
        if (!desc->incarnation.isNull()) {
            const auto head = decodeRecordHead(std::string_view(encoded).substr(0, kRecordHeadBytes));
            fuzz::require(head.isOk() && head->incarnation == desc->incarnation && head->version == desc->version,
                          "the head of a record says whose it is");
        }
        const std::string signed_record = signRecord(encoded, fuzz::someKey());
        fuzz::require(checkRecord(signed_record, fuzz::someKey()) == RecordSignature::Good, "a signature is good");
        fuzz::require(decodeSegmentDesc(signed_record).isOk(), "and ignored by the decoder");
    } else {
        fuzz::require(!desc.status().message().empty(), "a refusal says why");
    }
    static_cast<void>(decodeRecordHead(text));
    fuzz::require(checkRecord(text, fuzz::someKey()) != RecordSignature::Good, "nobody makes up a signature");
    return 0;
}
