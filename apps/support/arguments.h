#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace troupe::apps {

/// `app.add_subcommand`, in one place: making an App where it is used would compile most of CLI11 into every command.
CLI::App* addCommand(CLI::App& app, const std::string& name, const std::string& description);

/// The message of a `text` that did not parse as a size or a time; if it has a fraction, that alone is what it says.
std::string explainFraction(const std::string& message, const std::string& text);

/// Options whose values carry units. A value that does not parse is reported like any other bad argument. The
/// variable must outlive the parse; its value at this call is shown as the default.

/// "4096", "64KiB", "1GiB"; never 0.
CLI::Option* addBytes(CLI::App& app, const std::string& name, std::uint64_t& bytes, const std::string& description);
/// Lists take their values after commas, each of which must have one on both sides; what follows a space is no value.

/// "4KiB,64KiB,1MiB"; none may be 0.
CLI::Option* addBytesList(CLI::App& app, const std::string& name, std::vector<std::uint64_t>& bytes,
                          const std::string& description);
/// "1,4", each of `low` to `high`.
CLI::Option* addNumbersList(CLI::App& app, const std::string& name, std::vector<std::uint32_t>& numbers,
                            std::uint32_t low, std::uint32_t high, const std::string& description);
/// --seed, any number of 64 bits.
CLI::Option* addSeed(CLI::App& app, std::uint64_t& seed, const std::string& description);
/// For an option of 64 bits that takes every number: -1, and what does not fit, would be read as the largest of them.
CLI::Validator wholeNumber();
/// Seconds as a bare number ("5", "0.5"), or with a unit ("500ms", "2s", "5m").
/// More than 0, or 0 too.
enum class Zero { Refused, Allowed };
CLI::Option* addSeconds(CLI::App& app, const std::string& name, double& seconds, const std::string& description,
                        Zero zero = Zero::Refused);

}  // namespace troupe::apps
