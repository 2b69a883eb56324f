// What asks for a queue pair over the control connection, and what answers it.

#include "tests/fuzz/fuzz.h"
#include "verbs_backend/exchange_messages.h"

using namespace troupe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const fuzz::Input input(data, size);
    const auto bytes = input.text();
    if (const auto offer = verbs::decodeOffer(bytes)) {
        fuzz::require(offer->gids.size() <= verbs::kMaxOfferedGids, "an offer names no more GIDs than it may");
        fuzz::require(verbs::encode(*offer) == bytes, "an offer has one form");
    }
    if (const auto reply = verbs::decodeOfferReply(bytes)) {
        fuzz::require(reply->text.size() <= verbs::kMaxReplyText, "the text of a reply is no longer than it may be");
        fuzz::require(verbs::decodeOfferReply(verbs::encode(*reply)).isOk(),
                      "what was decoded encodes to what decodes");
    }
    return 0;
}
