#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "tests/apps_process/troupe_process.h"

namespace troupe::apps {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

void expectUsageError(const std::vector<std::string>& arguments, const std::string& message) {
    const auto outcome = runTroupe(arguments);
    EXPECT_EQ(outcome.code, 2) << testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.out, "");
}

void expectFailure(const std::vector<std::string>& arguments, const std::string& message) {
    const auto outcome = runTroupe(arguments);
    EXPECT_EQ(outcome.code, 1) << testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_EQ(outcome.out, "");
}

TEST(Failures, BadFlagsAreNamedAndExitWithTwo) {
    expectUsageError({}, "which command");
    expectUsageError({"frobnicate"}, "unknown command 'frobnicate'");
    expectUsageError({"srve"}, "did you mean 'serve'?");
    expectUsageError({"help", "srve"}, "did you mean 'serve'?");
    expectUsageError({"bench", "a:1", "--blok_size", "4KiB"}, "--blok_size");
    expectUsageError({"bench", "a:1", "--block_size", "4KiQ"}, "4KiQ");
    expectUsageError({"bench", "a:1", "--block_size", "0"}, "size of 0");
    expectUsageError({"bench", "a:1", "--threads", "0"}, "--threads");
    expectUsageError({"bench", "a:1", "--operation", "erase"}, "erase");
    expectUsageError({"bench", "a:1", "--transport", "carrier-pigeon"}, "carrier-pigeon");
    expectUsageError({"serve", "--port", "70000"}, "70000");
    expectUsageError({"serve", "--size"}, "--size");
    expectUsageError({"verify"}, "target is required");
    expectUsageError({"verify", "a:1", "--seconds", "nan"}, "nan");
    expectUsageError({"verify", "a:1", "--seconds", "5parsecs"}, "5parsecs");
    expectUsageError({"verify", "a:1", "--seconds", "1.5s"}, "1500ms for 1.5s");
    expectUsageError({"serve", "--size", "1.5GiB"}, "1536MiB for 1.5GiB");
    expectUsageError({"replay", "trace"}, "--target is required");
    expectUsageError({"bench", "a:1", "--sweep", "--block_size", "4KiB"}, "excludes");
    expectUsageError({"bench", "a:1", "--sweep", "--batch_size", "4"}, "excludes");
    expectUsageError({"replay", "t", "--target", "a:1", "--speedup", "2", "--as-fast-as-possible"}, "excludes");
}

TEST(Failures, OptionsThatContradictEachOtherSayWhatToDo) {
    expectUsageError({"bench"}, "give a target");
    expectUsageError({"bench", "a:1", "--local"}, "not both");
    expectUsageError({"serve", "--engine-memory", "--regions", "4"}, "--regions");
    expectUsageError({"bench", "a:1", "--transport", "null", "--verify"}, "leave --verify out");
    expectUsageError({"bench", "--local", "--duration", "0"}, "--duration");
    expectUsageError({"replay", "t", "--target", "a:1", "--bytes-per-token", "0"}, "--bytes-per-token");
    expectUsageError({"replay", "t", "--target", "a:1", "--staging", "1KiB"}, "--staging");
}

TEST(Failures, MemoryThatNobodyCouldReachIsNotServed) {
    expectUsageError({"serve", "--transport", "null"}, "moves nothing");
    expectUsageError({"bench", "--local", "--transport", "tcp"}, "same-process path");
}

TEST(Failures, NothingIsComparedOverATransportThatMovesNothing) {
    expectUsageError({"verify", "127.0.0.1:1", "--transport", "null"}, "nothing to compare");
    expectUsageError({"replay", TROUPE_SMALL_TRACE, "--target", "127.0.0.1:1", "--transport", "null"},
                     "nothing to compare");
}

TEST(Failures, WrongSettingsAreNamedWithTheNearestRightOne) {
    expectUsageError({"config", "--set", "tcp.lane=2"}, "tcp.lanes");
    expectUsageError({"config", "--set", "tcp.lanes"}, "KEY=VALUE");
    expectUsageError({"config", "--set", "tcp.lanes=1000"}, "tcp.lanes");
    expectUsageError({"config", "--config", "/nonexistent.json"}, "/nonexistent.json");
    expectUsageError({"serve", "--metadata", "carrier://pigeon"}, "p2p");
    expectUsageError({"serve", "--set", "tcp.lane=2"}, "tcp.lanes");
    expectUsageError({"demo", "--set", "tcp.lane=2"}, "tcp.lanes");
}

TEST(Failures, ATargetWithoutAPortIsSaidBeforeAnythingStarts) {
    expectUsageError({"verify", "127.0.0.1"}, "has no port");
    expectUsageError({"bench", "127.0.0.1"}, "has no port");
    expectUsageError({"replay", "t", "--target", "127.0.0.1:0"}, "has no port");
    expectUsageError({"verify", "127.0.0.1:99999"}, "99999");
}

TEST(Failures, LimitsOfZeroAreRefusedWithTheRange) {
    expectUsageError({"verify", "a:1", "--seconds", "0"}, "not more than 0");
    expectUsageError({"verify", "a:1", "--rounds", "0"}, "--rounds");
    expectUsageError({"replay", "t", "--target", "a:1", "--requests", "0"}, "--requests");
    expectUsageError({"demo", "--verify-seconds", "0"}, "not more than 0");
}

TEST(Failures, SizesOfZeroAreRefused) {
    expectUsageError({"serve", "--size", "0"}, "size of 0");
    expectUsageError({"demo", "--size", "0"}, "size of 0");
    expectUsageError({"verify", "a:1", "--max-size", "0"}, "size of 0");
    expectUsageError({"serve", "--size", "2", "--regions", "3"}, "3 regions");
}

TEST(Failures, NobodyAtTheTargetIsSaidWithTheRemedy) {
    // Port 1 is the tcpmux port, which nobody has served for decades.
    const auto outcome = runTroupe({"verify", "127.0.0.1:1", "--seconds", "1", "--json"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("troupe serve")));
    EXPECT_EQ(outcome.json()["ok"], false);
    EXPECT_EQ(outcome.json()["error"]["code"], "ConnectionRefused");
}

TEST(Failures, ATargetTooSmallForTheWorkIsSaid) {
    Server server("4KiB");
    expectFailure({"bench", server.segment()}, "serve more");
    expectFailure({"verify", server.segment(), "--inflight", "100"}, "serve more");
    expectFailure({"replay", TROUPE_SMALL_TRACE, "--target", server.segment()}, "serve more");
}

TEST(Failures, AHostileTraceIsRefusedWithItsLine) {
    const std::string path = testing::TempDir() + "troupe_hostile_" + std::to_string(::getpid());
    std::ofstream(path) << R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1]})"
                        << "\n"
                        << R"({"timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": [-1]})"
                        << "\n";
    expectFailure({"replay", path, "--target", "127.0.0.1:1"}, "line 2: 'hash_ids[0]'");
    ::unlink(path.c_str());
}

TEST(Failures, ADirectoryInPlaceOfATraceIsAnErrorInJsonToo) {
    const auto outcome = runTroupe({"replay", "/tmp", "--target", "127.0.0.1:1", "--json"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("'/tmp' is a directory"));
    EXPECT_EQ(outcome.json()["error"]["code"], "InvalidArgument");
}

TEST(Failures, ResultsThatCannotBeWrittenAreNoSuccess) {
    const std::string errors = testing::TempDir() + "troupe_full_" + std::to_string(::getpid());
    for (const std::string arguments : {"config", "topo --json", "trace-gen", "serve --size 1MiB", "--help"}) {
        const std::string command = std::string(TROUPE_PROGRAM) + " " + arguments + " > /dev/full 2> " + errors;
        const int code = std::system(command.c_str());
        EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 1) << arguments << " ended with " << code;
        std::ifstream file(errors);
        std::ostringstream text;
        text << file.rdbuf();
        EXPECT_THAT(text.str(), HasSubstr("cannot write to standard output")) << arguments;
    }
    ::unlink(errors.c_str());
}

TEST(Failures, AServerKilledInMidVerifyEndsItWithAClearError) {
    Server server("64MiB");
    TroupeProcess verify({"verify", server.segment(), "--json"});
    while (verify.errors().find("operations") == std::string::npos)
        ASSERT_EQ(verify.child().wait(std::chrono::milliseconds(50)).status().code(), Code::Timeout) << verify.errors();
    server.process().child().signal(SIGKILL);
    const auto outcome = finish(verify);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, AllOf(AnyOf(HasSubstr("write of"), HasSubstr("read of")), HasSubstr(server.segment())));
    const std::string code = outcome.json()["error"]["code"];
    EXPECT_THAT(code, AnyOf("ConnectionLost", "ConnectionRefused", "PeerDown", "Timeout")) << outcome.err;
}

TEST(Failures, ADemoWhoseServerCannotStartFails) {
    // More than the address space, so that no machine tries.
    const auto outcome = runTroupe({"demo", "--size", "1000TiB"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("did not start"));
}

TEST(Failures, ADemoWithoutItsTraceSaysWhatToDo) {
    expectFailure({"demo", "--trace", "/nonexistent.jsonl", "--verify-seconds", "0.1", "--bench-seconds", "0.1"},
                  "/nonexistent.jsonl");
}

}  // namespace
}  // namespace troupe::apps
