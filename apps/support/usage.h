#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace troupe::apps {

/// An option that is not known where it stands.
struct UnknownOption {
    std::string who;   ///< That does not know it: "troupe bench", or "troupe".
    std::string what;  ///< "unknown option '--blok_size'; did you mean '--block_size'?"
};

/// For arguments that did not parse: the first that is an option which the command has not, or one of a command that
/// stands before it; with what was likely meant. `arguments` in the order they were given, the command first.
std::optional<UnknownOption> unknownOption(const CLI::App& app, const std::vector<std::string>& arguments);

/// Help whose lines are no longer than a terminal is wide.
class WrappedHelp : public CLI::Formatter {
  public:
    static constexpr std::size_t kColumns = 120;

    std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace troupe::apps
