#include <troupe/troupe.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/transfer_engine.h"

#ifndef EXPECTED_VERSION  // What find_package says it is, where it is found by that.
#define EXPECTED_VERSION TROUPE_VERSION_STRING
#endif

// What a metadata store of one's own does to speak with a server, on the turn of the loop that it is given.
troupe::Result<std::unique_ptr<troupe::Stream>> greet(troupe::Reactor& reactor, const troupe::SocketAddress& server) {
    auto stream = reactor.connect(server);
    if (stream) (*stream)->watch(0, [](std::uint32_t) {});
    return stream;
}

// Writes into its own segment: the least that needs everything.
int main() {
    std::vector<char> from(4096, 'x');
    std::vector<char> to(4096, ' ');
    troupe::TransferEngine engine;
    troupe::Status status = engine.init("p2p", "");
    if (status) status = engine.installTransport("tcp").status();
    for (auto* buffer : {&from, &to})
        if (status) status = engine.registerLocalMemory(buffer->data(), buffer->size());
    if (status) {
        troupe::TransferRequest request;
        request.opcode = troupe::TransferRequest::WRITE;
        request.source = from.data();
        request.target_id = troupe::kLocalSegmentID;
        request.target_offset = reinterpret_cast<std::uint64_t>(to.data());
        request.length = from.size();
        const auto batch = engine.allocateBatchID(1);
        status = batch ? engine.submitTransfer(*batch, {request}) : batch.status();
        if (status) status = engine.waitTransfer(*batch).status();
    }
    std::printf("Troupe %s: %s\n", TROUPE_VERSION_STRING, status.toString().c_str());
    const std::string version = std::to_string(TROUPE_VERSION_MAJOR) + "." + std::to_string(TROUPE_VERSION_MINOR) +
                                "." + std::to_string(TROUPE_VERSION_PATCH);
    if (version != TROUPE_VERSION_STRING || version != EXPECTED_VERSION) return 1;
    const bool own = ownStatus() == 7 && TransferEngine().cylinders == 4;
    return status && from == to && own ? 0 : 1;
}
