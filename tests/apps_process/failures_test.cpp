#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/unique_fd.h"
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
    expectUsageError({"bench", "a:1", "--threads", "1,257"}, "--threads");
    for (const char* list : {"1,", ",1", "1,,2", ","})
        for (const char* option : {"--block_size", "--batch_size", "--threads"})
            expectUsageError({"bench", "a:1", option, list}, "has no value before or after a comma");
    expectUsageError({"bench", "a:1", "--batch_size", "1,x"}, "'x' is not a whole number from 1 to 65536");
    expectUsageError({"verify", "a:1", "--seed", "-1"}, "'-1' is not a whole number");
    expectUsageError({"sim", "--first", "-1"}, "'-1' is not a whole number");
    for (const char* option : {"--seed", "--first", "--trace"})
        expectUsageError({"sim", option, "18446744073709551616"}, "is not a whole number from 0 to");
    expectUsageError({"bench", "a:1", "--operation", "erase"}, "erase");
    expectUsageError({"bench", "a:1", "--transport", "carrier-pigeon"}, "carrier-pigeon");
    for (const char* command : {"serve", "bench", "verify"}) {
        expectUsageError({command, "--port", "70000"}, "Value 70000 not in range 0 to 65535");
        expectUsageError({command, "--port", "-1"}, "Value -1 not in range 0 to 65535");
    }
    expectUsageError({"serve", "--size"}, "--size");
    expectUsageError({"verify"}, "target is required");
    expectUsageError({"verify", "a:1", "--seconds", "nan"}, "nan");
    expectUsageError({"verify", "a:1", "--seconds", "5parsecs"}, "5parsecs");
    expectUsageError({"verify", "a:1", "--seconds", "1.5s"}, "1500ms for 1.5s");
    expectUsageError({"serve", "--size", "1.5GiB"}, "'1.5GiB' is not a size: a fraction with a unit is not accepted");
    expectUsageError({"serve", "--size", "1.5GiB"}, "1536MiB for 1.5GiB");
    expectUsageError({"serve", "--set", "spin=1.5ms"}, "'1.5ms' is not a time: a fraction with a unit is not accepted");
    expectUsageError({"replay", "trace"}, "--target is required");
    expectUsageError({"bench", "a:1", "--sweep", "--block_size", "4KiB"}, "excludes");
    expectUsageError({"bench", "a:1", "--sweep", "--batch_size", "4"}, "excludes");
    expectUsageError({"replay", "t", "--target", "a:1", "--speedup", "2", "--as-fast-as-possible"}, "excludes");
}

TEST(Failures, AMistypedOptionIsToldTheNearestRightOne) {
    expectUsageError({"bench", "a:1", "--blok_size", "4KiB"}, "did you mean '--block_size'?");
    expectUsageError({"bench", "a:1", "--blok_size", "4KiB"}, "try: troupe bench --help");
    // Whatever else is missing because of it.
    expectUsageError({"replay", "t", "--taget", "a:1"}, "did you mean '--target'?");
    expectUsageError({"serve", "--siez=4KiB"}, "did you mean '--size'?");
    expectUsageError({"bench", "a:1", "--batch", "4"}, "did you mean '--batch_size'?");
    expectUsageError({"verify", "a", "--metadata", "127.0.0.1:6379"}, "did you mean redis://127.0.0.1:6379?");
    expectUsageError({"demo", "--verify_secnds", "1"}, "did you mean '--verify-seconds'?");
    expectUsageError({"-v", "topo"}, "troupe topo -v");
}

TEST(Failures, AWrongWordIsAnErrorInJsonToo) {
    struct Case {
        std::vector<std::string> arguments;
        const char* message;
        const char* remedy;
    };
    const Case cases[] = {
        {{"frobnicate", "--json"}, "unknown command 'frobnicate'", "troupe --help"},
        {{"bench", "a:1", "--json", "--blok_size", "4KiB"}, "did you mean '--block_size'?", "troupe bench --help"},
        {{"bench", "a:1", "--block_size", "4KiQ", "--json"}, "4KiQ", "troupe bench --help"},
        {{"bench", "a:1", "--threads", "0", "--json"}, "--threads", "troupe bench --help"},
        {{"verify", "--json"}, "target is required", "troupe verify --help"},
        {{"bench", "a:1", "--sweep", "--block_size", "4KiB", "--json"}, "excludes", "troupe bench --help"},
        {{"serve", "--json", "--size"}, "--size", "troupe serve --help"},
        {{"--json", "topo"}, "troupe topo --json", "troupe --help"},
    };
    for (const Case& each : cases) {
        const auto outcome = runTroupe(each.arguments);
        EXPECT_EQ(outcome.code, 2) << testing::PrintToString(each.arguments);
        EXPECT_THAT(outcome.err, HasSubstr(each.message));
        const auto answer = outcome.json();
        ASSERT_TRUE(answer.is_object()) << outcome.out;
        EXPECT_EQ(answer["ok"], false);
        EXPECT_EQ(answer["error"]["code"], "InvalidArgument");
        EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr(each.message));
        EXPECT_EQ(answer["error"]["try"], each.remedy);
    }
    // What follows -- is no option, and --help no error.
    EXPECT_EQ(runTroupe({"frobnicate", "--", "--json"}).out, "");
    EXPECT_THAT(runTroupe({"bench", "--json", "--help"}).out, HasSubstr("--block_size"));
}

TEST(Failures, AListBeforeTheTargetLeavesItAlone) {
    for (const std::vector<std::string>& option : std::vector<std::vector<std::string>>{
             {"--set", "tcp.lanes=2"}, {"--block_size", "4KiB,64KiB"}, {"--batch_size", "1,2"}, {"--threads", "1,2"}}) {
        std::vector<std::string> arguments = {"bench", option[0], option[1], "127.0.0.1:1"};
        expectFailure(arguments, "cannot open segment '127.0.0.1:1'");
        arguments.insert(arguments.end(), option.begin(), option.end());
        expectFailure(arguments, "cannot open segment '127.0.0.1:1'");
    }
}

TEST(Failures, ANameThatCannotBeIsSaidBeforeAnythingStarts) {
    expectUsageError({"serve", "--name", "127.0.0.1", "--host", "127.0.0.1"}, "give one of them");
    expectUsageError({"serve", "--name", "rack1/node7", "--host", "lo"}, "docs/redis.md");
    expectUsageError({"serve", "--name", "127.0.0.1:4000", "--port", "4001"}, "leave one out");
    expectUsageError({"serve", "--name", "rack1/node7"}, "no address");
    expectUsageError({"serve", "--name", "lo"}, "'lo' is an interface");
    expectUsageError({"serve", "--name", "lo"}, "(--host lo)");
    expectUsageError({"serve", "--host", "nosuch0"}, "neither an address");
    expectUsageError({"serve", "--host", "0.0.0.0"}, "--host 0.0.0.0");
    // Of the documentation's own block (RFC 5737): no machine has it.
    expectUsageError({"verify", "127.0.0.1:1", "--host", "192.0.2.1"}, "no address of this machine");
}

TEST(Failures, OptionsThatContradictEachOtherSayWhatToDo) {
    expectUsageError({"bench"}, "give a target");
    expectUsageError({"bench"}, "try: troupe bench --help");
    expectUsageError({"bench", "a:1", "--local"}, "not both");
    expectUsageError({"serve", "--engine-memory", "--regions", "4"}, "--regions");
    expectUsageError({"bench", "a:1", "--transport", "null", "--verify"}, "leave --verify out");
    expectUsageError({"bench", "--local", "--duration", "0"}, "--duration");
    expectUsageError({"bench", "a:1", "--footprint", "1MiB", "--block_size", "1MiB"}, "--footprint");
    expectUsageError({"bench", "--local", "--block_size", "1000000TiB"}, "larger than any memory");
    expectUsageError({"verify", "a:1", "--max-size", "8B"}, "--max-size");
    expectUsageError({"trace-gen", "-o", "/nonexistent/trace.jsonl"}, "/nonexistent");
    expectUsageError({"trace-gen", "-o", "/tmp"}, "is a directory");
    expectUsageError({"replay", "t", "--target", "a:1", "--bytes-per-token", "0"}, "--bytes-per-token");
    expectUsageError({"replay", "t", "--target", "a:1", "--staging", "1KiB"}, "--staging");
}

TEST(Failures, MemoryThatNobodyCouldReachIsNotServed) {
    expectUsageError({"serve", "--transport", "null"}, "moves nothing");
    expectUsageError({"bench", "--local", "--transport", "tcp"}, "same-process path");
    expectUsageError({"bench", "--local", "--transport", "rdma"}, "same-process path");
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
    expectUsageError({"config", "--config", "/nonexistent.json"}, "try: is the path right?");
    expectUsageError({"serve", "--metadata", "carrier://pigeon"}, "p2p");
    expectUsageError({"serve", "--set", "tcp.lane=2"}, "tcp.lanes");
    expectUsageError({"demo", "--set", "tcp.lane=2"}, "tcp.lanes");
}

TEST(Failures, SettingsThatHinderEachOtherAreBadUsage) {
    expectUsageError({"serve", "--set", "peer.tcp_bytes=1MiB"},
                     "settings: peer.tcp_bytes 1MiB is less than tcp.window_bytes 8MiB");
    expectUsageError({"config", "--set", "keepalive_interval=1min"}, "keepalive_timeout 3s is not more than");
    expectUsageError({"config", "--set", "keepalive_interval=1min"}, "try: `troupe config` lists");
    expectUsageError({"verify", "a:1", "--set", "tcp.socket_buffer=4KiB"}, "'4KiB' is not in 0, ");
    expectUsageError({"serve", "--set", "rdma.per_device=mlx5_0 mtu=1"}, "'mtu=1' is not in 256..4096");
    // Of a machine with any number of cores.
    expectUsageError({"serve", "--set", "tcp.port=65535", "--set", "data_loops=2"}, "tcp.port 65535: 2 data loops");
    expectUsageError({"serve", "--set", "tcp.port=65535", "--set", "data_loops=1", "--threads", "3"},
                     "take tcp.port 65533 or less");
}

TEST(Failures, AFileThatASettingNamesIsLookedAtBeforeAnythingStarts) {
    const std::string folder = testing::TempDir() + "troupe_files_" + std::to_string(::getpid());
    std::filesystem::create_directories(folder);
    const std::string empty = folder + "/empty";
    const std::string large = folder + "/large";
    std::ofstream(empty) << "";
    std::ofstream(large) << std::string(3u << 20, 'x');
    for (const auto& file : {empty, large})
        std::filesystem::permissions(file, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    const std::vector<std::string> redis = {"--metadata", "redis://127.0.0.1:1"};
    const struct {
        const char* setting;
        const char* remedy;
        std::vector<std::string> more;
    } settings[] = {
        {"auth.key_file", "openssl rand", {}},
        {"auth.accept_key_file", "openssl rand", {}},
        {"topology.matrix", "troupe topo --json", {}},
        {"redis.password_file", "TROUPE_REDIS_PASSWORD", redis},
    };
    for (const auto& each : settings) {
        SCOPED_TRACE(each.setting);
        for (const std::string& file : {folder + "/missing", folder, empty, large}) {
            std::vector<std::string> arguments = {"verify", each.more.empty() ? "127.0.0.1:1" : "name", "--json",
                                                  "--set", std::string(each.setting) + "=" + file};
            arguments.insert(arguments.end(), each.more.begin(), each.more.end());
            const auto outcome = runTroupe(arguments);
            EXPECT_EQ(outcome.code, 2) << file;
            EXPECT_THAT(outcome.err, AllOf(HasSubstr(each.setting), HasSubstr("'" + file + "'")));
            const auto error = outcome.json()["error"];
            EXPECT_EQ(error["code"], "InvalidArgument") << outcome.out;
            ASSERT_TRUE(error["try"].is_string()) << outcome.err;
            EXPECT_THAT(error["try"].get<std::string>(), HasSubstr(each.remedy));
        }
    }
    for (const std::string& file : {folder + "/missing", folder, empty, large}) {
        expectUsageError({"config", "--config", file}, file);
        expectUsageError({"config", "--config", file}, "--config takes");
    }
    // So say the other commands that use them.
    expectUsageError({"demo", "--set", "auth.key_file=" + empty}, "auth.key_file");
    expectUsageError({"segments", "--metadata", "redis://127.0.0.1:1", "--set", "auth.key_file=" + empty},
                     "auth.key_file");
    expectUsageError({"segments", "--metadata", "redis://127.0.0.1:1", "--set", "redis.password_file=" + empty},
                     "password_file");
    std::filesystem::remove_all(folder);
}

TEST(Failures, ATargetWithoutAPortIsSaidBeforeAnythingStarts) {
    expectUsageError({"verify", "127.0.0.1"}, "has no port");
    expectUsageError({"bench", "127.0.0.1"}, "has no port");
    expectUsageError({"verify", "[::1]"}, "has no port");
    expectUsageError({"replay", "t", "--target", "127.0.0.1:0"}, "has port 0");
    expectUsageError({"verify", "[::1]:0"}, "has port 0");
    expectUsageError({"verify", "127.0.0.1:99999"}, "99999");
    expectUsageError({"verify", "::1:38259"}, "write [::1]:38259");
    expectUsageError({"verify", "::1"}, "write [::1]:PORT");
    expectUsageError({"bench", "http://x"}, "is a URI; give host:port");
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
    expectUsageError({"demo", "--size", "63MiB"}, "give at least 64");
    expectUsageError({"verify", "a:1", "--max-size", "0"}, "size of 0");
    expectUsageError({"serve", "--size", "2", "--regions", "3"}, "3 regions");
}

TEST(Failures, NobodyAtTheTargetIsSaidWithTheRemedy) {
    // Port 1 is the tcpmux port, which nobody has served for decades.
    const auto outcome = runTroupe({"verify", "127.0.0.1:1", "--seconds", "1", "--json"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("troupe serve")));
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("peer 127.0.0.1:1: connect: "), testing::Not(HasSubstr("connect to"))));
    EXPECT_EQ(outcome.json()["ok"], false);
    EXPECT_EQ(outcome.json()["error"]["code"], "ConnectionRefused");
}

TEST(Failures, WhatToTryIsOfTheErrorAndNullWhereNothingIs) {
    expectUsageError({"config", "--set", "tcp.lanes=0"}, "try: `troupe config` lists");
    const auto memory = runTroupe({"serve", "--size", "1000TiB", "--json"});
    EXPECT_THAT(memory.json()["error"]["try"].get<std::string>(), HasSubstr("--size"));
    Server server("16MiB");
    const auto footprint = runTroupe({"bench", server.segment(), "--footprint", "1GiB", "--json"});
    EXPECT_EQ(footprint.code, 1);
    EXPECT_THAT(footprint.json()["error"]["try"].get<std::string>(), HasSubstr("--footprint"));
    const auto config = runTroupe({"sim", "--config", "/nonexistent.json", "--json"});
    EXPECT_NE(config.json()["error"]["try"].get<std::string>(), "") << config.out;
}

TEST(Failures, ADeadlineSaysWhichHowFarAndWhatToRaise) {
    Server server("64MiB");
    // Stopped, it answers nothing; the engine's own ways to find that out are slower here.
    TroupeProcess bench({"bench", server.segment(), "--transport", "tcp", "--duration", "60", "--operation", "write",
                         "--json", "--set", "transfer_timeout=700ms", "--set", "keepalive_timeout=60s"});
    while (bench.errors().find("bench") == std::string::npos)
        ASSERT_EQ(bench.child().wait(std::chrono::milliseconds(50)).status().code(), Code::Timeout) << bench.errors();
    server.process().child().signal(SIGSTOP);
    const auto outcome = finish(bench);
    server.process().child().signal(SIGCONT);
    EXPECT_EQ(outcome.code, 1);
    const auto error = outcome.json()["error"];
    EXPECT_EQ(error["code"], "Timeout") << outcome.err;
    EXPECT_THAT(error["message"].get<std::string>(),
                AllOf(HasSubstr("the deadline passed (transfer_timeout, 700ms)"), HasSubstr(" of 1 MiB had moved"),
                      HasSubstr("of 16: "), HasSubstr("segment '" + server.segment() + "'")));
    EXPECT_THAT(error["try"].get<std::string>(), HasSubstr("raise transfer_timeout"));
}

TEST(Failures, WhatWasMeasuredBeforeAFailureIsKept) {
    // The second row of a hundred at the earliest is under way when the server ends.
    const auto killedAfterARow = [&](bool json) {
        Server victim("64MiB");
        std::vector<std::string> words = {"bench", victim.segment(), "--duration", "100ms", "--warmup",
                                          "0",     "--footprint",    "4MiB"};
        std::string sizes = "4KiB";
        for (int i = 0; i < 99; ++i) sizes += ",4KiB";
        words.insert(words.end(), {"--block_size", sizes});
        if (json) words.emplace_back("--json");
        TroupeProcess bench(words);
        if (json) {
            while (bench.errors().find("bench") == std::string::npos)
                EXPECT_EQ(bench.child().wait(std::chrono::milliseconds(50)).status().code(), Code::Timeout);
        } else {
            EXPECT_TRUE(bench.child().readLine(kPatience)) << "the head";
            EXPECT_TRUE(bench.child().readLine(kPatience)) << "a row, while others are to come";
        }
        victim.process().child().signal(SIGKILL);
        return finish(bench);
    };
    EXPECT_EQ(killedAfterARow(false).code, 1);
    const auto outcome = killedAfterARow(true);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.json()["ok"], false);
    EXPECT_GE(outcome.json()["rows"].size(), 1u) << outcome.out;
}

TEST(Failures, ATargetTooSmallForTheWorkIsSaid) {
    Server server("4KiB");
    expectFailure({"bench", server.segment()}, "serve more");
    expectFailure({"bench", server.segment()}, "try: a smaller --block_size");
    expectFailure({"verify", server.segment(), "--inflight", "100"}, "serve more");
    expectFailure({"replay", TROUPE_SMALL_TRACE, "--target", server.segment()}, "serve more");
}

TEST(Failures, AHostileTraceIsRefusedWithItsLine) {
    const std::string path = testing::TempDir() + "troupe_hostile_" + std::to_string(::getpid());
    std::ofstream(path) << R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": [1]})"
                        << "\n"
                        << R"({"timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": [-1]})"
                        << "\n";
    // Before anything starts, as of a file that is missing.
    expectUsageError({"replay", path, "--target", "127.0.0.1:1"}, "line 2: 'hash_ids[0]'");
    expectUsageError({"replay", path, "--target", "127.0.0.1:1"}, "troupe trace-gen");
    expectUsageError({"demo", "--trace", path}, "line 2: 'hash_ids[0]'");
    ::unlink(path.c_str());
}

TEST(Failures, ADirectoryInPlaceOfATraceIsAnErrorInJsonToo) {
    const auto outcome = runTroupe({"replay", "/tmp", "--target", "127.0.0.1:1", "--json"});
    EXPECT_EQ(outcome.code, 2);
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

TEST(Failures, AStandardErrorThatTakesNothingEndsNoCommand) {
    Server server("16MiB");
    const auto expectCode = [&](const char* words, const char* redirection, int expected) {
        std::string line = TROUPE_PROGRAM;
        line.append(" ").append(words).append(" ").append(redirection);
        if (const auto at = line.find("TARGET"); at != std::string::npos) line.replace(at, 6, server.segment());
        const int code = std::system(line.c_str());
        EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == expected) << line << " ended with " << code;
    };
    // Long enough that it shows its progress.
    expectCode("verify TARGET --seconds 1500ms", ">/dev/null 2>/dev/full", 0);
    const char* bench = "bench TARGET --duration 50ms --warmup 0 --footprint 4MiB";
    expectCode(bench, ">/dev/null 2>&-", 0);
    expectCode(bench, ">/dev/null 0<&- 2>&-", 0);
    expectCode("verify 127.0.0.1:1", "2>/dev/full", 1);
    expectCode("topo", ">/dev/full 2>&1", 1);
    expectCode("topo", ">&- 2>&-", 1);
    expectCode("frob", "2>/dev/full", 2);
    expectCode("frob", "2>&-", 2);
    expectCode("bench a:1 --blok_size 1", "2>/dev/full", 2);
    expectCode("", "2>/dev/full", 2);
}

TEST(Failures, NoSocketTakesThePlaceOfAClosedDescriptor) {
    auto child =
        ChildProcess::start({"/bin/sh", "-c", "exec \"$0\" serve --size 1MiB --json 0<&- 2>&-", TROUPE_PROGRAM});
    ASSERT_TRUE(child) << child.status().toString();
    const auto line = child->readLine(kPatience);
    ASSERT_TRUE(line) << line.status().toString();
    for (const char* fd : {"0", "2"}) {
        std::error_code error;
        const auto where = std::filesystem::read_symlink("/proc/" + std::to_string(child->pid()) + "/fd/" + fd, error);
        EXPECT_EQ(where.string(), "/dev/null") << "descriptor " << fd << ", " << error.message();
    }
    child->signal(SIGTERM);
    EXPECT_EQ(*child->wait(kPatience), 0);
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

TEST(Failures, MoreMemoryThanThereIsIsRefusedWithWhatCanBeHad) {
    // More than the address space, so that no machine tries.
    expectFailure({"serve", "--size", "1000TiB"}, "can be had");
    expectFailure({"serve", "--size", "1000TiB", "--engine-memory"}, "can be had");
    expectFailure({"serve", "--size", "1000TiB"}, "there is no memory for 1000 TiB");
}

TEST(Failures, APortThatIsTakenSaysHowToGoOn) {
    Server server("1MiB");
    const std::string port = server.segment().substr(server.segment().rfind(':') + 1);
    expectFailure({"serve", "--size", "1MiB", "--port", port}, "leave --port out");
}

TEST(Failures, ADemoWhoseServerCannotStartFails) {
    // More than the address space, so that no machine tries.
    const auto outcome = runTroupe({"demo", "--size", "1000TiB"});
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("did not start"));
}

TEST(Failures, ADemoWithoutItsTraceSaysWhatToDo) {
    expectUsageError({"demo", "--trace", "/nonexistent.jsonl"}, "/nonexistent.jsonl");
    expectUsageError({"replay", "/nonexistent.jsonl", "--target", "127.0.0.1:1"}, "/nonexistent.jsonl");
}

TEST(Failures, AStoreThatIsAwayIsToldApartFromAPeerThatIs) {
    const auto away = runTroupe({"serve", "--metadata", "redis://127.0.0.1:1", "--name", "a", "--json"});
    EXPECT_EQ(away.code, 1);
    EXPECT_THAT(away.json()["error"]["try"].get<std::string>(), HasSubstr("is Redis up"));
    EXPECT_THAT(away.err, testing::Not(HasSubstr("troupe serve` running there")));
    // A client of a store needs no name of its own.
    expectFailure({"verify", "a", "--metadata", "redis://127.0.0.1:1"}, "segment 'verify-");
    expectUsageError({"serve", "--metadata", "redis://127.0.0.1:1"}, "needs a --name");
    expectFailure({"verify", "a", "--metadata", "redis+unix:///nonexistent/r.sock"},
                  "redis-cli -s /nonexistent/r.sock");
}

TEST(Failures, RdmaWithoutADeviceSaysHowToGoOn) {
    // A machine with such a device serves instead, and ends with its input.
    TroupeProcess server({"serve", "--transport", "rdma", "--size", "1MiB", "--json", "--until-eof"});
    server.child().closeInput();
    const auto outcome = finish(server);
    if (outcome.code == 0) GTEST_SKIP() << "this machine has an RDMA device";
    EXPECT_EQ(outcome.code, 1);
    EXPECT_EQ(outcome.json()["error"]["code"], "TransportMissing") << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("cannot install transport 'rdma': no "));
    EXPECT_THAT(outcome.err, HasSubstr("leave --transport out"));
}

TEST(Failures, APortOfSomebodyElseIsAskedForATroupeEngine) {
    // A server that closes what it is sent, as many do that read something else than their protocol.
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::listen(listener.get(), 4), 0);
    sockaddr_in address{};
    socklen_t length = sizeof address;
    ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
    std::atomic<bool> stop{false};
    std::thread server([&] {
        while (!stop) {
            pollfd entry{listener.get(), POLLIN, 0};
            if (::poll(&entry, 1, 50) > 0) UniqueFd(::accept(listener.get(), nullptr, nullptr)).reset();
        }
    });
    const auto outcome = runTroupe({"verify", "127.0.0.1:" + std::to_string(ntohs(address.sin_port))});
    stop = true;
    server.join();
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.err, HasSubstr("is it a Troupe engine that listens there?"));
    EXPECT_THAT(outcome.err, HasSubstr("control port"));
}

TEST(Failures, APeerThatEndsInOrderIsNotAWrongName) {
    for (const char* transport : {"host", "tcp"}) {
        Server server("64MiB");
        TroupeProcess verify({"verify", server.segment(), "--transport", transport});
        // Its first progress line shows that it runs.
        while (verify.errors().find("operations") == std::string::npos)
            ASSERT_EQ(verify.child().wait(std::chrono::milliseconds(20)).status().code(), Code::Timeout)
                << verify.errors();
        server.process().child().signal(SIGTERM);
        const auto outcome = finish(verify);
        EXPECT_EQ(outcome.code, 1);
        EXPECT_THAT(outcome.err, HasSubstr("try: the peer ended"));
        EXPECT_THAT(outcome.err, testing::Not(HasSubstr("is the name right")));
    }
}

TEST(Benchmark, ASettingLeavesTheNamesOfTheRowsAlone) {
    const auto run = [](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), TROUPE_BENCH);
        auto child = ChildProcess::start(arguments);
        EXPECT_TRUE(child);
        const auto out = child->readAll(kPatience);
        return std::make_pair(*child->wait(kPatience), out ? *out : "");
    };
    const auto [code, rows] = run({"--list", "--set", "tcp.lanes=2", "engine.latency", "--set", "spin=0"});
    EXPECT_EQ(code, 0);
    EXPECT_THAT(rows, testing::StartsWith("engine.latency"));
    EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 1) << rows;
    EXPECT_EQ(run({"--list", "--set", "tcp.lane=2"}).first, 2);
    EXPECT_EQ(run({"--frobnicate"}).first, 2);
    EXPECT_EQ(run({"no.such.row"}).first, 2);
}

TEST(Benchmark, RowsThatCannotBeKeptAreRefusedBeforeAnythingIsMeasured) {
    const std::string base = testing::TempDir() + "troupe_rows_" + std::to_string(::getpid());
    const std::string out = base + ".out.json";
    const auto keeping = [&](const std::string& file) {
        auto child = ChildProcess::start({TROUPE_BENCH, "--quick", "engine.latency", "--out", out, "--keep", file});
        EXPECT_TRUE(child);
        EXPECT_TRUE(child->readAll(kPatience));
        return *child->wait(kPatience);
    };
    EXPECT_EQ(keeping(base + ".none.json"), 2);
    const std::string kept = base + ".json";
    std::ofstream(kept) << R"([{"value": 1}])";
    EXPECT_EQ(keeping(kept), 2);
    EXPECT_FALSE(std::filesystem::exists(out));
    std::ofstream(kept)
        << R"([{"name": "another.row", "value": 1}, {"name": "engine.latency.wait.p50", "value": "replaced"}])";
    EXPECT_EQ(keeping(kept), 0);
    std::ifstream file(out);
    const auto rows = nlohmann::json::parse(file, nullptr, false);
    ASSERT_TRUE(rows.is_array() && !rows.empty());
    EXPECT_EQ(rows[0]["name"], "another.row");
    EXPECT_EQ(rows.dump().find("replaced"), std::string::npos) << rows;
    std::filesystem::remove(kept);
    std::filesystem::remove(out);
}

/// A file of rows that is gone at the end.
class RowsFile {
  public:
    RowsFile() { std::ofstream(path_) << R"([{"name": "another.row", "value": 1}])"; }
    ~RowsFile() { std::filesystem::remove(path_); }
    RowsFile(const RowsFile&) = delete;
    RowsFile& operator=(const RowsFile&) = delete;

    const std::string& path() const { return path_; }
    std::string text() const {
        std::ifstream file(path_);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }

  private:
    const std::string path_ = testing::TempDir() + "troupe_rows_there_" + std::to_string(::getpid()) + ".json";
};

TEST(Benchmark, RowsOfOtherNamesStayInItsFile) {
    const RowsFile rows;
    auto child = ChildProcess::start({TROUPE_BENCH, "--quick", "engine.latency", "--out", rows.path()});
    ASSERT_TRUE(child);
    const auto out = child->readAll(kPatience);
    EXPECT_EQ(*child->wait(kPatience), 0);
    EXPECT_THAT(rows.text(), testing::AllOf(HasSubstr("another.row"), HasSubstr("engine.latency")));
    EXPECT_THAT(*out, testing::EndsWith("written to " + rows.path() + "\n"));
}

TEST(Benchmark, AFileThatCannotBeWrittenIsRefusedBeforeAnythingIsMeasured) {
    const RowsFile rows;
    const std::string nothing = rows.path() + ".txt";
    std::ofstream(nothing) << "what somebody else wrote";
    for (const std::string& out : {testing::TempDir(), rows.path() + "/below/a/file.json", nothing}) {
        auto child = ChildProcess::start({TROUPE_BENCH, "--quick", "engine.latency", "--out", out});
        ASSERT_TRUE(child);
        const auto said = child->readAll(kPatience);
        EXPECT_EQ(*child->wait(kPatience), 2) << out;
        EXPECT_EQ(*said, "") << out;
    }
    std::filesystem::remove(nothing);
}

TEST(Benchmark, ASignalEndsItBetweenTwoMeasurementsAndWhatThereIsIsWritten) {
    const RowsFile rows;
    auto child = ChildProcess::start(
        {TROUPE_BENCH, "--repeat", "1000", "--seconds", "0.05", "engine.latency", "--out", rows.path()});
    ASSERT_TRUE(child);
    // The head of the table: it has begun.
    ASSERT_TRUE(child->readLine(kPatience));
    child->signal(SIGTERM);
    const auto out = child->readAll(kPatience);
    EXPECT_EQ(*child->wait(kPatience), 0);
    EXPECT_THAT(*out, HasSubstr("stopped by a signal"));
    EXPECT_THAT(rows.text(), HasSubstr("another.row"));
}

}  // namespace
}  // namespace troupe::apps
