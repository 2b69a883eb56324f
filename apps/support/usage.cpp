#include "apps/support/usage.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/nearest_name.h"

namespace troupe::apps {

namespace {

// An argument may be long; the first bytes of its name tell enough.
constexpr std::size_t kMaxName = 64;

std::vector<std::string> longNames(const CLI::App& app) {
    std::vector<std::string> names;
    for (const auto* option : app.get_options())
        for (const auto& name : option->get_lnames()) names.push_back(name);
    return names;
}

const CLI::App* commandNamed(const CLI::App& app, const std::string& name) {
    const auto found = app.get_subcommands([&](const CLI::App* command) { return command->get_name() == name; });
    return found.empty() ? nullptr : found.front();
}

/// "blok_size" of "--blok_size=4KiB"; empty for what is no long option.
std::string longNameOf(const std::string& argument) {
    if (argument.rfind("--", 0) != 0 || argument.size() == 2) return {};
    return argument.substr(2, argument.find('=') - 2);
}

/// The option that was likely meant: one that begins so, else the nearest; empty for none.
std::string meantBy(const std::string& name, const std::vector<std::string>& known) {
    constexpr std::size_t kLeastBeginning = 3;
    if (name.size() >= kLeastBeginning)
        for (const auto& candidate : known)
            if (candidate.rfind(name, 0) == 0) return candidate;
    return nearestName(name, known);
}

/// Breaks a line at spaces; what follows the first stands where descriptions do, or under its begin.
std::string wrapped(const std::string& line, std::size_t description) {
    const std::size_t begin = line.find_first_not_of(' ');
    const std::size_t indent = begin == std::string::npos || begin == 0 ? 0 : description;
    std::string text;
    std::string rest = line;
    while (rest.size() > WrappedHelp::kColumns) {
        const std::size_t space = rest.rfind(' ', WrappedHelp::kColumns);
        if (space == std::string::npos || rest.find_first_not_of(' ') >= space) break;
        text += rest.substr(0, space) + "\n";
        rest = std::string(indent, ' ') + rest.substr(space + 1);
    }
    return text + rest;
}

std::vector<const CLI::App*> commandsOf(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App*) { return true; });
}

bool isLongOptionOfACommand(const CLI::App& app, const std::string& name) {
    const auto commands = commandsOf(app);
    return std::any_of(commands.begin(), commands.end(), [&](const CLI::App* command) {
        const auto names = longNames(*command);
        return std::find(names.begin(), names.end(), name) != names.end();
    });
}

/// "-v": not of `app` itself, but of one of its commands.
bool isShortOptionOf(const CLI::App& app, const std::string& argument) {
    if (argument.size() != 2 || argument[0] != '-' || argument[1] == '-') return false;
    const auto has = [&](const CLI::App& one) { return one.get_option_no_throw(argument) != nullptr; };
    const auto commands = commandsOf(app);
    return !has(app) &&
           std::any_of(commands.begin(), commands.end(), [&](const auto* command) { return has(*command); });
}

/// "troupe bench --json", with the command that was given, if any was.
std::string exampleFor(const CLI::App& app, const std::vector<std::string>& arguments, const std::string& option) {
    const auto command = std::find_if(arguments.begin(), arguments.end(),
                                      [&](const auto& each) { return commandNamed(app, each) != nullptr; });
    return "troupe " + (command == arguments.end() ? "COMMAND" : *command) + " " + option;
}

}  // namespace

std::optional<UnknownOption> unknownOption(const CLI::App& app, const std::vector<std::string>& arguments) {
    if (arguments.empty()) return std::nullopt;
    const std::string& first = arguments.front();
    const bool early = first.rfind('-', 0) == 0;
    const CLI::App* command = early ? &app : commandNamed(app, first);
    if (command == nullptr) return std::nullopt;
    const std::string who = early ? "troupe" : "troupe " + first;
    const std::vector<std::string> known = longNames(*command);
    const auto belongsToACommand = [&](const std::string& option) {
        return UnknownOption{who, "the option '" + option + "' belongs to a command: give it after the command, " +
                                      exampleFor(app, arguments, option)};
    };
    for (std::size_t i = early ? 0 : 1; i < arguments.size() && arguments[i] != "--"; ++i) {
        if (early && isShortOptionOf(app, arguments[i])) return belongsToACommand(arguments[i]);
        const std::string name = longNameOf(arguments[i]);
        if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) continue;
        const std::string shown = name.substr(0, kMaxName);
        if (early && isLongOptionOfACommand(app, name)) return belongsToACommand("--" + shown);
        const std::string nearest = meantBy(shown, known);
        return UnknownOption{
            who, "unknown option '--" + shown + "'" + (nearest.empty() ? "" : "; did you mean '--" + nearest + "'?")};
    }
    return std::nullopt;
}

std::string WrappedHelp::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
    std::istringstream help(CLI::Formatter::make_help(app, std::move(name), mode));
    std::string text;
    for (std::string line; std::getline(help, line);) text += wrapped(line, get_column_width()) + "\n";
    return text;
}

}  // namespace troupe::apps
