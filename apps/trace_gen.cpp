#include "apps/trace_gen.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "apps/support/arguments.h"
#include "apps/support/progress.h"
#include "apps/support/session.h"
#include "apps/support/trace_generator.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  ///< Bytes written between two looks at the stop signal.

struct TraceGenOptions {
    CommonOptions common;
    TraceShape shape;
    std::string output;
};

/// A trace as text, and what is in it.
struct Made {
    std::string text;
    std::size_t blocks = 0;
    std::size_t distinct = 0;
};

/// Canceled when the user ends it.
Result<Made> make(const TraceGenOptions& options, const Console& console, Progress& progress) {
    Made made;
    TraceGenerator generator(options.shape);
    std::unordered_set<std::uint64_t> distinct;
    const std::size_t all = options.shape.requests;
    for (std::size_t i = 0; i < all; ++i) {
        if (console.stop->requested())
            return {Code::Canceled, fmt::format("stopped after {} of {} requests; nothing was written", i, all)};
        const TraceRequest request = generator.next();
        made.text += formatTraceLine(request) + "\n";
        made.blocks += request.hash_ids.size();
        distinct.insert(request.hash_ids.begin(), request.hash_ids.end());
        if (progress.due())
            progress.update(static_cast<double>(i + 1) / static_cast<double>(all),
                            fmt::format("{} of {} requests, {}", i + 1, all, formatBytes(made.text.size())));
    }
    made.distinct = distinct.size();
    return made;
}

/// `text` in pieces, for each of which `put` is called; Canceled when the user ends it between two.
Status write(const std::string& text, const std::string& where, const Console& console, Progress& progress,
             const std::function<Status(std::string_view)>& put) {
    for (std::size_t at = 0; at < text.size(); at += kPiece) {
        if (console.stop->requested())
            return {Code::Canceled, fmt::format("stopped; {} has only the first {} of {}", where, formatBytes(at),
                                                formatBytes(text.size()))};
        if (auto status = put(std::string_view(text).substr(at, kPiece)); !status) return status;
        progress.update(static_cast<double>(at) / static_cast<double>(text.size()), "written");
    }
    return Status::ok();
}

Status writeFile(const std::string& text, const std::string& path, const Console& console, Progress& progress) {
    errno = 0;
    std::ofstream file(path, std::ios::binary);
    const auto failed = [&] {
        return Status(Code::InvalidArgument, fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
    };
    const Status written = write(text, "'" + path + "'", console, progress, [&](std::string_view piece) {
        file.write(piece.data(), static_cast<std::streamsize>(piece.size()));
        return file ? Status::ok() : failed();
    });
    if (!written) return written;
    file.close();
    return file ? Status::ok() : failed();
}

Status generate(const TraceGenOptions& options, Console& console) {
    Progress progress(console.progress, "trace-gen");
    const auto made = make(options, console, progress);
    if (!made) return made.status();
    if (options.output.empty())
        return write(made->text, "standard output", console, progress, [&](std::string_view piece) {
            fmt::print(console.out, "{}", piece);
            return Status::ok();
        });
    if (auto status = writeFile(made->text, options.output, console, progress); !status) return status;
    progress.clear();
    if (options.common.json) {
        const nlohmann::json report = {{"ok", true},
                                       {"output", options.output},
                                       {"requests", options.shape.requests},
                                       {"blocks", made->blocks},
                                       {"distinct_blocks", made->distinct}};
        fmt::print(console.out, "{}\n", report.dump(2));
    } else {
        fmt::print(console.out, "{}, {} of which {} distinct, written to {}\n",
                   counted(options.shape.requests, "request"), counted(made->blocks, "block"), made->distinct,
                   options.output);
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
    addSeed(*command, shape.seed, "Another seed makes another trace");
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
