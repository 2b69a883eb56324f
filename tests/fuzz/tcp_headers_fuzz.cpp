// The fixed headers of data connections: what is taken has one form only.

#include <array>
#include <cstring>

#include "tcp_backend/wire.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;
using namespace troupe::tcp;

namespace {

/// The first bytes of the input; zeros behind its end.
template <std::size_t Size>
std::array<std::byte, Size> headerOf(std::span<const std::byte> bytes) {
    std::array<std::byte, Size> header{};
    std::copy_n(bytes.begin(), std::min(Size, bytes.size()), header.begin());
    return header;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const fuzz::Input input(data, size);
    const auto hello = headerOf<kHelloBytes>(input.rest());
    static_cast<void>(startsLikeHello(hello.data(), std::min(size, kHelloBytes)));
    if (const auto decoded = decodeHello(hello.data())) {
        std::array<std::byte, kHelloBytes> again{};
        encodeHello(*decoded, again.data());
        fuzz::require(again == hello, "a Hello has one form");
    }
    if (const auto decoded = decodeHelloReply(headerOf<kHelloReplyBytes>(input.rest()).data())) {
        std::array<std::byte, kHelloReplyBytes> again{};
        encodeHelloReply(*decoded, again.data());
        const auto back = decodeHelloReply(again.data());
        fuzz::require(back.isOk() && back->code == decoded->code && back->target == decoded->target &&
                          back->has_auth == decoded->has_auth,
                      "a HelloReply survives a round trip");
    }
    const auto request = headerOf<kRequestBytes>(input.rest());
    RequestHeader asked;
    if (decodeRequest(request.data(), asked)) {
        fuzz::require(asked.length <= kMaxRequestBytes, "a request is bounded");
        std::array<std::byte, kRequestBytes> again{};
        encodeRequest(asked, again.data());
        fuzz::require(again == request, "a request has one form");
    }
    const auto response = headerOf<kResponseBytes>(input.rest());
    ResponseHeader answer;
    if (decodeResponse(response.data(), answer)) {
        fuzz::require(answer.length <= kMaxRequestBytes, "an answer is bounded");
        std::array<std::byte, kResponseBytes> again{};
        encodeResponse(answer, again.data());
        fuzz::require(again == response, "an answer has one form");
    }
    return 0;
}
