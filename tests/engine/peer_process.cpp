// A peer for process tests: serves one region until its standard input ends.
//
//     peer_process BYTES PORT
//
// Its first line is "SEGMENT ADDRESS". Exits with 1 when it cannot start.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/support/engine_pair.h"

int main(int argc, char** argv) {
    using troupe::test::Buffer;
    if (argc != 3) return 2;
    Buffer memory(std::strtoull(argv[1], nullptr, 10));
    troupe::EngineOptions options;
    options.config.data_loops = 1;
    troupe::TransferEngine engine(options);
    const auto port = static_cast<std::uint16_t>(std::strtoul(argv[2], nullptr, 10));
    troupe::Status status = engine.init("p2p", "", "127.0.0.1", port);
    if (status) status = engine.installTransport("tcp").status();
    if (status) status = engine.registerLocalMemory(memory.data(), memory.size());
    if (!status) {
        std::fprintf(stderr, "%s\n", status.toString().c_str());
        return 1;
    }
    std::printf("%s %llu\n", engine.localSegmentName().c_str(), static_cast<unsigned long long>(memory.address()));
    std::fflush(stdout);
    char ignored[64];
    while (::read(STDIN_FILENO, ignored, sizeof ignored) > 0) {
    }
    return 0;
}
