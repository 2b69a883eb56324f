// A peer for process tests: an engine that is found through Redis, until its standard input ends.
//
//     redis_peer URI NAME [PORT]
//
// Its first line is "ready INCARNATION ADDRESS", or the code of the error that kept it from starting.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/metadata_redis/redis_engines.h"

int main(int argc, char** argv) {
    using troupe::test::Buffer;
    if (argc < 3 || argc > 4) return 2;
    Buffer memory(1u << 16);
    const auto engine = troupe::test::makeRedisEngine();
    const int port = argc == 4 ? std::atoi(argv[3]) : 0;
    troupe::Status status = engine->init(argv[1], argv[2], "127.0.0.1", static_cast<std::uint16_t>(port));
    if (status) status = engine->installTransport("tcp").status();
    if (status) status = engine->registerLocalMemory(memory.data(), memory.size());
    if (status)
        std::printf("ready %s %llu\n", engine->incarnation().toString().c_str(),
                    static_cast<unsigned long long>(memory.address()));
    else
        std::printf("%s\n", std::string(troupe::codeName(status.code())).c_str());
    std::fflush(stdout);
    char ignored[64];
    while (::read(STDIN_FILENO, ignored, sizeof ignored) > 0) {
    }
    return 0;
}
