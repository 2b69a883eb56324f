#include "apps/support/usage.h"

#include <algorithm>

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

}  // namespace

std::string unknownOption(const CLI::App& app, const std::vector<std::string>& arguments) {
    if (arguments.empty()) return {};
    const std::string& first = arguments.front();
    const bool early = first.rfind('-', 0) == 0;
    const CLI::App* command = early ? &app : commandNamed(app, first);
    if (command == nullptr) return {};
    const std::string who = early ? "troupe" : "troupe " + first;
    const std::vector<std::string> known = longNames(*command);
    for (std::size_t i = early ? 0 : 1; i < arguments.size() && arguments[i] != "--"; ++i) {
        const std::string name = longNameOf(arguments[i]);
        if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) continue;
        const std::string shown = name.substr(0, kMaxName);
        std::string text = who + ": unknown option '--" + shown + "'";
        const auto later = std::find_if(arguments.begin(), arguments.end(),
                                        [&](const auto& each) { return commandNamed(app, each) != nullptr; });
        if (early && later != arguments.end())
            return text + "; options stand behind the command: troupe " + *later + " --" + shown;
        const std::string nearest = nearestName(shown, known);
        return nearest.empty() ? text : text + "; did you mean '--" + nearest + "'?";
    }
    return {};
}

}  // namespace troupe::apps
