#include <algorithm>
#include <iostream>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/bench.h"
#include "apps/config.h"
#include "apps/demo.h"
#include "apps/explain.h"
#include "apps/faults.h"
#include "apps/replay.h"
#include "apps/segments.h"
#include "apps/serve.h"
#include "apps/sim.h"
#include "apps/soak.h"
#include "apps/support/command.h"
#include "apps/support/remedy.h"
#include "apps/support/say.h"
#include "apps/support/usage.h"
#include "apps/topo.h"
#include "apps/trace_gen.h"
#include "apps/verify.h"
#include "base/nearest_name.h"

namespace troupe::apps {

namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

/// What --json says of an error, `partial` beside it. Not to a standard output that took no more: that is the error.
void sayInJson(const Status& status, const std::string& remedy, const nlohmann::json& partial) {
    if (std::ferror(stdout) != 0) return;
    nlohmann::json answer = partial.is_object() ? partial : nlohmann::json::object();
    answer["ok"] = false;
    answer["error"] = {{"code", codeName(status.code())},
                       {"message", status.message()},
                       {"try", remedy.empty() ? nlohmann::json() : nlohmann::json(remedy)}};
    say(stdout, "{}\n", answer.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// `partial` is what --json says beside the error.
void report(const ChosenCommand& command, const Status& given, int code, const nlohmann::json& partial = {}) {
    const Status status(given.code(), inWordsOfTheCommandLine(given.message()));
    std::string remedy = remedyFor(status);
    if (remedy.empty() && code == kUsage) remedy = "troupe " + command.name + " --help";
    say(stderr, "troupe {}: {}\n", command.name, status.toString());
    if (!remedy.empty()) say(stderr, "  try: {}\n", remedy);
    if (command.json) sayInJson(status, remedy, partial);
}

/// Whether --json is among the arguments, for when they did not parse.
bool wantsJson(const std::vector<std::string>& arguments) {
    const auto end = std::find(arguments.begin(), arguments.end(), "--");
    return std::find(arguments.begin(), end, "--json") != end;
}

/// Arguments that did not parse. `who` is "troupe", or "troupe bench".
int wrongUsage(const std::vector<std::string>& arguments, const std::string& who, const std::string& what) {
    const std::string remedy = who + " --help";
    say(stderr, "{}: {}\n  try: {}\n", who, what, remedy);
    if (wantsJson(arguments)) sayInJson(Status(Code::InvalidArgument, what), remedy, {});
    return kUsage;
}

/// Nothing of ours throws, but the standard library may, out of memory or the like; a user with --json still gets JSON.
Status guarded(const std::function<Status()>& call) {
    try {
        return call();
    } catch (const std::bad_alloc&) {
        return {Code::ResourceExhausted, "out of memory; ask for less"};
    } catch (const std::exception& error) {
        // fmt::print throws when the stream takes no more.
        if (auto status = flushOutput(stdout); !status) return status;
        return {Code::Internal, error.what()};
    }
}

std::vector<const CLI::App*> commandNamed(const CLI::App& app, const std::string& name) {
    return app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; });
}

/// For a first argument that is no command of `app`.
int unknownCommand(const CLI::App& app, const std::vector<std::string>& arguments) {
    const std::string& name = arguments.front();
    std::vector<std::string> known;
    for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; }))
        known.push_back(command->get_name());
    // A name may be long; its first bytes tell enough.
    const std::string nearest = nearestName(std::string_view(name).substr(0, 64), known);
    return wrongUsage(arguments, "troupe",
                      "unknown command '" + name + "'" + (nearest.empty() ? "" : "; did you mean '" + nearest + "'?"));
}

/// For arguments that `app` could not parse.
int wrongArguments(const CLI::App& app, const std::vector<std::string>& arguments, const CLI::ParseError& error) {
    // A name that is wrong explains all else that seems to be: a missing option, a value too many.
    if (const auto unknown = unknownOption(app, arguments)) return wrongUsage(arguments, unknown->who, unknown->what);
    const auto chain = app.get_subcommands();
    return wrongUsage(arguments, chain.empty() ? "troupe" : "troupe " + chain.front()->get_name(), error.what());
}

/// "help" is --help, and "help X" is "X --help".
std::vector<std::string> spellOutHelp(std::vector<std::string> arguments) {
    if (arguments.empty() || arguments.front() != "help") return arguments;
    while (!arguments.empty() && arguments.front() == "help") arguments.erase(arguments.begin());
    arguments.insert(arguments.begin() + (arguments.empty() ? 0 : 1), "--help");
    return arguments;
}

int run(int argc, char** argv) {
    CLI::App app("Troupe moves memory between processes and machines.", "troupe");
    app.formatter(std::make_shared<WrappedHelp>());
    app.require_subcommand(0, 1);
    app.set_version_flag("--version", std::string("troupe ") + TROUPE_VERSION);
    ChosenCommand chosen;
    addDemoCommand(app, chosen);
    addServeCommand(app, chosen);
    addBenchCommand(app, chosen);
    addVerifyCommand(app, chosen);
    addReplayCommand(app, chosen);
    addTraceGenCommand(app, chosen);
    addSegmentsCommand(app, chosen);
    addExplainCommand(app, chosen);
    addSimCommand(app, chosen);
    addFaultsCommand(app, chosen);
    addSoakCommand(app, chosen);
    addConfigCommand(app, chosen);
    addTopoCommand(app, chosen);
    auto arguments = spellOutHelp(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
    if (!arguments.empty() && arguments.front().rfind('-', 0) != 0 && commandNamed(app, arguments.front()).empty())
        return unknownCommand(app, arguments);
    // CLI11 takes them from the back, and empties them.
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    try {
        app.parse(reversed);
    } catch (const CLI::ParseError& error) {
        // Help and version are "errors" too, with exit code 0, and printed by this.
        if (error.get_exit_code() != 0) return wrongArguments(app, arguments, error);
        app.exit(error);
        if (std::cout.flush()) return 0;
        say(stderr, "troupe: cannot write to standard output\n");
        return kFailure;
    }

    if (!chosen.run) {
        say(stderr, "troupe: which command?\n{}", app.help());
        return kUsage;
    }

    if (chosen.check) {
        if (const Status status = guarded(chosen.check); !status) {
            report(chosen, status, kUsage);
            return kUsage;
        }
    }
    auto stop = StopSignal::install();
    if (!stop) {
        report(chosen, stop.status(), kFailure);
        return kFailure;
    }
    nlohmann::json partial;
    Console console{stdout, stderr, &*stop, &partial};
    const Status status = guarded([&] {
        auto ended = chosen.run(console);
        return ended ? flushOutput(stdout) : ended;
    });
    if (status) return 0;
    report(chosen, status, kFailure, partial);
    return kFailure;
}

}  // namespace

}  // namespace troupe::apps

int main(int argc, char** argv) {
    troupe::apps::openStandardDescriptors();
    try {
        return troupe::apps::run(argc, argv);
    } catch (const std::exception& error) {
        // While reading the arguments or reporting; a command's own are answered by guarded.
        troupe::apps::say(stderr, "troupe: {}\n", error.what());
        return 1;
    }
}
