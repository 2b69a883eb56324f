#include "apps/support/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <sstream>

namespace troupe::apps {
namespace {

class Usage : public testing::Test {
  protected:
    Usage() {
        auto* bench = app_.add_subcommand("bench");
        bench->add_option("target", target_);
        bench->add_option("--block_size,--block-size", size_);
        bench->add_flag("--json", json_);
        auto* serve = app_.add_subcommand("serve");
        serve->add_option("--set", size_);
        serve->add_flag("-v,--verbose", json_);
        serve->add_option("--size", size_);
    }
    std::string of(const std::vector<std::string>& arguments) {
        const auto unknown = unknownOption(app_, arguments);
        return unknown ? unknown->who + ": " + unknown->what : "";
    }

    CLI::App app_{"", "troupe"};
    std::string target_, size_;
    bool json_ = false;
};

TEST_F(Usage, AMistypedOptionIsNamedWithTheNearestOfItsCommand) {
    EXPECT_EQ(of({"bench", "a:1", "--blok_size", "4"}),
              "troupe bench: unknown option '--blok_size'; did you mean '--block_size'?");
    EXPECT_EQ(of({"bench", "--block-sice=4", "a:1"}),
              "troupe bench: unknown option '--block-sice'; did you mean '--block-size'?");
    EXPECT_EQ(of({"serve", "--siz", "4"}), "troupe serve: unknown option '--siz'; did you mean '--size'?");
    // Two letters in the wrong order are one mistake, nearer than two replaced ones.
    EXPECT_EQ(of({"serve", "--siez", "4"}), "troupe serve: unknown option '--siez'; did you mean '--size'?");
    // The beginning of a name is that name, however much is missing.
    EXPECT_EQ(of({"bench", "--block", "4"}), "troupe bench: unknown option '--block'; did you mean '--block_size'?");
    EXPECT_EQ(of({"serve", "--carrier-pigeon"}), "troupe serve: unknown option '--carrier-pigeon'");
}

TEST_F(Usage, AnOptionBeforeItsCommandIsToldWhereItBelongs) {
    EXPECT_EQ(of({"--json", "bench", "a:1"}),
              "troupe: the option '--json' belongs to a command: give it after the command, troupe bench --json");
    EXPECT_EQ(of({"--json"}),
              "troupe: the option '--json' belongs to a command: give it after the command, troupe COMMAND --json");
    EXPECT_EQ(of({"-v", "serve"}),
              "troupe: the option '-v' belongs to a command: give it after the command, troupe serve -v");
    EXPECT_EQ(of({"-q", "serve"}), "") << "nobody's option";
    EXPECT_EQ(of({"--frobnicate"}), "troupe: unknown option '--frobnicate'");
    EXPECT_EQ(of({"--hepl"}), "troupe: unknown option '--hepl'; did you mean '--help'?");
}

TEST_F(Usage, WhatIsRightIsNotNamed) {
    EXPECT_EQ(of({}), "");
    EXPECT_EQ(of({"bench", "a:1", "--block_size", "x", "--json"}), "");
    EXPECT_EQ(of({"bench", "--help"}), "");
    EXPECT_EQ(of({"frobnicate", "--frobnicate"}), "") << "an unknown command is another matter";
    EXPECT_EQ(of({"bench", "--", "--target"}), "") << "what follows -- is no option";
}

TEST_F(Usage, ALongNameIsCut) { EXPECT_LT(of({"bench", "--" + std::string(100'000, 'x')}).size(), 200u); }

TEST(Help, NoLineIsWiderThanATerminalAndNoWordIsLost) {
    CLI::App app("", "troupe");
    app.formatter(std::make_shared<WrappedHelp>());
    std::string description;
    for (int i = 0; i < 100; ++i) description += "word" + std::to_string(i) + " ";
    bool flag = false;
    auto* command = app.add_subcommand("bench", description);
    command->add_flag("--flag", flag, description);
    command->add_flag("--one", flag, std::string(300, 'x'));
    for (const auto* each : std::vector<const CLI::App*>{&app, command}) {
        std::istringstream help(each->help());
        for (std::string line; std::getline(help, line);) {
            if (line.find("xxx") != std::string::npos) continue;
            EXPECT_LE(line.size(), WrappedHelp::kColumns) << line;
        }
        std::istringstream words(each->help());
        const std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
        for (int i = 0; i < 100; ++i)
            EXPECT_NE(std::find(all.begin(), all.end(), "word" + std::to_string(i)), all.end()) << i;
    }
    // What cannot be broken stays whole.
    EXPECT_NE(command->help().find(std::string(300, 'x')), std::string::npos);
}

}  // namespace
}  // namespace troupe::apps
