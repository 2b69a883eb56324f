#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace troupe::apps {

/// For arguments that did not parse: when one of them is an option that the command has not, a line that names it and
/// the one that was likely meant, "troupe bench: unknown option '--blok_size'; did you mean '--block_size'?". Else
/// empty. So is an option of a command that stands before it. `arguments` in the order they were given, the command
/// first.
std::string unknownOption(const CLI::App& app, const std::vector<std::string>& arguments);

/// Help whose lines are no longer than a terminal is wide.
class WrappedHelp : public CLI::Formatter {
  public:
    static constexpr std::size_t kColumns = 120;

    std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace troupe::apps
