#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "tests/apps_process/troupe_process.h"
#include "tests/topology/sysfs_tree.h"

namespace troupe::apps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// An address by which other machines might reach this one; empty for none.
std::string ownAddress() {
    ifaddrs* all = nullptr;
    std::string found;
    if (::getifaddrs(&all) != 0) return found;
    for (const ifaddrs* each = all; each != nullptr && found.empty(); each = each->ifa_next) {
        const bool up = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
        if (!up || each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
        char text[INET_ADDRSTRLEN] = "";
        ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, text, sizeof text);
        found = text;
    }
    ::freeifaddrs(all);
    return found;
}

TEST(HelpCommand, IsTheHelpFlag) {
    for (const char* command : {"", "serve"}) {
        std::vector<std::string> words = {"help"};
        std::vector<std::string> flags = {"--help"};
        if (*command != '\0') {
            words.emplace_back(command);
            flags.insert(flags.begin(), command);
        }
        const auto outcome = runTroupe(words);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        EXPECT_NE(outcome.out, "");
        EXPECT_EQ(outcome.out, runTroupe(flags).out);
    }
}

TEST(ServeCommand, AnnouncesItsMemoryAndEndsWithItsInput) {
    Server server("16MiB", {"--regions", "3"});
    EXPECT_FALSE(server.segment().empty());
    EXPECT_TRUE(server.announcement()["addr"].is_number_unsigned());
    EXPECT_EQ(server.announcement()["length"], 16u << 20);
    server.process().child().closeInput();
    const auto outcome = finish(server.process());
    EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(ServeCommand, TakesTheSizesThatItsHelpShows) {
    const auto help = runTroupe({"serve", "--help"});
    EXPECT_THAT(help.out, HasSubstr("SIZE=1GiB"));
    EXPECT_THAT(help.out, HasSubstr("redis+unix://"));
    Server server("1 MiB");
    EXPECT_EQ(server.announcement()["length"], 1 << 20);
}

TEST(ServeCommand, TakesAnIpv6AddressInBracketsToo) {
    // As a segment's name has it. A machine without IPv6 says so before anything starts.
    TroupeProcess serve({"serve", "--host", "[::1]", "--size", "1MiB", "--json", "--until-eof"});
    serve.child().closeInput();
    const auto outcome = finish(serve);
    if (outcome.code == 2 && outcome.err.find("no address of this machine") != std::string::npos)
        GTEST_SKIP() << "no IPv6 here";
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.json()["segment"].get<std::string>(), testing::StartsWith("[::1]:"));
}

TEST(ServeCommand, EndsInOrderOnSigterm) {
    Server server("1MiB");
    server.process().child().signal(SIGTERM);
    const auto outcome = finish(server.process());
    EXPECT_EQ(outcome.code, 0) << outcome.err;
}

TEST(VerifyCommand, FindsEveryByteAsWrittenAcrossTouchingRegionsByEachTransport) {
    Server server("64MiB", {"--regions", "7"});
    for (const std::string transport : {"host", "tcp"}) {
        const auto outcome = runTroupe(
            {"verify", server.segment(), "--rounds", "300", "--max-size", "1MiB", "--json", "--transport", transport});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        const auto report = outcome.json();
        EXPECT_EQ(report["mismatches"], 0);
        EXPECT_EQ(report["transport"], transport);
        EXPECT_EQ(report["writes"].get<int>() + report["reads"].get<int>(), 300);
        // 16 slots are written at first and read at last, besides.
        EXPECT_EQ(report["fill_writes"], 16);
        EXPECT_EQ(report["final_reads"], 16);
        EXPECT_EQ(report["fill_bytes"], 16 << 20);
    }
}

TEST(TransportOption, LeftOutTakesTheBestWayThereIsAndEachReportNamesIt) {
    Server server("64MiB");
    const std::string segment = server.segment();
    const std::vector<std::vector<std::string>> commands = {
        {"verify", segment, "--rounds", "10"},
        {"bench", segment, "--duration", "50ms", "--warmup", "0", "--footprint", "4MiB"},
        {"replay", TROUPE_SMALL_TRACE, "--target", segment, "--requests", "5", "--as-fast-as-possible"}};
    for (auto command : commands) {
        // Between processes of one machine it is a copy, unless that is turned off.
        const auto words = runTroupe(command);
        ASSERT_EQ(words.code, 0) << words.err;
        EXPECT_THAT(words.out, testing::AnyOf(HasSubstr(" by host"), HasSubstr("transport host")));
        command.emplace_back("--json");
        const auto copied = runTroupe(command);
        EXPECT_EQ(copied.json()["transport"], "host") << copied.out << copied.err;
        command.insert(command.end(), {"--set", "host.peers=off"});
        const auto wired = runTroupe(command);
        EXPECT_EQ(wired.json()["transport"], "tcp") << wired.out << wired.err;
    }
}

TEST(TransportOption, TheLogSaysWhyABetterWayIsNotTaken) {
    Server server("1MiB");
    const auto outcome = runTroupe({"verify", server.segment(), "--rounds", "1", "-v", "--set", "host.peers=off"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("segment " + server.segment() + " goes by tcp by tcp0"));
    EXPECT_THAT(outcome.err, HasSubstr("host.peers is off here"));
    const auto asked = runTroupe({"verify", server.segment(), "--rounds", "1", "-v", "--transport", "TCP"});
    ASSERT_EQ(asked.code, 0) << asked.err;
    EXPECT_THAT(asked.err, AllOf(HasSubstr("not host: --transport tcp"), testing::Not(HasSubstr("host.peers"))));
}

TEST(ServeCommand, SaysSoWhenOthersThanThisMachineReachIt) {
    Server alone("1MiB");
    EXPECT_EQ(alone.process().errors(), "");
    // Also on a machine without a network.
    Server open("1MiB", {"--host", "127.0.0.1"});
    EXPECT_EQ(open.process().errors(), "");
    const auto address = ownAddress();
    if (address.empty()) GTEST_SKIP() << "this machine has only a loopback address";
    Server reachable("1MiB", {"--host", address});
    const std::string note = reachable.process().errors();
    EXPECT_THAT(note, AllOf(HasSubstr("no cluster key is set"), HasSubstr("docs/security.md")));
    EXPECT_EQ(note.find('\n'), note.size() - 1) << "one line";
}

TEST(HelpText, SaysThatTheTargetIsOverwrittenAndFitsATerminal) {
    for (const char* command : {"bench", "verify", "replay"})
        EXPECT_THAT(runTroupe({command, "--help"}).out.substr(0, 120), HasSubstr("overwri")) << command;
    for (const char* command :
         {"", "serve", "bench", "verify", "replay", "demo", "segments", "explain", "sim", "faults", "soak"}) {
        std::vector<std::string> words = {"--help"};
        if (*command != 0) words.insert(words.begin(), command);
        std::istringstream help(runTroupe(words).out);
        for (std::string line; std::getline(help, line);) EXPECT_LE(line.size(), 120u) << line;
    }
}

TEST(VerifyCommand, TheInterruptKeyEndsItWithAReport) {
    Server server("64MiB");
    TroupeProcess verify({"verify", server.segment(), "--json"});
    // Its first progress line shows that it runs.
    while (verify.errors().find("operations") == std::string::npos)
        ASSERT_EQ(verify.child().wait(std::chrono::milliseconds(50)).status().code(), Code::Timeout) << verify.errors();
    verify.child().signal(SIGINT);
    const auto outcome = finish(verify);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["mismatches"], 0);
}

TEST(BenchCommand, MeasuresAndComparesReadsAndWritesOfEachSize) {
    Server server("64MiB");
    const auto outcome = runTroupe({"bench", server.segment(), "--block_size", "4KiB,256KiB", "--batch_size", "1,8",
                                    "--duration", "200ms", "--warmup", "50ms", "--threads", "2", "--footprint", "8MiB",
                                    "--verify", "--scatter", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto report = outcome.json();
    ASSERT_EQ(report["rows"].size(), 8u);
    for (const auto& row : report["rows"]) {
        EXPECT_TRUE(row["verified"].get<bool>());
        EXPECT_GT(row["batches"].get<int>(), 0) << row;
        EXPECT_GT(row["gigabytes_per_s"].get<double>(), 0);
        EXPECT_LE(row["batch_p50_us"].get<double>(), row["batch_p99_us"].get<double>());
        EXPECT_LE(row["batch_p99_us"].get<double>(), row["batch_p999_us"].get<double>());
    }
}

/// What a row of `troupe bench --json` is of: operation, block size, batch size, threads.
using Combination = std::tuple<std::string, std::uint64_t, std::uint32_t, unsigned>;

std::vector<Combination> combinationsOf(const nlohmann::json& report) {
    std::vector<Combination> all;
    for (const auto& row : report["rows"])
        all.emplace_back(row["operation"], row["block_size"], row["batch_size"], row["threads"]);
    return all;
}

TEST(BenchCommand, EveryCombinationOfTheListsHasItsRow) {
    Server server("16MiB");
    const auto outcome =
        runTroupe({"bench", server.segment(), "--block_size", "512,4KiB", "--batch_size", "1,2,3", "--threads", "1,3",
                   "--duration", "10ms", "--warmup", "0", "--footprint", "1MiB", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::vector<Combination> expected;
    for (const char* operation : {"write", "read"})
        for (const std::uint64_t block : {512u, 4096u})
            for (const std::uint32_t batch : {1u, 2u, 3u})
                for (const unsigned threads : {1u, 3u}) expected.emplace_back(operation, block, batch, threads);
    EXPECT_EQ(combinationsOf(outcome.json()), expected);
}

TEST(BenchCommand, ASweepHasARowForEachCombinationThatFits) {
    constexpr std::uint64_t kServed = 16u << 20;
    constexpr std::uint64_t kInflight = 2;
    Server server("16MiB");
    const auto outcome = runTroupe({"bench", server.segment(), "--sweep", "--threads", "1,2", "--operation", "write",
                                    "--duration", "10ms", "--warmup", "0", "--inflight", "2", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::vector<Combination> expected;
    for (std::uint64_t block = 4u << 10; block <= 4u << 20; block *= 4)
        for (const std::uint32_t batch : {1u, 16u, 128u})
            for (const unsigned threads : {1u, 2u})
                if (block * batch * threads * kInflight <= kServed)
                    expected.emplace_back("write", block, batch, threads);
    EXPECT_EQ(expected.size(), 25u) << "some do not fit";
    EXPECT_EQ(combinationsOf(outcome.json()), expected);
}

TEST(BenchCommand, CopiesToAnotherProcessOfTheHostWithoutAWire) {
    for (const bool engine_memory : {true, false}) {
        std::vector<std::string> serve = {"serve", "--size", "16MiB", "--transport", "host", "--until-eof", "--json"};
        std::vector<std::string> bench = {"--transport", "host", "--duration", "0.1",       "--warmup", "0",
                                          "--footprint", "4MiB", "--verify",   "--scatter", "--json"};
        if (engine_memory) {
            serve.emplace_back("--engine-memory");
            bench.emplace_back("--engine-memory");
        }
        TroupeProcess server(serve);
        const auto line = server.child().readLine(kPatience);
        ASSERT_TRUE(line) << line.status().toString();
        bench.insert(bench.begin(), {"bench", nlohmann::json::parse(*line)["segment"].get<std::string>()});
        const auto outcome = runTroupe(bench);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        const auto report = outcome.json();
        EXPECT_EQ(report["transport"], "host");
        for (const auto& row : report["rows"]) EXPECT_TRUE(row["verified"].get<bool>());
    }
}

TEST(BenchCommand, NamesNoRateOfBytesThatWentNowhere) {
    Server server("16MiB");
    const std::vector<std::string> bench = {"bench",       server.segment(), "--transport", "null",
                                            "--duration",  "50ms",           "--warmup",    "0",
                                            "--footprint", "4MiB",           "--operation", "WRITE"};
    const auto words = runTroupe(bench);
    ASSERT_EQ(words.code, 0) << words.err;
    EXPECT_THAT(words.out, HasSubstr("which moves nothing"));
    // Nothing was compared.
    EXPECT_THAT(words.out, testing::ContainsRegex("write .* -\n"));
    EXPECT_THAT(words.out, HasSubstr("2 batches in flight for each thread"));
    auto json = bench;
    json.emplace_back("--json");
    const auto outcome = runTroupe(json);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["rows"].size(), 1u) << "WRITE is write";
    EXPECT_TRUE(outcome.json()["rows"][0]["gigabytes_per_s"].is_null());
    EXPECT_GT(outcome.json()["rows"][0]["requests_per_s"].get<double>(), 0);
}

TEST(BenchCommand, WorksOnItsOwnSegment) {
    const auto outcome = runTroupe({"bench", "--local", "--transport", "host", "--duration", "0.1", "--warmup", "0",
                                    "--footprint", "4MiB", "--verify", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["rows"].size(), 2u);
    EXPECT_EQ(outcome.json()["transport"], "host");
}

TEST(BenchCommand, SaysThatTheSystemGivesFewerThreadsThanItWasAskedFor) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer needs more addresses than are left here";
#endif
    // 16 stacks of 1 GiB do not fit into 16 GiB of addresses beside an engine's own threads, whoever runs this.
    auto child = ChildProcess::start(
        {"/bin/sh", "-c",
         "ulimit -s 1048576 && ulimit -v 16777216 && exec " TROUPE_PROGRAM
         " bench --local --transport host --duration 0.1 --warmup 0 --footprint 64KiB --block_size 4KiB --batch_size 1 "
         "--threads 16 2>&1"});
    ASSERT_TRUE(child) << child.status().toString();
    const auto out = child->readAll(kPatience);
    ASSERT_TRUE(out) << out.status().toString();
    EXPECT_EQ(*child->wait(kPatience), 1) << *out;
    EXPECT_THAT(*out, AllOf(HasSubstr("ResourceExhausted"), HasSubstr(" of 16 threads"), HasSubstr("ulimit -u")));
}

TEST(ReplayCommand, FetchesWhatIsHeldAndStoresWhatIsNew) {
    Server server("256MiB");
    const auto outcome = runTroupe({"replay", TROUPE_SMALL_TRACE, "--target", server.segment(), "--as-fast-as-possible",
                                    "--bytes-per-token", "64", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto report = outcome.json();
    EXPECT_EQ(report["requests"], 300);
    EXPECT_EQ(report["evictions"], 0);
    EXPECT_EQ(report["hit_blocks"].get<int>() + report["written_blocks"].get<int>(), report["blocks"].get<int>());
    EXPECT_GT(report["hit_rate"].get<double>(), 0.5);
    EXPECT_EQ(report["bytes_read"].get<int>(), report["hit_blocks"].get<int>() * 64 * 512);
}

TEST(ReplayCommand, TakesItsTargetAfterTheTraceTooAndNamesWhatIsUneven) {
    Server server("1MiB");
    const std::string path = testing::TempDir() + "troupe_uneven_" + std::to_string(::getpid());
    // Ten blocks of input, and an id for one; then three ids for a store of two blocks.
    std::ofstream(path) << R"({"timestamp": 1, "input_length": 5000, "output_length": 1, "hash_ids": [1]})"
                        << "\n"
                        << R"({"timestamp": 1, "input_length": 1500, "output_length": 1, "hash_ids": [1, 2, 3]})"
                        << "\n"
                        << R"({"timestamp": 1, "input_length": 8192, "output_length": 1, "hash_ids": )"
                        << "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]}\n";
    const std::vector<std::string> command = {"replay", path, server.segment(), "--bytes-per-token", "1024"};
    const auto words = runTroupe(command);
    ASSERT_EQ(words.code, 0) << words.err;
    EXPECT_THAT(words.out, AllOf(HasSubstr("1 request: not one hash id"), HasSubstr("15 blocks of requests larger"),
                                 HasSubstr("troupe serve --size")));
    auto json = command;
    json.emplace_back("--json");
    EXPECT_EQ(runTroupe(json).json()["requests_uneven"], 1);
    ::unlink(path.c_str());
}

TEST(ReplayCommand, EvictsTheLeastRecentlyUsedBlocksOfASmallStore) {
    Server server("1MiB");
    // 16 slots, fewer than the longest request has blocks, and parts of four blocks.
    const auto outcome = runTroupe({"replay", TROUPE_SMALL_TRACE, "--target", server.segment(), "--as-fast-as-possible",
                                    "--bytes-per-token", "128", "--staging", "256KiB", "--requests", "100",
                                    "--engine-memory", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto report = outcome.json();
    EXPECT_EQ(report["slots"], 16);
    EXPECT_EQ(report["requests"], 100);
    EXPECT_GT(report["evictions"].get<int>(), 0);
    EXPECT_GT(report["blocks_not_stored"].get<int>(), 0);
}

TEST(ReplayCommand, KeepsTheTracesPaceTimesTheSpeedup) {
    Server server("16MiB");
    const std::string path = testing::TempDir() + "troupe_pace_" + std::to_string(::getpid());
    std::ofstream(path) << R"({"timestamp": 1000, "input_length": 1, "output_length": 1, "hash_ids": [1]})"
                        << "\n"
                        << R"({"timestamp": 7000, "input_length": 1, "output_length": 1, "hash_ids": [1]})"
                        << "\n";
    const auto outcome = runTroupe({"replay", path, "--target", server.segment(), "--speedup", "10", "--json"});
    ::unlink(path.c_str());
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_GE(outcome.json()["seconds"].get<double>(), 0.6);
    EXPECT_EQ(outcome.json()["hit_blocks"], 1);
}

TEST(TraceGenCommand, WritesTheBundledTraceByDefault) {
    const auto outcome = runTroupe({"trace-gen"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::ifstream file(TROUPE_SMALL_TRACE);
    std::ostringstream bundled;
    bundled << file.rdbuf();
    EXPECT_EQ(outcome.out, bundled.str());
}

TEST(ConfigCommand, ShowsWhereEachValueCameFrom) {
    const auto outcome = runTroupe({"config", "--json", "--set", "tcp.lanes=3"}, {"TROUPE_TCP_CRC=true"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    int found = 0;
    const auto json = outcome.json();
    for (const auto& setting : json["settings"]) {
        if (setting["name"] == "tcp.lanes") {
            EXPECT_EQ(setting["value"], "3");
            EXPECT_EQ(setting["origin"], "--set");
            ++found;
        }
        if (setting["name"] == "tcp.crc") {
            EXPECT_THAT(setting["origin"].get<std::string>(), HasSubstr("TROUPE_TCP_CRC"));
            ++found;
        }
    }
    EXPECT_EQ(found, 2);
}

TEST(TopoCommand, AnswersWithTheMatrix) {
    const auto outcome = runTroupe({"topo", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(outcome.json()["priority_matrix"].is_object());
}

TEST(ExplainCommand, ShowsEachTransportWithItsReasonAndHowLongASmallReadTakes) {
    Server server("16MiB", {"--regions", "4"});
    const auto text = runTroupe({"explain", server.segment()});
    ASSERT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, AllOf(HasSubstr("segment  " + server.segment()), HasSubstr("it answers a probe in "),
                                HasSubstr("16 MiB in 4 regions"), HasSubstr("while those above are lost"),
                                HasSubstr("a read of 4 KiB by host0 took ")));
    const auto outcome = runTroupe({"explain", server.segment(), "--size", "64KiB", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto report = outcome.json();
    EXPECT_EQ(report["ok"], true);
    EXPECT_EQ(report["incarnation"].get<std::string>().size(), 32u);
    EXPECT_EQ(report["control"], server.segment());
    EXPECT_EQ(report["owner"], "up");
    EXPECT_GT(report["probe_us"].get<double>(), 0);
    EXPECT_EQ(report["regions"], 4);
    EXPECT_EQ(report["bytes"], 16 << 20);
    EXPECT_EQ(report["offers"].dump(), R"(["host","tcp"])");
    EXPECT_EQ(report["transport"], "host");
    ASSERT_EQ(report["transports"].size(), 3u);
    EXPECT_EQ(report["transports"][0]["use"], "first");
    EXPECT_EQ(report["transports"][1]["transport"], "rdma");
    EXPECT_EQ(report["transports"][1]["use"], "no");
    EXPECT_TRUE(report["transports"][1]["why"].is_string());
    EXPECT_EQ(report["transports"][2]["use"], "next");
    EXPECT_EQ(report["read"]["bytes"], 64 << 10);
    EXPECT_EQ(report["read"]["nics"].dump(), R"(["host0"])");
    EXPECT_TRUE(report["read"]["gpu"].is_null());
    EXPECT_GT(report["read"]["median_us"].get<double>(), 0);
}

TEST(ExplainCommand, SaysWhyABetterWayIsNotTaken) {
    Server server("1MiB");
    const auto wire = runTroupe({"explain", server.segment(), "--transport", "tcp", "--json"});
    ASSERT_EQ(wire.code, 0) << wire.err;
    EXPECT_EQ(wire.json()["transport"], "tcp");
    EXPECT_EQ(wire.json()["transports"][0]["why"], "--transport tcp");
    EXPECT_EQ(wire.json()["transports"][1]["why"], "--transport tcp");
    const auto off = runTroupe({"explain", server.segment(), "--set", "host.peers=off"});
    ASSERT_EQ(off.code, 0) << off.err;
    EXPECT_THAT(off.out, HasSubstr("host.peers is off here"));
}

TEST(ExplainCommand, OfASegmentThatNothingReachesShowsWhatItFoundAndFails) {
    Server server("1MiB", {"--set", "host.peers=off"});
    const auto outcome = runTroupe({"explain", server.segment(), "--transport", "host", "--json"});
    EXPECT_EQ(outcome.code, 1);
    const auto answer = outcome.json();
    EXPECT_EQ(answer["ok"], false) << outcome.out;
    EXPECT_EQ(answer["error"]["code"], "TransportMissing");
    EXPECT_THAT(answer["error"]["message"].get<std::string>(), HasSubstr("host.peers is off there"));
    EXPECT_EQ(answer["owner"], "up");
    EXPECT_TRUE(answer["transport"].is_null());
    EXPECT_TRUE(answer["read"].is_null());
    EXPECT_EQ(answer["transports"].size(), 3u);
    const auto text = runTroupe({"explain", server.segment(), "--transport", "host"});
    EXPECT_EQ(text.code, 1);
    EXPECT_THAT(text.out, HasSubstr("it answers a probe in "));
    EXPECT_THAT(text.err, HasSubstr("try: leave --transport out"));
}

TEST(JsonOutput, OfACommandThatSucceededSaysOk) {
    const std::string trace = testing::TempDir() + "troupe_ok_" + std::to_string(::getpid());
    const std::vector<std::vector<std::string>> commands = {
        {"config", "--json"}, {"topo", "--json"}, {"trace-gen", "--requests", "3", "-o", trace, "--json"}};
    for (const auto& command : commands) {
        const auto outcome = runTroupe(command);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        EXPECT_EQ(outcome.json()["ok"], true) << command.front();
    }
    ::unlink(trace.c_str());
    Server server("1MiB");
    EXPECT_EQ(server.announcement()["ok"], true);
}

/// PATH of the programs that are started while this lives.
class ScopedPath {
  public:
    explicit ScopedPath(const std::string& path) : before_(::getenv("PATH")) { ::setenv("PATH", path.c_str(), 1); }
    ~ScopedPath() { ::setenv("PATH", before_.c_str(), 1); }
    ScopedPath(const ScopedPath&) = delete;
    ScopedPath& operator=(const ScopedPath&) = delete;

  private:
    const std::string before_;
};

/// `troupe topo` of a machine of tests/topology.
Outcome topoOf(const test::SysfsTree& tree, std::vector<std::string> more) {
    more.insert(more.begin(), {"topo", "--sysfs", tree.sys().string(), "--dev", tree.dev().string()});
    return runTroupe(more);
}

TEST(TopoCommand, RanksTheDevicesOfAnotherMachineWithReasons) {
    const test::SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / "nics_on_one_socket.txt");
    const auto text = topoOf(tree, {});
    ASSERT_EQ(text.code, 0) << text.err;
    EXPECT_THAT(text.out, HasSubstr("not used: mlx5_2: no port is active"));
    EXPECT_THAT(text.out, HasSubstr("not used: mlx5_3: no file in /dev/infiniband"));
    EXPECT_THAT(text.out, HasSubstr("for one request at cpu:0: mlx5_0: preferred for cpu:0; the first by name\n"));
    const auto outcome = topoOf(tree, {"--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto json = outcome.json();
    EXPECT_EQ(json["origin"], "RDMA devices");
    EXPECT_EQ(json["priority_matrix"]["cpu:0"].dump(), R"([["mlx5_0","mlx5_1"],[]])");
    EXPECT_THAT(json["reasons"]["cpu:1"]["mlx5_0"].get<std::string>(), HasSubstr("another node"));
    EXPECT_EQ(json["choice"]["cpu:0"]["device"], "mlx5_0");
    EXPECT_EQ(json["choice"]["cpu:0"]["reason"], "preferred for cpu:0; the first by name");
    EXPECT_EQ(json["devices"].size(), 4u);
    EXPECT_EQ(json["gpus"].size(), 2u);
    EXPECT_THAT(json["left_out"]["mlx5_2"].get<std::string>(), HasSubstr("no port is active"));
}

TEST(TopoCommand, TheSettingsLeaveDevicesOut) {
    const test::SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / "nics_on_one_socket.txt");
    const auto outcome = topoOf(tree, {"--json", "--set", "rdma.devices=mlx5_*", "--set", "rdma.exclude=mlx5_1"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["priority_matrix"]["cpu:0"].dump(), R"([["mlx5_0"],[]])");
    EXPECT_EQ(outcome.json()["left_out"]["mlx5_1"], "the setting rdma.exclude names it");
    EXPECT_TRUE(outcome.json()["no_rdma"].is_null());
}

TEST(TopoCommand, WhereNoDeviceIsLeftItSaysWhichSettingLeftItOut) {
    const test::SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / "nics_on_one_socket.txt");
    const auto excluded = topoOf(tree, {"--set", "rdma.exclude=mlx5_*"});
    ASSERT_EQ(excluded.code, 0) << excluded.err;
    EXPECT_THAT(excluded.out, HasSubstr("not used: mlx5_0: the setting rdma.exclude names it"));
    EXPECT_THAT(excluded.out, testing::Not(HasSubstr("there is no RDMA")));
    const auto misnamed = topoOf(tree, {"--json", "--set", "rdma.devices=mlx4_0"});
    ASSERT_EQ(misnamed.code, 0) << misnamed.err;
    EXPECT_EQ(misnamed.json()["left_out"]["mlx4_0"], "the setting rdma.devices names it, but there is no such device");
    EXPECT_EQ(misnamed.json()["left_out"]["mlx5_0"], "the setting rdma.devices does not name it");
    EXPECT_THAT(misnamed.json()["no_rdma"].get<std::string>(),
                AllOf(HasSubstr("no RDMA device is left"), HasSubstr("; mlx5_0: the setting rdma.devices does not")));
}

TEST(TopoCommand, WithoutADeviceSaysWhatIsMissing) {
    const std::string folder = testing::TempDir() + "troupe_no_rdma_" + std::to_string(::getpid());
    std::filesystem::create_directories(folder + "/class");
    const auto no_driver = runTroupe({"topo", "--sysfs", folder});
    EXPECT_EQ(no_driver.code, 0) << no_driver.err;
    EXPECT_THAT(no_driver.out, HasSubstr("no RDMA: no driver of an RDMA device is loaded: there is no " + folder));
    std::filesystem::create_directories(folder + "/class/infiniband");
    const auto no_device = runTroupe({"topo", "--sysfs", folder, "--json"});
    EXPECT_THAT(no_device.json()["no_rdma"].get<std::string>(), HasSubstr("infiniband is empty"));
    std::filesystem::remove_all(folder);
}

TEST(TopoCommand, AFileOverridesTheMatrixOrIsRefusedWithItsName) {
    const test::SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / "nics_on_one_socket.txt");
    const auto file = (tree.sys().parent_path() / "matrix.json").string();
    std::ofstream(file) << R"({"cpu:0": [["mlx5_1"], ["mlx5_0"]], "cuda:0": [["mlx5_0"], []]})";
    const auto outcome = topoOf(tree, {"--json", "--set", "topology.matrix=" + file});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["origin"], file);
    EXPECT_EQ(outcome.json()["priority_matrix"].dump(),
              R"({"cpu:0":[["mlx5_1"],["mlx5_0"]],"cuda:0":[["mlx5_0"],[]]})");
    std::ofstream(file) << R"({"cpu:0": ["mlx5_1"]})";
    const auto refused = topoOf(tree, {"--set", "topology.matrix=" + file});
    EXPECT_NE(refused.code, 0);
    EXPECT_THAT(refused.err, testing::AllOf(HasSubstr("topology.matrix"), HasSubstr("'cpu:0' has no two lists")));
    const auto missing = topoOf(tree, {"--set", "topology.matrix=/nowhere.json"});
    EXPECT_EQ(missing.code, 2);
    EXPECT_THAT(missing.err, AllOf(HasSubstr("'/nowhere.json': No such file"), HasSubstr("try: ")));
}

TEST(TopoCommand, ACopyThatIsNoneIsRefusedByItsName) {
    const std::string file = testing::TempDir() + "troupe_sysfs_" + std::to_string(::getpid());
    std::ofstream(file) << "no folder";
    const std::pair<std::string, const char*> cases[] = {{"/nonexistent/sys", "there is no such directory"},
                                                         {file, "it is no directory"},
                                                         {"/dev", "no copy of a /sys"}};
    for (const auto& [sysfs, why] : cases) {
        const auto outcome = runTroupe({"topo", "--sysfs", sysfs, "--json"});
        EXPECT_EQ(outcome.code, 2) << sysfs;
        EXPECT_EQ(outcome.json()["ok"], false);
        EXPECT_THAT(outcome.json()["error"]["message"].get<std::string>(),
                    AllOf(HasSubstr("--sysfs '" + sysfs + "'"), HasSubstr(why)));
        EXPECT_FALSE(outcome.json()["error"]["try"].is_null());
    }
    ::unlink(file.c_str());
}

TEST(TopoCommand, DrawsWithGraphvizOrSaysHowToGetIt) {
    const test::SysfsTree tree(std::filesystem::path(TROUPE_MACHINES) / "two_nics_for_8_gpus.txt");
    const auto folder = tree.sys().parent_path();
    const auto picture = folder / "topo.svg";
    {
        // In the place of Graphviz: keeps what it was given to draw.
        std::ofstream(folder / "dot") << "#!/bin/sh\ncat >\"$3\"\n";
        std::filesystem::permissions(folder / "dot", std::filesystem::perms::owner_all);
        const ScopedPath path(folder.string() + ":/usr/bin:/bin");
        const auto outcome = topoOf(tree, {"--svg", picture.string()});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        std::string drawn;
        std::getline(std::ifstream(picture), drawn);
        EXPECT_THAT(drawn, testing::StartsWith("digraph troupe {"));
        EXPECT_THAT(drawn, HasSubstr(R"("cuda:5" -> "mlx5_1")"));
    }
    const ScopedPath path(folder.string() + "/empty");
    const auto outcome = topoOf(tree, {"--svg", picture.string()});
    EXPECT_NE(outcome.code, 0);
    EXPECT_THAT(outcome.err, HasSubstr("apt-get install graphviz"));
}

TEST(DemoCommand, DoesEverythingOnceAndFindsNoMismatch) {
    const auto outcome =
        runTroupe({"demo", "--verify-seconds", "0.5", "--bench-seconds", "0.1", "--size", "128MiB", "--json"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto report = outcome.json();
    EXPECT_EQ(report["mismatches"], 0);
    // By the best way, and as between two machines.
    EXPECT_EQ(report["bench"]["transport"], "host");
    EXPECT_EQ(report["bench"]["rows"].size(), 6u);
    EXPECT_EQ(report["bench_tcp"]["transport"], "tcp");
    EXPECT_EQ(report["bench_tcp"]["rows"].size(), 6u);
    EXPECT_EQ(report["verify"]["transport"], "host");
    EXPECT_EQ(report["replay"]["requests"], 300);
    EXPECT_EQ(report["replay"]["transport"], "host");
}

TEST(DemoCommand, WithoutCopiesMeasuresTcpOnceAndSaysSo) {
    const auto outcome = runTroupe(
        {"demo", "--verify-seconds", "0.2", "--bench-seconds", "0.05", "--size", "64MiB", "--set", "host.peers=off"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("went by TCP already"));
    EXPECT_THAT(outcome.out, testing::Not(HasSubstr("host")));
    EXPECT_THAT(outcome.out, HasSubstr("tcp"));
}

}  // namespace
}  // namespace troupe::apps
