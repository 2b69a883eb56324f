// The private data of connection requests, acceptances and rejections, with and without a key.

#include <array>

#include "tests/fuzz/fuzz.h"
#include "verbs_backend/sealed_handshake.h"

using namespace troupe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const fuzz::Input input(data, size);
    const auto bytes = input.rest();
    if (const auto greeting = verbs::openGreeting(bytes, nullptr)) {
        const auto again = verbs::sealGreeting(*greeting, nullptr);
        fuzz::require(std::equal(again->begin(), again->end(), bytes.begin()), "a greeting has one form");
    }
    if (const auto answer = verbs::openAnswer(bytes, {}, nullptr))
        fuzz::require(verbs::decodeAnswer(verbs::encode(*answer)).isOk(), "what was decoded encodes to what decodes");
    fuzz::require(!verbs::openGreeting(bytes, fuzz::someKey()), "nobody gets in without the key");
    std::array<std::byte, verbs::kGreetingBytes> greeting{};
    fuzz::require(!verbs::openAnswer(bytes, greeting, fuzz::someKey()), "nobody is believed without the key");
    return 0;
}
