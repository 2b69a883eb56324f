#include "base/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Status loadJson(ConfigLoader& loader, std::string_view text) { return loader.loadJson(text, "file a.json"); }

std::string jsonError(std::string_view text) {
    ConfigLoader loader;
    const Status status = loadJson(loader, text);
    EXPECT_EQ(status.code(), Code::InvalidArgument) << text;
    return status.message();
}

Status loadEnvironment(ConfigLoader& loader, std::vector<const char*> entries) {
    entries.push_back(nullptr);
    return loader.loadEnvironment(entries.data());
}

/// All values as text, to see that nothing changed.
std::vector<std::string> valuesOf(const Config& config) {
    std::vector<std::string> values;
    for (const ConfigKey& key : ConfigLoader::schema()) values.push_back(key.name + "=" + key.get(config));
    return values;
}

bool isText(const ConfigKey& key) { return key.unit == "text" || key.unit == "secret"; }

/// A file that is gone when the test ends.
class SettingsFile {
  public:
    explicit SettingsFile(const std::string& text)
        : path_(std::filesystem::temp_directory_path() / ("troupe_config_test_" + std::to_string(::getpid()))) {
        std::ofstream(path_) << text;
    }
    ~SettingsFile() { std::filesystem::remove(path_); }
    SettingsFile(const SettingsFile&) = delete;
    SettingsFile& operator=(const SettingsFile&) = delete;
    std::string path() const { return path_.string(); }

  private:
    std::filesystem::path path_;
};

// --- the schema ------------------------------------------------------------------------------------------------

TEST(ConfigSchema, IsSortedAndComplete) {
    const auto& schema = ConfigLoader::schema();
    EXPECT_EQ(schema.size(), 81u) << "a new field of Config needs its key here";
    for (std::size_t i = 0; i < schema.size(); ++i) {
        const ConfigKey& key = schema[i];
        if (i > 0) {
            EXPECT_LT(schema[i - 1].name, key.name);
        }
        EXPECT_THAT((std::vector<std::string>{"bytes", "time", "count", "bool", "text", "secret"}),
                    testing::Contains(key.unit));
        EXPECT_FALSE(key.range.empty()) << key.name;
        EXPECT_EQ(key.description.back(), '.') << key.name;
    }
}

TEST(ConfigSchema, EveryDefaultIsInItsRangeAndReadsBackAsWritten) {
    const Config defaults;
    for (const ConfigKey& key : ConfigLoader::schema()) {
        Config config;
        const std::string text = key.get(defaults);
        const Status status = key.set(config, text);
        EXPECT_TRUE(status.isOk()) << key.name << ": " << status.toString();
        EXPECT_EQ(key.get(config), text) << key.name;
    }
}

TEST(ConfigSchema, EveryKeyTakesTheEndsOfItsRangeAndNothingElseChanges) {
    for (const ConfigKey& key : ConfigLoader::schema()) {
        if (key.unit == "bool" || isText(key)) continue;
        const std::size_t dots = key.range.find("..");
        ASSERT_NE(dots, std::string::npos) << key.name;
        std::vector<std::string> ends = {key.range.substr(0, dots), key.range.substr(dots + 2)};
        if (ends[0].rfind("0, ", 0) == 0) {
            ends[0] = ends[0].substr(3);
            ends.emplace_back("0");
        }
        for (const std::string& end : ends) {
            Config config;
            const auto before = valuesOf(config);
            ASSERT_TRUE(key.set(config, end).isOk()) << key.name << " " << end;
            EXPECT_EQ(key.get(config), end);
            std::size_t changed = 0;
            const auto after = valuesOf(config);
            for (std::size_t i = 0; i < after.size(); ++i) changed += before[i] != after[i];
            EXPECT_LE(changed, 1u) << key.name;
        }
    }
}

TEST(ConfigSchema, EveryKeyRefusesRubbishAndKeepsItsValue) {
    for (const ConfigKey& key : ConfigLoader::schema()) {
        if (isText(key)) continue;
        for (const std::string text :
             {"", " ", "-1", "+1", "1 ", " 1", "0x10", "1e3", "1.5", "99999999999999999999", "18446744073709551615",
              "9223372036854775807h", "18446744073709551615TiB", "lots", "TRUE", "\xff"}) {
            Config config;
            const auto before = valuesOf(config);
            EXPECT_EQ(key.set(config, text).code(), Code::InvalidArgument) << key.name << " '" << text << "'";
            EXPECT_EQ(valuesOf(config), before) << key.name;
        }
    }
}

TEST(ConfigSchema, AChoiceTakesItsWordsAndNoOther) {
    ConfigLoader loader;
    for (const char* word : {"cm", "exchange", "auto"}) {
        EXPECT_TRUE(loader.set("rdma.connect", word)) << word;
        EXPECT_EQ(loader.config().rdma_connect, word);
    }
    for (const char* word : {"", "CM", "cm ", "tcp"})
        EXPECT_THAT(loader.set("rdma.connect", word).message(), HasSubstr("auto, cm, exchange")) << word;
    EXPECT_EQ(loader.config().rdma_connect, "auto");
}

TEST(ConfigSchema, TextsHaveALengthAndNoControlCharacters) {
    for (const ConfigKey& key : ConfigLoader::schema()) {
        if (!isText(key)) continue;
        for (const std::string& text : {std::string("a\nb"), std::string("\0x", 2), std::string(5000, 'x')}) {
            Config config;
            const auto before = valuesOf(config);
            EXPECT_EQ(key.set(config, text).code(), Code::InvalidArgument) << key.name;
            EXPECT_EQ(valuesOf(config), before) << key.name;
        }
    }
    ConfigLoader loader;
    ASSERT_TRUE(loader.set("redis.prefix", "a b/\xc3\xa9/").isOk());
    EXPECT_EQ(loader.config().redis_prefix, "a b/\xc3\xa9/");
    EXPECT_FALSE(loader.set("redis.prefix", "").isOk());
}

TEST(ConfigSchema, ASecretIsNeverShown) {
    ConfigLoader loader;
    ASSERT_TRUE(loadEnvironment(loader, {"TROUPE_REDIS_PASSWORD=hunter2"}).isOk());
    EXPECT_EQ(loader.config().redis_password, "hunter2");
    for (const std::string& value : valuesOf(loader.config())) EXPECT_THAT(value, Not(HasSubstr("hunter2")));
    const Status refused = loader.set("redis.password", "hunter2\n");
    EXPECT_FALSE(refused.isOk());
    EXPECT_THAT(refused.toString(), Not(HasSubstr("hunter2")));
    EXPECT_EQ(loader.provenance("redis.password"), "environment TROUPE_REDIS_PASSWORD");
}

// --- JSON ------------------------------------------------------------------------------------------------------

TEST(ConfigLoader, ReadsNestedAndDottedKeysAlike) {
    for (const char* text : {R"({"tcp": {"lanes": 2}})", R"({"tcp.lanes": 2})", R"({"tcp.lanes": "2"})"}) {
        ConfigLoader loader;
        const Status status = loadJson(loader, text);
        EXPECT_TRUE(status.isOk()) << status.toString();
        EXPECT_EQ(loader.config().tcp_lanes, 2u);
        EXPECT_EQ(loader.provenance("tcp.lanes"), "file a.json");
    }
}

TEST(ConfigLoader, ReadsUnitsNumbersAndBooleans) {
    ConfigLoader loader;
    const Status status = loadJson(loader, R"({"slice_bytes": "64KiB", "transfer_timeout": "5s", "spin": "10us",
        "tcp": {"window_bytes": 1048576, "crc": true}, "waiter_drives": "off", "lease_ttl": "1min",
        "unregister_timeout": "250ms"})");
    ASSERT_TRUE(status.isOk()) << status.toString();
    EXPECT_EQ(loader.config().slice_bytes, 65536u);
    EXPECT_EQ(loader.config().transfer_timeout, 5s);
    EXPECT_EQ(loader.config().spin, 10us);
    EXPECT_EQ(loader.config().tcp_window_bytes, 1048576u);
    EXPECT_TRUE(loader.config().tcp_crc);
    EXPECT_FALSE(loader.config().waiter_drives);
    EXPECT_EQ(loader.config().lease_ttl, 60s);
    EXPECT_EQ(loader.config().unregister_timeout, 250ms);
}

TEST(ConfigLoader, AnEmptyObjectChangesNothing) {
    ConfigLoader loader;
    EXPECT_TRUE(loadJson(loader, "{}").isOk());
    EXPECT_EQ(valuesOf(loader.config()), valuesOf(Config{}));
}

TEST(ConfigLoader, NamesTheNearestKnownKey) {
    EXPECT_THAT(jsonError(R"({"tcp": {"lane": 2}})"), AllOf(HasSubstr("'tcp.lane'"), HasSubstr("'tcp.lanes'")));
    EXPECT_THAT(jsonError(R"({"slicebytes": 4096})"), HasSubstr("did you mean 'slice_bytes'?"));
    // What is far from all names is no misspelling of the nearest.
    EXPECT_THAT(jsonError(R"({"tcp": {"tcp": {"lanes": 1}}})"),
                AllOf(HasSubstr("'tcp.tcp.lanes'"), HasSubstr("`troupe config` lists all")));
    EXPECT_THAT(jsonError("{\"" + std::string(100000, 'x') + "\": 1}"), Not(HasSubstr("did you mean")));
}

TEST(ConfigLoader, NamesTheOriginTheKeyTheValueAndTheRange) {
    EXPECT_EQ(jsonError(R"({"tcp.lanes": 65})"), "file a.json: tcp.lanes: '65' is not in 1..64");
    EXPECT_THAT(jsonError(R"({"slice_bytes": "1KiB"})"), HasSubstr("'1KiB' is not in 4KiB..1GiB"));
    EXPECT_THAT(jsonError(R"({"lease_ttl": "500ms"})"), HasSubstr("'500ms' is not in 1s..24h"));
}

TEST(ConfigLoader, RefusesATimeWithoutUnitOrBetweenTwoTicks) {
    EXPECT_THAT(jsonError(R"({"spin": 50})"), HasSubstr("unit"));
    EXPECT_THAT(jsonError(R"({"transfer_timeout": "1500us"})"), HasSubstr("multiple of 1ms"));
    EXPECT_THAT(jsonError(R"({"lease_ttl": "1500ms"})"), HasSubstr("multiple of 1s"));
}

TEST(ConfigLoader, RefusesValuesOfTheWrongKind) {
    for (const char* text : {R"({"tcp.lanes": null})", R"({"tcp.lanes": [2]})", R"({"tcp.lanes": 2.5})",
                             R"({"tcp.lanes": -2})", R"({"tcp.lanes": {}, "tcp": 3})", R"({"tcp.crc": 2})"})
        jsonError(text);
}

TEST(ConfigLoader, RefusesWhatIsNotAnObject) {
    for (const char* text : {"", "[]", "3", "\"tcp\"", "null", "{", "{} {}", "{\"tcp.lanes\": 2,}", "\xff"})
        jsonError(text);
}

TEST(ConfigLoader, RefusesAKeyGivenTwice) {
    EXPECT_THAT(jsonError(R"({"tcp.lanes": 1, "tcp": {"lanes": 2}})"), HasSubstr("given twice"));
    EXPECT_THAT(jsonError(R"({"tcp.lanes": 1, "tcp.lanes": 2})"), HasSubstr("given twice"));
    EXPECT_THAT(jsonError(R"({"tcp": {"lanes": 1}, "tcp": {"crc": true}})"), HasSubstr("given twice"));
}

TEST(ConfigLoader, RefusesDeepNestingWithoutDescending) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += "{\"a\":";
    text += "1" + std::string(100000, '}');
    EXPECT_THAT(jsonError(text), HasSubstr("too deep"));
}

TEST(ConfigLoader, AppliesNothingWhenOneValueIsWrong) {
    ConfigLoader loader;
    ASSERT_TRUE(loader.set("tcp.lanes", "3").isOk());
    EXPECT_FALSE(loadJson(loader, R"({"data_loops": 4, "tcp": {"lanes": 2, "window_requests": 0}})").isOk());
    EXPECT_FALSE(loadEnvironment(loader, {"TROUPE_DATA_LOOPS=4", "TROUPE_TCP_LANES=0"}).isOk());
    EXPECT_EQ(loader.config().data_loops, 0u);
    EXPECT_EQ(loader.config().tcp_lanes, 3u);
    EXPECT_EQ(loader.provenance("data_loops"), "default");
    EXPECT_EQ(loader.provenance("tcp.lanes"), "code");
}

// --- files -----------------------------------------------------------------------------------------------------

TEST(ConfigLoader, ReadsAFileAndSaysSo) {
    const SettingsFile file(R"({"tcp": {"lanes": 4}})");
    ConfigLoader loader;
    const Status status = loader.loadFile(file.path());
    ASSERT_TRUE(status.isOk()) << status.toString();
    EXPECT_EQ(loader.config().tcp_lanes, 4u);
    EXPECT_EQ(loader.provenance("tcp.lanes"), "file " + file.path());
}

TEST(ConfigLoader, NamesTheFileThatItCannotUse) {
    ConfigLoader loader;
    const Status missing = loader.loadFile("/nonexistent/troupe.json");
    EXPECT_EQ(missing.code(), Code::NotFound);
    EXPECT_THAT(missing.message(), HasSubstr("/nonexistent/troupe.json"));
    EXPECT_EQ(loader.loadFile(std::filesystem::temp_directory_path().string()).code(), Code::InvalidArgument);
    const SettingsFile large(std::string((1u << 20) + 1, ' '));
    EXPECT_THAT(loader.loadFile(large.path()).message(), HasSubstr("more than 1MiB"));
}

// --- environment -----------------------------------------------------------------------------------------------

TEST(ConfigLoader, ReadsTheEnvironmentAndIgnoresWhatIsNotTroupes) {
    ConfigLoader loader;
    const Status status = loadEnvironment(
        loader, {"PATH=/bin", "TROUPE=1", "TROUPE_SPIN=0", "TROUPE_TCP_LANES=2", "XTROUPE_SPIN=1", "EMPTY", ""});
    ASSERT_TRUE(status.isOk()) << status.toString();
    EXPECT_EQ(loader.config().spin, 0us);
    EXPECT_EQ(loader.config().tcp_lanes, 2u);
    EXPECT_EQ(loader.provenance("spin"), "environment TROUPE_SPIN");
    EXPECT_TRUE(loader.loadEnvironment(nullptr).isOk());
}

TEST(ConfigLoader, WhatKubernetesSetsForAServiceNamedTroupeIsNoSetting) {
    ConfigLoader loader;
    const Status status = loadEnvironment(
        loader, {"TROUPE_SERVICE_HOST=10.0.0.1", "TROUPE_SERVICE_PORT=7000", "TROUPE_SERVICE_PORT_data=7000",
                 "TROUPE_PORT=tcp://10.0.0.1:7000", "TROUPE_PORT_7000_TCP_ADDR=10.0.0.1"});
    EXPECT_TRUE(status.isOk()) << status.toString();
    for (const char* other : {"TROUPE_PORTS=1", "TROUPE_PORT_=1", "TROUPE_PORT_x=1", "TROUPE_SERVICE=1"})
        EXPECT_FALSE(loadEnvironment(loader, {other}).isOk()) << other;
}

TEST(ConfigLoader, ASettingThatIsZeroInTheEnvironmentIsOff) {
    ConfigLoader loader;
    ASSERT_TRUE(loader.set("tcp.crc", "true").isOk());
    ASSERT_TRUE(loadEnvironment(loader, {"TROUPE_TCP_CRC=0"}).isOk());
    EXPECT_FALSE(loader.config().tcp_crc);
}

TEST(ConfigLoader, RefusesUnknownAndUnusableVariables) {
    ConfigLoader loader;
    EXPECT_THAT(loadEnvironment(loader, {"TROUPE_TCP_LANE=2"}).message(), HasSubstr("'TROUPE_TCP_LANES'"));
    EXPECT_THAT(loadEnvironment(loader, {"TROUPE_SPIN="}).message(), HasSubstr("TROUPE_SPIN"));
    EXPECT_FALSE(loadEnvironment(loader, {"TROUPE_SPIN"}).isOk());
    EXPECT_FALSE(loadEnvironment(loader, {"TROUPE_"}).isOk());
    EXPECT_FALSE(loadEnvironment(loader, {"TROUPE_TCP.LANES=2"}).isOk());
}

TEST(ConfigLoader, EveryKeyHasItsOwnVariable) {
    for (const ConfigKey& key : ConfigLoader::schema()) {
        std::string name = "TROUPE_" + key.name;
        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return c == '.' ? '_' : static_cast<char>(std::toupper(c)); });
        ConfigLoader loader;
        const std::string entry = name + "=" + key.get(Config{});
        EXPECT_TRUE(loadEnvironment(loader, {entry.c_str()}).isOk()) << entry;
        EXPECT_EQ(loader.provenance(key.name), "environment " + name);
    }
}

// --- layers ----------------------------------------------------------------------------------------------------

TEST(ConfigLoader, LaterLayersWin) {
    ConfigLoader loader;
    ASSERT_TRUE(loadJson(loader, R"({"tcp.lanes": 2, "data_loops": 2, "retry_count": 2})").isOk());
    ASSERT_TRUE(loadEnvironment(loader, {"TROUPE_TCP_LANES=3", "TROUPE_DATA_LOOPS=3"}).isOk());
    ASSERT_TRUE(loader.set("tcp.lanes", "4").isOk());
    EXPECT_EQ(loader.config().tcp_lanes, 4u);
    EXPECT_EQ(loader.config().data_loops, 3u);
    EXPECT_EQ(loader.config().retry_count, 2u);
    EXPECT_EQ(loader.provenance("tcp.lanes"), "code");
    EXPECT_EQ(loader.provenance("data_loops"), "environment TROUPE_DATA_LOOPS");
    EXPECT_EQ(loader.provenance("retry_count"), "file a.json");
    EXPECT_EQ(loader.provenance("spin"), "default");
    EXPECT_EQ(loader.provenance("no.such.key"), "");
}

TEST(ConfigLoader, NamesTheOriginOfAValueSetByHand) {
    ConfigLoader loader;
    EXPECT_THAT(loader.set("tcp.lanes", "0", "option --lanes").message(), HasSubstr("option --lanes"));
    EXPECT_THAT(loader.set("tcp.lains", "1").message(), HasSubstr("'tcp.lanes'"));
    ASSERT_TRUE(loader.set("tcp.lanes", "2", "option --lanes").isOk());
    EXPECT_EQ(loader.provenance("tcp.lanes"), "option --lanes");
}

// --- values that hinder each other ----------------------------------------------------------------------------

TEST(CheckConfig, TakesTheDefaults) { EXPECT_TRUE(checkConfig(Config())) << checkConfig(Config()).toString(); }

TEST(CheckConfig, OfTwoValuesThatHinderEachOtherNamesBothAndWhatToChange) {
    const struct {
        std::vector<std::pair<const char*, const char*>> settings;
        std::vector<std::string> said;  ///< Empty: they go together.
    } cases[] = {
        {{{"peer.tcp_bytes", "1MiB"}},
         {"peer.tcp_bytes 1MiB", "tcp.window_bytes 8MiB", "raise peer.tcp_bytes, or lower"}},
        {{{"peer.tcp_bytes", "8MiB"}}, {}},
        {{{"peer.tcp_bytes", "1MiB"}, {"tcp.window_bytes", "1MiB"}}, {}},
        // A Nic has at least one slice in flight.
        {{{"peer.tcp_bytes", "8MiB"}, {"slice_bytes", "16MiB"}}, {"peer.tcp_bytes 8MiB", "slice_bytes 16MiB"}},
        {{{"peer.tcp_bytes", "256MiB"}, {"slice_bytes", "1GiB"}}, {}},
        {{{"tcp.window_bytes", "8GiB"}}, {"peer.tcp_bytes 4GiB", "tcp.window_bytes 8GiB"}},
        {{{"tcp.lanes", "4"}, {"peer.tcp_connections", "3"}}, {"peer.tcp_connections 3", "tcp.lanes 4"}},
        {{{"tcp.lanes", "4"}, {"tcp.max_connections", "3"}}, {"tcp.max_connections 3", "tcp.lanes 4"}},
        {{{"tcp.lanes", "4"}, {"tcp.max_connections", "4"}}, {}},
        {{{"rdma.lanes", "4"}, {"peer.rdma_connections", "3"}}, {"peer.rdma_connections 3", "rdma.lanes 4"}},
        {{{"rdma.lanes", "4"}, {"rdma.max_connections", "3"}}, {"rdma.max_connections 3", "rdma.lanes 4"}},
        {{{"rdma.lanes", "4"}, {"rdma.max_endpoints", "3"}}, {"rdma.max_endpoints 3", "rdma.lanes 4"}},
        {{{"keepalive_interval", "5s"}}, {"keepalive_timeout 3s", "keepalive_interval 5s"}},
        {{{"keepalive_interval", "3s"}}, {"keepalive_timeout 3s", "keepalive_interval 3s"}},
        {{{"tcp.port", "65535"}, {"data_loops", "2"}}, {"tcp.port 65535", "data_loops 2", "tcp.port 65534 or less"}},
        {{{"tcp.port", "65534"}, {"data_loops", "2"}}, {}},
        {{{"tcp.port", "65535"}, {"data_loops", "1"}}, {}},
        {{{"faults.remote", "on"}}, {"faults.remote", "faults.enabled", "set both, or neither"}},
        {{{"faults.remote", "on"}, {"faults.enabled", "on"}}, {}},
    };
    for (const auto& one : cases) {
        ConfigLoader loader;
        std::string given;
        for (const auto& [name, value] : one.settings) {
            ASSERT_TRUE(loader.set(name, value)) << name;
            given += std::string(name) + "=" + value + " ";
        }
        const Status sound = checkConfig(loader.config());
        EXPECT_EQ(sound.code(), one.said.empty() ? Code::Ok : Code::InvalidArgument) << given << sound.toString();
        for (const std::string& part : one.said) EXPECT_THAT(sound.message(), HasSubstr(part)) << given;
    }
}

TEST(CheckConfig, CountsTheLoopsThatThereWillBe) {
    Config config;
    config.data_loops = 7;
    EXPECT_EQ(dataLoopCount(config), 7u);
    config.data_loops = 0;
    EXPECT_GE(dataLoopCount(config), 1u);
    EXPECT_LE(dataLoopCount(config), 4u);
    config.tcp_port = 65536 - dataLoopCount(config);
    EXPECT_TRUE(checkConfig(config)) << checkConfig(config).toString();
}

TEST(ConfigLoader, TakesABufferOfASocketThatHoldsASegmentOrNone) {
    ConfigLoader loader;
    EXPECT_THAT(loader.set("tcp.socket_buffer", "4KiB").message(), HasSubstr("'4KiB' is not in 0, 64KiB..1GiB"));
    EXPECT_TRUE(loader.set("tcp.socket_buffer", "64KiB"));
    EXPECT_TRUE(loader.set("tcp.socket_buffer", "0"));
}

TEST(ConfigLoader, OfAMalformedEntryForADeviceNamesThePieceThatIsWrong) {
    ConfigLoader loader;
    const Status refused = loader.set("rdma.per_device", "mlx5_0 mtu=1024; mlx5_1 mtu=1", "--set");
    EXPECT_EQ(refused.code(), Code::InvalidArgument);
    EXPECT_THAT(refused.message(), AllOf(HasSubstr("--set: rdma.per_device: ' mlx5_1 mtu=1': 'mtu=1' is not in")));
    EXPECT_EQ(loader.config().rdma_per_device, "");
    EXPECT_TRUE(loader.set("rdma.per_device", "mlx5_0 mtu=1024; mlx5_1:2 traffic_class=106"));
    // By hand, too.
    Config config;
    config.rdma_per_device = "mlx5_0";
    EXPECT_THAT(checkConfig(config).message(), HasSubstr("rdma.per_device"));
}

// --- units -----------------------------------------------------------------------------------------------------

TEST(ParseBytes, KnowsPowersOf1024And1000) {
    EXPECT_EQ(*parseBytes("0"), 0u);
    EXPECT_EQ(*parseBytes("4096"), 4096u);
    EXPECT_EQ(*parseBytes("7B"), 7u);
    EXPECT_EQ(*parseBytes("64KiB"), 65536u);
    EXPECT_EQ(*parseBytes("1MiB"), 1u << 20);
    EXPECT_EQ(*parseBytes("2GiB"), 2ull << 30);
    EXPECT_EQ(*parseBytes("2 GiB"), 2ull << 30) << "as people write it";
    EXPECT_EQ(*parseBytes("1TiB"), 1ull << 40);
    EXPECT_EQ(*parseBytes("3K"), 3000u);
    EXPECT_EQ(*parseBytes("3KB"), 3000u);
    EXPECT_EQ(*parseBytes("3M"), 3'000'000u);
    EXPECT_EQ(*parseBytes("3MB"), 3'000'000u);
    EXPECT_EQ(*parseBytes("3G"), 3'000'000'000u);
    EXPECT_EQ(*parseBytes("3GB"), 3'000'000'000u);
    EXPECT_EQ(*parseBytes("3T"), 3'000'000'000'000u);
    EXPECT_EQ(*parseBytes("3TB"), 3'000'000'000'000u);
    EXPECT_EQ(*parseBytes("18446744073709551615"), UINT64_MAX);
}

TEST(ParseBytes, RefusesOverflowAndUnknownUnits) {
    EXPECT_THAT(parseBytes("16777216TiB").status().message(), HasSubstr("too large"));
    EXPECT_THAT(parseBytes("18446744073709551616").status().message(), HasSubstr("too large"));
    EXPECT_THAT(parseBytes("4kib").status().message(), AllOf(HasSubstr("'4kib'"), HasSubstr("KiB")));
    for (const char* text : {"", "KiB", "4  KiB", "4KiB ", "-4", "4KiBs", "4s", "4.5MiB"})
        EXPECT_EQ(parseBytes(text).status().code(), Code::InvalidArgument) << text;
}

TEST(ParseBytes, TakesEachUnitThatItsMessageNames) {
    std::string message = parseBytes("4Q").status().message();
    constexpr std::string_view kMark = "must be one of ";
    const auto at = message.find(kMark);
    ASSERT_NE(at, std::string::npos) << message;
    std::istringstream units(message.substr(at + kMark.size()));
    int count = 0;
    for (std::string unit; std::getline(units >> std::ws, unit, ','); ++count)
        EXPECT_TRUE(parseBytes("4" + unit)) << unit;
    EXPECT_GE(count, 13);
}

TEST(ParseTime, KnowsItsUnits) {
    EXPECT_EQ(*parseTime("0"), 0us);
    EXPECT_EQ(*parseTime("0s"), 0us);
    EXPECT_EQ(*parseTime("10us"), 10us);
    EXPECT_EQ(*parseTime("5ms"), 5ms);
    EXPECT_EQ(*parseTime("2s"), 2s);
    EXPECT_EQ(*parseTime("2 s"), 2s);
    EXPECT_EQ(*parseTime("1min"), 60s);
    EXPECT_EQ(*parseTime("5m"), 300s);
    EXPECT_EQ(*parseTime("2h"), 7200s);
}

TEST(ParseTime, RefusesABareNumberOverflowAndUnknownUnits) {
    EXPECT_THAT(parseTime("5").status().message(), AllOf(HasSubstr("'5'"), HasSubstr("unit")));
    EXPECT_THAT(parseTime("9223372036854775807s").status().message(), HasSubstr("too large"));
    for (const char* text : {"", "s", "-1s", "1  s", "1M", "1S", "1sec", "1KiB"})
        EXPECT_EQ(parseTime(text).status().code(), Code::InvalidArgument) << text;
}

}  // namespace
}  // namespace troupe
