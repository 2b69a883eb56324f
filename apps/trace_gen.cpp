#include "apps/trace_gen.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "apps/support/arguments.h"
#include "apps/support/session.h"
#include "apps/support/trace_generator.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

struct TraceGenOptions {
    CommonOptions common;
    TraceShape shape;
    std::string output;
};

Status generate(const TraceGenOptions& options, Console& console) {
    const auto trace = generateTrace(options.shape);
    std::string text;
    std::size_t blocks = 0;
    std::unordered_set<std::uint64_t> distinct;
    for (const auto& request : trace) {
        text += formatTraceLine(request) + "\n";
        blocks += request.hash_ids.size();
        distinct.insert(request.hash_ids.begin(), request.hash_ids.end());
    }
    if (options.output.empty()) {
        fmt::print(console.out, "{}", text);
        return Status::ok();
    }
    errno = 0;
    std::ofstream file(options.output, std::ios::binary);
    file << text;
    file.close();
    if (!file)
        return {Code::InvalidArgument, fmt::format("cannot write '{}': {}", options.output, std::strerror(errno))};
    if (options.common.json) {
        const nlohmann::json report = {{"ok", true},
                                       {"output", options.output},
                                       {"requests", trace.size()},
                                       {"blocks", blocks},
                                       {"distinct_blocks", distinct.size()}};
        fmt::print(console.out, "{}\n", report.dump(2));
    } else {
        fmt::print(console.out, "{}, {} of which {} distinct, written to {}\n", counted(trace.size(), "request"),
                   counted(blocks, "block"), distinct.size(), options.output);
    }
    return Status::ok();
}

Status checkOptions(const TraceGenOptions& options) {
    // The settings do not matter here, but a wrong one should never pass unseen.
    if (auto config = loadConfig(options.common); !config) return config.status();
    if (options.output.empty()) return Status::ok();
    const std::filesystem::path output(options.output);
    std::error_code ignored;
    if (std::filesystem::is_directory(output, ignored))
        return {Code::InvalidArgument, fmt::format("--output '{}' is a directory; give a file", options.output)};
    if (output.has_parent_path() && !std::filesystem::is_directory(output.parent_path(), ignored))
        return {Code::InvalidArgument, fmt::format("--output '{}': there is no directory '{}'", options.output,
                                                   output.parent_path().string())};
    return Status::ok();
}

}  // namespace

void addTraceGenCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<TraceGenOptions>();
    auto* command = addCommand(app, "trace-gen", "Make a small serving trace; the same options make the same trace");
    addCommonOptions(*command, options->common);
    auto& shape = options->shape;
    command->add_option("--requests", shape.requests, "Requests to make")
        ->check(CLI::Range(1u, 1'000'000u))
        ->capture_default_str();
    command->add_option("--seed", shape.seed, "Another seed makes another trace")->capture_default_str();
    command->add_option("--conversations", shape.conversations, "Conversations going on at the same time")
        ->check(CLI::Range(1u, 1'000'000u))
        ->capture_default_str();
    command->add_option("--prompts", shape.system_prompts, "Prefixes that conversations share")
        ->check(CLI::Range(0u, 10'000u))
        ->capture_default_str();
    command->add_option("--interval-ms", shape.mean_interval_ms, "Mean time between requests, milliseconds")
        ->check(CLI::Range(0u, 1'000'000u))
        ->capture_default_str();
    command->add_option("-o,--output", options->output, "File to write; without it standard output, also with --json")
        ->type_name("FILE");
    command->callback([options, &chosen] {
        chosen.name = "trace-gen";
        chosen.json = options->common.json;
        chosen.check = [options] { return checkOptions(*options); };
        chosen.run = [options](Console& console) { return generate(*options, console); };
    });
}

}  // namespace troupe::apps
