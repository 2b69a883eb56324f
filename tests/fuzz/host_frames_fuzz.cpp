// Frames on the host socket.

#include "host_backend/wire.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const fuzz::Input input(data, size);
    const auto frame = host::decode(input.rest());
    if (!frame) {
        fuzz::require(frame.status().code() == Code::ProtocolError, "what does not decode is a ProtocolError");
        return 0;
    }
    const host::Packet packet = host::encode(*frame);
    const auto back = host::decode(packet.span());
    fuzz::require(back.isOk() && *back == *frame, "what was decoded encodes to the same");
    return 0;
}
