// Control frames in arbitrary splits, what is in them, and both ends of a greeting.

#include <string>
#include <vector>

#include "control/control_handshake.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;

namespace {

constexpr std::uint64_t kMaxDescriptor = 1u << 16;

template <class Message>
void decodeAs(const ControlFrame& frame) {
    const auto message = Message::decode(frame);
    if (!message) {
        fuzz::require(message.status().code() == Code::ProtocolError, "what does not decode is a ProtocolError");
        return;
    }
    // What it says survives a round trip, however it was written.
    const std::string again = message->encode();
    const auto back = Message::decode(ControlFrame{Message::kType, again.substr(kControlHeaderBytes)});
    fuzz::require(back.isOk(), "what was decoded encodes to what decodes");
}

void decode(ControlFrame frame) {
    decodeAs<Hello>(frame);
    decodeAs<HelloAck>(frame);
    decodeAs<DescriptorRequest>(frame);
    decodeAs<Ping>(frame);
    decodeAs<Pong>(frame);
    decodeAs<Goodbye>(frame);
    decodeAs<ErrorReply>(frame);
    decodeAs<Challenge>(frame);
    decodeAs<ProofMessage>(frame);
    static_cast<void>(Descriptor::decode(std::move(frame)));
}

/// With and without a key, nothing that anybody makes up is a proof.
void greet(const std::vector<ControlFrame>& frames) {
    Hello hello;
    hello.incarnation.bytes.fill(1);
    for (const auto& auth : {std::shared_ptr<const ClusterAuth>(), fuzz::someKey()}) {
        ControlInitiator initiator(auth, hello);
        ControlResponder responder(auth, hello.incarnation);
        for (const ControlFrame& frame : frames) {
            const auto ack = initiator.onFrame(frame);
            fuzz::require(!auth || !ack || !ack->ack, "nobody is believed without the key");
            if (!ack) break;
        }
        for (const ControlFrame& frame : frames) {
            const auto proven = responder.onFrame(frame);
            fuzz::require(!auth || !proven || !proven->done, "nobody gets in without the key");
            if (!proven) break;
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const std::size_t step = 1 + input.byte() % 64;
    const auto stream = input.rest();
    ControlFrameReader whole(kMaxDescriptor);
    std::vector<ControlFrame> frames;
    const Status all = whole.feed(stream, frames);
    ControlFrameReader pieces(kMaxDescriptor);
    std::vector<ControlFrame> again;
    Status last;
    while (!input.empty() && last) {
        last = pieces.feed(input.take(step), again);
        fuzz::require(pieces.bufferedBytes() <= kControlHeaderBytes + size, "no more is held than came");
    }
    fuzz::require(all.isOk() == last.isOk() && all.message() == last.message(), "splits do not matter");
    fuzz::require(frames.size() == again.size(), "splits do not matter to the frames");
    for (std::size_t i = 0; i < frames.size(); ++i)
        fuzz::require(frames[i].type == again[i].type && frames[i].body == again[i].body, "nor to what is in them");
    greet(frames);
    for (ControlFrame& frame : frames) decode(std::move(frame));
    return 0;
}
