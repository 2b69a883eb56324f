#include "bench/serving_peer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/engine_loop.h"
#include "bench/memory.h"
#include "bench/processes.h"

namespace troupe::bench {

namespace {

constexpr auto kStartTimeout = std::chrono::seconds(60);
constexpr auto kEndTimeout = std::chrono::seconds(2);
constexpr std::size_t kSmallRegionBytes = 4096;

/// Registers `memory` as one region, or as `regions` of kSmallRegionBytes with a gap behind each.
Status registerRegions(TransferEngine& engine, const Memory& memory, std::size_t regions) {
    if (regions == 1) return engine.registerLocalMemory(memory.data(), memory.size());
    std::vector<BufferEntry> entries;
    for (std::size_t i = 0; i < regions; ++i) {
        entries.push_back({memory.data() + 2 * i * kSmallRegionBytes, kSmallRegionBytes});
    }
    return engine.registerLocalMemoryBatch(entries);
}

void waitForEndOfInput() {
    char byte = 0;
    for (;;) {
        const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
        if (got == 0 || (got < 0 && errno != EINTR)) return;
    }
}

int fail(const Status& status) {
    fmt::print(stderr, "troupe_bench: the serving peer cannot start: {}\n", status.toString());
    return 1;
}

}  // namespace

Result<ServingPeer> ServingPeer::start(const Settings& settings, std::size_t regions, bool engine_memory,
                                       const std::string& transport) {
    std::vector<std::string> arguments = {
        apps::ownProgramPath(),  "--serve-peer", "--footprint", std::to_string(settings.footprint), "--regions",
        std::to_string(regions), "--transport",  transport};
    if (engine_memory) arguments.emplace_back("--engine-memory");
    for (const auto& [key, value] : settings.config) {
        arguments.emplace_back("--set");
        arguments.push_back(key + "=" + value);
    }
    auto process = startBeside(arguments);
    if (!process) return process.status();
    auto line = process->readLine(kStartTimeout);
    if (!line) return line.status().withContext("the serving peer");
    const auto json = nlohmann::json::parse(*line, nullptr, false);
    if (!json.is_object() || !json.contains("segment") || !json["segment"].is_string() || !json.contains("address") ||
        !json["address"].is_number_unsigned()) {
        return {Code::ProtocolError, "the serving peer answered: " + *line};
    }
    ServingPeer peer;
    peer.process_ = std::move(*process);
    peer.segment_ = json["segment"].get<std::string>();
    peer.address_ = json["address"].get<std::uint64_t>();
    return peer;
}

ServingPeer::~ServingPeer() {
    process_.closeInput();
    static_cast<void>(process_.wait(kEndTimeout));
}

int servePeer(const Settings& settings, std::size_t regions, bool engine_memory, const std::string& transport) {
    Memory memory;  // Outlives the engine.
    auto engine = makeEngine(settings, transport, true);
    if (!engine) return fail(engine.status());
    std::uintptr_t address = 0;
    std::size_t length = settings.footprint;
    if (engine_memory) {
        auto allocated = (*engine)->allocateLocalMemory(length);
        if (!allocated) return fail(allocated.status());
        address = reinterpret_cast<std::uintptr_t>(*allocated);
    } else {
        auto made = Memory::populated(regions == 1 ? length : 2 * regions * kSmallRegionBytes);
        if (!made) return fail(made.status());
        memory = std::move(*made);
        length = memory.size();
        address = reinterpret_cast<std::uintptr_t>(memory.data());
        if (Status status = registerRegions(**engine, memory, regions); !status) return fail(status);
    }
    fmt::print(
        "{}\n",
        nlohmann::json({{"segment", (*engine)->localSegmentName()}, {"address", address}, {"length", length}}).dump());
    std::fflush(stdout);
    waitForEndOfInput();
    // Before the memory goes, nothing may reach it any more.
    const Status ended = (*engine)->freeEngine();
    return ended ? 0 : fail(ended);
}

}  // namespace troupe::bench
