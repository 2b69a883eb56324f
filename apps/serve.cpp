#include "apps/serve.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include <nlohmann/json.hpp>

#include "apps/support/arguments.h"
#include "apps/support/quarantined.h"
#include "apps/support/session.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

struct ServeOptions {
    EngineArguments engine;
    std::uint64_t size = std::uint64_t{1} << 30;
    unsigned regions = 1;
    bool huge = false;
    bool engine_memory = false;
    bool until_eof = false;
};

/// True at the end of standard input (or an error on it); what arrives before is ignored.
bool inputEnded() {
    std::array<char, 512> bytes;
    const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
    return count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN);
}

Status waitForEnd(StopSignal& stop, bool until_eof) {
    std::array<pollfd, 2> entries = {pollfd{stop.fd(), POLLIN, 0}, pollfd{STDIN_FILENO, POLLIN, 0}};
    while (!stop.requested()) {
        if (::poll(entries.data(), until_eof ? 2 : 1, -1) < 0 && errno != EINTR)
            return {Code::Internal, std::string("poll: ") + std::strerror(errno)};
        if (until_eof && entries[1].revents != 0 && inputEnded()) break;
    }
    return Status::ok();
}

Status checkOptions(const ServeOptions& options) {
    if (auto status = checkEngineArguments(options.engine); !status) return status;
    if (options.engine.transport == "null")
        return {Code::InvalidArgument, "--transport null moves nothing, so nobody could use the memory; leave it out"};
    if (options.engine_memory && options.regions != 1)
        return {Code::InvalidArgument, "--engine-memory is one region; leave --regions out"};
    if (options.size < options.regions)
        return {Code::InvalidArgument,
                fmt::format("--size {} cannot be split into {} regions", formatBytes(options.size), options.regions)};
    return Status::ok();
}

Status serve(const ServeOptions& options, Console& console) {
    auto session = Session::start(options.engine);
    if (!session) return session.status();
    auto& engine = (*session)->engine();
    const auto memory = options.engine_memory
                            ? (*session)->allocateMemory(options.size, options.huge, true)
                            : (*session)->addMemory(options.size, options.huge, true, options.regions);
    if (!memory) return memory.status();

    const auto address = reinterpret_cast<std::uint64_t>(memory->data());
    if (options.engine.common.json) {
        const nlohmann::json line = {
            {"ok", true}, {"segment", engine.localSegmentName()}, {"addr", address}, {"length", memory->size()}};
        fmt::print(console.out, "{}\n", line.dump());
    } else {
        fmt::print(console.out, "serving {} at {} as segment {}; {} to stop\n", formatBytes(memory->size()),
                   formatAddress(address), engine.localSegmentName(),
                   options.until_eof ? "close standard input" : "Ctrl-C");
    }
    // A server whose address nobody can read is of no use.
    if (auto status = flushOutput(console.out); !status) return status;
    if (auto status = waitForEnd(*console.stop, options.until_eof); !status) return status;
    const Status freed = engine.freeEngine();
    if (const Quarantined quarantined = engine.quarantine(); quarantined.ever != 0) {
        const TimePoint now = Clock::now();
        fmt::print(console.out, "{}",
                   options.engine.common.json ? nlohmann::json{{"quarantine", toJson(quarantined, now)}}.dump() + "\n"
                                              : describe(quarantined, now));
    }
    return freed;
}

}  // namespace

void addServeCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<ServeOptions>();
    options->engine.serves = true;
    auto* command = addCommand(app, "serve",
                               "Expose a segment of memory, to be read and written by others, until SIGINT or SIGTERM");
    addEngineOptions(*command, options->engine);
    addBytes(*command, "--size", options->size, "Memory to serve");
    command->add_option("--regions", options->regions, "Register the memory in this many touching pieces")
        ->check(CLI::Range(1u, 1'000'000u))
        ->capture_default_str();
    command
        ->add_option("--threads", options->engine.data_loops,
                     "Data loop threads (of bench it is submitting threads); 0: as data_loops says")
        ->check(CLI::Range(0u, 64u))
        ->capture_default_str();
    command->add_flag("--engine-memory", options->engine_memory,
                      "Let the engine allocate it, so that processes of this machine map it; not with --regions");
    command->add_flag("--huge", options->huge, "Take the memory from the pool of huge pages");
    command->add_flag("--until-eof", options->until_eof, "Also stop when standard input ends");
    command->callback([options, &chosen] {
        chosen.name = "serve";
        chosen.json = options->engine.common.json;
        chosen.check = [options] { return checkOptions(*options); };
        chosen.run = [options](Console& console) { return serve(*options, console); };
    });
}

}  // namespace troupe::apps
