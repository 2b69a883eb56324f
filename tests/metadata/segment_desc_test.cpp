#include "metadata/segment_desc.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include <nlohmann/json.hpp>

namespace troupe {
namespace {

SegmentDesc sample(std::size_t buffers = 3) {
    SegmentDesc desc;
    desc.name = "node7:7000";
    desc.protocol = "rdma";
    desc.devices = {{"mlx5_0", 3, "fe80::1"}, {"mlx5_1", 65535, ""}};
    for (std::size_t i = 0; i < buffers; ++i)
        desc.buffers.push_back({i % 2 == 0 ? "cpu:0" : "*",
                                0x7f0000000000 + i * 0x200000,
                                0x100000 + i,
                                {static_cast<std::uint32_t>(i), 0xffffffffu},
                                1000 + i,
                                i % 3 != 0,
                                static_cast<RdmaWrites>(i % 5 % 3)});
    desc.priority_matrix = {{"cpu:0", {{"mlx5_0"}, {"mlx5_1"}}}, {"cpu:1", {{"mlx5_1"}, {}}}};
    desc.tcp_data_port = 12001;
    desc.timestamp = "2026-01-31 12:00:00";
    desc.incarnation = *Incarnation::parse("00112233445566778899aabbccddeeff");
    desc.boot_id = "5f0c0c4e-33cb-4a6e-8f86-3f5b5d1e9f3c";
    desc.control = {"fe80::1%eth0", 7000};
    desc.transports = {"rdma", "tcp"};
    desc.lane_ports = {12001, 12002};
    desc.rdma_port = 12003;
    desc.rdma_chunk_bytes = 1u << 30;
    desc.version = UINT64_MAX;
    return desc;
}

nlohmann::json sampleJson() { return nlohmann::json::parse(encodeSegmentDesc(sample())); }

void expectRefused(const std::string& text, const std::string& names) {
    const auto decoded = decodeSegmentDesc(text);
    ASSERT_FALSE(decoded.isOk()) << "accepted, should name " << names;
    EXPECT_EQ(decoded.status().code(), Code::ProtocolError);
    EXPECT_NE(decoded.status().message().find(names), std::string::npos) << decoded.status().toString();
}

/// Sets the value at a JSON pointer and expects the decoder to name the field.
void expectRefusedWith(const std::string& pointer, const nlohmann::json& value, const std::string& names) {
    auto json = sampleJson();
    json[nlohmann::json::json_pointer(pointer)] = value;
    expectRefused(json.dump(), names);
}

TEST(SegmentDesc, SurvivesARoundTrip) {
    const SegmentDesc desc = sample();
    const auto decoded = decodeSegmentDesc(encodeSegmentDesc(desc));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == desc);
}

TEST(SegmentDesc, AnEmptyOneSurvivesARoundTrip) {
    SegmentDesc desc;
    desc.name = "x";
    desc.incarnation = Incarnation::random();
    const auto decoded = decodeSegmentDesc(encodeSegmentDesc(desc));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == desc);
}

TEST(SegmentDesc, IsWrittenInTheCommonSchema) {
    const auto json = sampleJson();
    EXPECT_EQ(json["name"], "node7:7000");
    EXPECT_EQ(json["devices"][0], (nlohmann::json{{"name", "mlx5_0"}, {"lid", 3}, {"gid", "fe80::1"}}));
    EXPECT_EQ(json["buffers"][1]["addr"], 0x7f0000200000);
    EXPECT_EQ(json["buffers"][1]["rkey"], (nlohmann::json{1, 0xffffffffu}));
    EXPECT_EQ(json["buffers"][1]["lkey"], (nlohmann::json{0, 0})) << "local keys have no meaning to others";
    EXPECT_EQ(json["priority_matrix"]["cpu:0"], (nlohmann::json{{"mlx5_0"}, {"mlx5_1"}}));
    EXPECT_EQ(json["tcp_data_port"], 12001);
    EXPECT_EQ(json["troupe"]["control"], "[fe80::1%eth0]:7000");
    EXPECT_EQ(json["troupe"]["buffers"], (nlohmann::json{{1000, 0}, {1001, 3}, {1002, 5}}));
}

TEST(SegmentDesc, ABufferOfSeveralChunksHasAKeyForEachAndDevice) {
    SegmentDesc desc = sample();
    desc.rdma_chunk_bytes = 0x80000;
    for (auto& buffer : desc.buffers) buffer.rkeys.resize(2 * ((buffer.length - 1) / 0x80000 + 1));
    ASSERT_EQ(desc.buffers[0].rkeys.size(), 4u);
    ASSERT_EQ(desc.buffers[1].rkeys.size(), 6u) << "one byte into the third";
    const auto decoded = decodeSegmentDesc(encodeSegmentDesc(desc));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == desc);
    desc.buffers[1].rkeys.pop_back();
    expectRefused(encodeSegmentDesc(desc), "buffers[1].rkey");
    // Chunks without end, of a buffer without end: refused, not computed.
    desc.buffers[1].length = UINT64_MAX - desc.buffers[1].addr;
    desc.rdma_chunk_bytes = 1;
    expectRefused(encodeSegmentDesc(desc), "buffers[0].rkey");
}

TEST(SegmentDesc, StringsAreEscaped) {
    SegmentDesc desc = sample();
    desc.name = "quote\" back\\ slash/ tab\t nul";
    desc.name.push_back('\0');
    desc.name += " \x7f umlaut \u00fc brace {";
    desc.priority_matrix = {{"a\"b\\", {{"c\n"}, {}}}};
    desc.transports = {"{", "\"", ""};
    const auto decoded = decodeSegmentDesc(encodeSegmentDesc(desc));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == desc);
}

TEST(SegmentDesc, BytesThatAreNoUtf8AreReplacedAndStillDecode) {
    SegmentDesc desc = sample();
    desc.name = "bad \xff name";
    desc.priority_matrix = {{"bad \xfe", {{"\xc3"}, {}}}};
    const auto decoded = decodeSegmentDesc(encodeSegmentDesc(desc));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_EQ(decoded->name, "bad \xef\xbf\xbd name");
}

TEST(SegmentDesc, ADescriptorOfAnotherEngineHasANullIncarnation) {
    const auto decoded = decodeSegmentDesc(
        R"({"name":"a","protocol":"tcp","buffers":[{"name":"cpu:0","addr":4096,"length":10}],"extra":{"x":[1]}})");
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(decoded->incarnation.isNull());
    EXPECT_EQ(decoded->buffers.size(), 1u);
}

TEST(SegmentDesc, UnknownFieldsAreIgnoredAtEveryLevel) {
    auto json = sampleJson();
    const nlohmann::json odd = {{"name", 5}, {"addr", nullptr}, {"list", {1, "x", {{"k", -1.5}}, true}}};
    json["odd"] = odd;
    json["devices"][0]["odd"] = odd;
    json["buffers"][0]["odd"] = odd;
    json["buffers"][0]["lkey"] = odd;
    json["troupe"]["odd"] = odd;
    json["odd2"] = nullptr;
    const auto decoded = decodeSegmentDesc(json.dump());
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == sample());
}

TEST(SegmentDesc, TheOrderOfFieldsDoesNotMatter) {
    // The parser of the reference sorts keys, so "troupe" is put first by hand.
    auto json = sampleJson();
    const std::string troupe = json["troupe"].dump();
    json.erase("troupe");
    const auto decoded = decodeSegmentDesc("{\"troupe\":" + troupe + "," + json.dump().substr(1));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == sample());
}

TEST(SegmentDesc, MissingFieldsAreNamed) {
    const std::pair<const char*, const char*> cases[] = {
        {"/name", " name is missing"},
        {"/protocol", "protocol is missing"},
        {"/buffers", " buffers is missing"},
        {"/devices/1/name", "devices[1].name is missing"},
        {"/buffers/2/name", "buffers[2].name is missing"},
        {"/buffers/2/addr", "buffers[2].addr is missing"},
        {"/buffers/2/length", "buffers[2].length is missing"},
        {"/troupe/incarnation", "troupe.incarnation is missing"},
        {"/troupe/boot_id", "troupe.boot_id is missing"},
        {"/troupe/control", "troupe.control is missing"},
        {"/troupe/transports", "troupe.transports is missing"},
        {"/troupe/lane_ports", "troupe.lane_ports is missing"},
        {"/troupe/version", "troupe.version is missing"},
        {"/troupe/buffers", "troupe.buffers is missing"},
    };
    for (const auto& [pointer, names] : cases) {
        auto json = sampleJson();
        const nlohmann::json::json_pointer where(pointer);
        json[where.parent_pointer()].erase(where.back());
        expectRefused(json.dump(), names);
    }
}

TEST(SegmentDesc, WrongTypesAreNamed) {
    const char* fields[] = {"/name",
                            "/protocol",
                            "/devices",
                            "/devices/0/name",
                            "/devices/0/lid",
                            "/devices/0/gid",
                            "/buffers",
                            "/buffers/1/name",
                            "/buffers/1/addr",
                            "/buffers/1/length",
                            "/buffers/1/rkey",
                            "/priority_matrix",
                            "/tcp_data_port",
                            "/timestamp",
                            "/troupe",
                            "/troupe/incarnation",
                            "/troupe/boot_id",
                            "/troupe/control",
                            "/troupe/transports",
                            "/troupe/lane_ports",
                            "/troupe/version",
                            "/troupe/buffers"};
    const nlohmann::json objects = {{"x", 1}};
    for (const auto* field : fields) {
        const std::string name = nlohmann::json::json_pointer(field).back();
        for (const auto& value :
             {nlohmann::json(nullptr), nlohmann::json(true), nlohmann::json(-1), nlohmann::json(1.5)})
            expectRefusedWith(field, value, name);
        const auto original = sampleJson()[nlohmann::json::json_pointer(field)];
        if (!original.is_string()) expectRefusedWith(field, "text", name);
        if (!original.is_number()) expectRefusedWith(field, 7, name);
        if (!original.is_array()) expectRefusedWith(field, {1, 2}, name);
        if (!original.is_object()) expectRefusedWith(field, objects, name);
    }
}

TEST(SegmentDesc, WrongElementsAreNamed) {
    for (const auto& value : {nlohmann::json(nullptr), nlohmann::json(false), nlohmann::json(-1), nlohmann::json(0.5),
                              nlohmann::json::array(), nlohmann::json::object()}) {
        expectRefusedWith("/buffers/0/rkey/1", value, "buffers[0].rkey");
        expectRefusedWith("/troupe/transports/0", value, "troupe.transports");
        expectRefusedWith("/troupe/lane_ports/1", value, "troupe.lane_ports");
        expectRefusedWith("/troupe/buffers/1/0", value, "troupe.buffers");
        expectRefusedWith("/priority_matrix/cpu:0/0/0", value, "priority_matrix");
        if (!value.is_object()) {
            expectRefusedWith("/buffers/0", value, "buffers");
            expectRefusedWith("/devices/0", value, "devices");
        }
        if (!value.is_array()) {
            expectRefusedWith("/troupe/buffers/0", value, "troupe.buffers");
            expectRefusedWith("/priority_matrix/cpu:0", value, "priority_matrix");
            expectRefusedWith("/priority_matrix/cpu:0/0", value, "priority_matrix");
        }
    }
}

TEST(SegmentDesc, AbsurdValuesAreNamed) {
    expectRefusedWith("/name", "", "name is empty");
    expectRefusedWith("/name", std::string(1025, 'n'), "name has 1025 bytes");
    expectRefusedWith("/buffers/0/length", 0, "buffers[0].length is 0");
    expectRefusedWith("/buffers/1/addr", UINT64_MAX, "buffers[1].length makes the range wrap");
    expectRefusedWith("/buffers/1/length", UINT64_MAX, "wrap");
    expectRefusedWith("/buffers/0/rkey/0", 1ull << 32, "buffers[0].rkey");
    expectRefusedWith("/buffers/0/rkey", {1}, "buffers[0].rkey has 1 entries for 2 devices");
    expectRefusedWith("/devices/0/lid", 65536, "devices[0].lid");
    expectRefusedWith("/devices/0/gid", std::string(1000, 'g'), "devices[0].gid");
    expectRefusedWith("/tcp_data_port", 65536, "tcp_data_port");
    expectRefusedWith("/troupe/lane_ports/0", 65536, "troupe.lane_ports");
    expectRefusedWith("/troupe/lane_ports/0", 0, "troupe.lane_ports");
    expectRefusedWith("/troupe/lane_ports", std::vector<int>(2000, 1), "troupe.lane_ports");
    expectRefusedWith("/troupe/transports", std::vector<std::string>(65, "t"), "troupe.transports");
    expectRefusedWith("/troupe/control", "host:99999", "troupe.control");
    expectRefusedWith("/troupe/control", "host\x1b[2J:1", "troupe.control holds what cannot be printed");
    expectRefusedWith("/troupe/host_socket", "a\nb", "troupe.host_socket holds what cannot be printed");
    expectRefusedWith("/troupe/incarnation", "zz", "troupe.incarnation");
    expectRefusedWith("/troupe/incarnation", std::string(32, '0'), "troupe.incarnation");
    expectRefusedWith("/troupe/buffers", nlohmann::json::array(), "troupe.buffers has 0 entries for 3");
    expectRefusedWith("/troupe/buffers/0", {1}, "troupe.buffers[0] is not a pair");
    expectRefusedWith("/troupe/buffers/0", {1, 1, 1}, "troupe.buffers[0] is not a pair");
    expectRefusedWith("/troupe/buffers/2", {1, 6}, "troupe.buffers[2] says 6");
    expectRefusedWith("/priority_matrix/cpu:0", {{"a"}}, "two lists");
    expectRefusedWith("/priority_matrix/cpu:0", {{"a"}, {"b"}, {"c"}}, "two lists");
    expectRefusedWith("/priority_matrix/cpu:0", {{"a"}, {"b", ""}}, "priority_matrix has a device without a name");
}

TEST(SegmentDesc, FieldsThatStandTwiceAreRefused) {
    const std::string text = encodeSegmentDesc(sample());
    expectRefused("{\"name\":\"first\"," + text.substr(1), "name stands twice");
    expectRefused(R"({"name":"a","protocol":"tcp","buffers":[{"name":"*","addr":1,"addr":2,"length":1}]})",
                  "buffers[0].addr stands twice");
    expectRefused(R"({"name":"a","protocol":"tcp","buffers":[],"priority_matrix":{"c":[[],[]],"c":[[],[]]}})",
                  "priority_matrix has 'c' twice");
    expectRefused(R"({"name":"a","protocol":"tcp","buffers":[],"priority_matrix":{"\n":[[],[]],"\n":[[],[]]}})",
                  "priority_matrix has '?' twice");
    expectRefused(R"({"name":"a","protocol":"tcp","buffers":[],"troupe":{"version":1,"version":1}})",
                  "troupe.version stands twice");
}

TEST(SegmentDesc, TextThatIsNoObjectIsRefused) {
    for (const auto* text : {"", " ", "null", "7", "\"x\"", "[]", "[{}]", "{", "{}x", "{\"name\":\"a\"", "\xef\xbb"})
        EXPECT_EQ(decodeSegmentDesc(text).status().code(), Code::ProtocolError) << text;
}

TEST(SegmentDesc, WhatFollowsANulByteIsNotOverlooked) {
    const std::string good = R"({"name":"a","protocol":"tcp","buffers":[]})";
    ASSERT_TRUE(decodeSegmentDesc(good));
    for (const std::string& rest : {std::string(1, '\0'), std::string("\0{}", 3)})
        EXPECT_EQ(decodeSegmentDesc(good + rest).status().code(), Code::ProtocolError);
}

TEST(SegmentDesc, DeepNestingIsRefusedWithoutRecursion) {
    for (const std::string open : {"[", "{\"a\":"}) {
        std::string text = "{\"unknown\":";
        for (int i = 0; i < 1'000'000; ++i) text += open;
        expectRefused(text, "deep");
    }
}

TEST(SegmentDesc, MegabytesOfGarbageAreRefused) {
    std::mt19937_64 random(1);
    std::string noise(10u << 20, ' ');
    for (auto& byte : noise) byte = static_cast<char>(random());
    EXPECT_EQ(decodeSegmentDesc(noise).status().code(), Code::ProtocolError);
    EXPECT_EQ(decodeSegmentDesc("{\"x\":\"" + noise).status().code(), Code::ProtocolError);
    EXPECT_EQ(decodeSegmentDesc(std::string(10u << 20, '{')).status().code(), Code::ProtocolError);
    EXPECT_EQ(decodeSegmentDesc("{\"x\":\"" + std::string(10u << 20, 'a')).status().code(), Code::ProtocolError);
    EXPECT_EQ(decodeSegmentDesc("{\"name\":\"" + std::string(10u << 20, 'a') + "\"}").status().code(),
              Code::ProtocolError);
    EXPECT_EQ(decodeSegmentDesc("{\"x\":" + std::string(10u << 20, '1') + "}").status().code(), Code::ProtocolError);
}

TEST(SegmentDesc, MegabytesOfWellFormedPaddingAreRefusedWithTheSizes) {
    constexpr std::size_t kMuch = 10u << 20;
    const std::string text = encodeSegmentDesc(sample());
    const auto with = [&](const std::string& member) { return "{" + member + "," + text.substr(1); };
    std::string members;
    for (int i = 0; members.size() < kMuch; ++i) members += "\"m" + std::to_string(i) + "\":[{}],";
    members.pop_back();
    std::string numbers = "[0";
    while (numbers.size() < kMuch) numbers += ",0";
    std::string in_a_buffer = text;
    in_a_buffer.insert(in_a_buffer.find("\"lkey\":[") + 8, numbers.substr(1) + ",");
    const std::string padded[] = {with("\"x\":\"" + std::string(kMuch, 'a') + "\""), with("\"x\":" + numbers + "]"),
                                  with(members), text.substr(0, 1) + std::string(kMuch, ' ') + text.substr(1),
                                  in_a_buffer};
    for (const std::string& each : padded) {
        ASSERT_TRUE(nlohmann::json::accept(each)) << each.substr(0, 200);
        expectRefused(each, "the text has " + std::to_string(each.size()) + " bytes, more than ");
        expectRefused(each, " for what it says of 3 buffers and 2 devices");
    }
    // What another engine may add to each of its regions is no padding.
    SegmentDesc many = sample(10'000);
    auto json = nlohmann::json::parse(encodeSegmentDesc(many));
    for (auto& buffer : json["buffers"]) buffer["shm_name"] = std::string(100, 's');
    const auto decoded = decodeSegmentDesc(json.dump(4));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == many);
}

TEST(SegmentDesc, WhateverIsEncodedHasRoom) {
    // 10,000 regions of four chunks by four devices, and texts of which each byte takes six.
    SegmentDesc desc = sample(0);
    const std::string odd(250, '\x01');
    desc.devices = {{odd, 1, odd}, {"b", 2, odd}, {"c", 3, odd}, {"d", 4, odd}};
    desc.rdma_chunk_bytes = 1u << 20;
    for (std::uint64_t i = 0; i < 10'000; ++i)
        desc.buffers.push_back({i % 100 == 0 ? odd : "cpu:0", i << 32, 4u << 20,
                                std::vector<std::uint32_t>(16, UINT32_MAX), UINT64_MAX, true});
    for (int i = 0; i < 100; ++i)
        desc.priority_matrix[odd + std::to_string(i)] = {std::vector<std::string>(10, odd), {odd}};
    desc.transports.assign(64, odd);
    desc.lane_ports.assign(1024, 65535);
    desc.name.assign(1024, '\x01');
    const auto decoded = decodeSegmentDesc(encodeSegmentDesc(desc));
    ASSERT_TRUE(decoded.isOk()) << decoded.status().toString();
    EXPECT_TRUE(*decoded == desc);
}

TEST(SegmentDesc, MoreThanTheBoundOfBuffersIsRefused) {
    std::string text = R"({"name":"a","protocol":"tcp","buffers":[)";
    for (std::size_t i = 0; i <= kMaxBuffers; ++i) text += R"({"name":"","addr":1,"length":1},)";
    expectRefused(text, "buffers has more than 1000000");
}

TEST(SegmentDesc, TheNamesOfTheWholeMatrixAreBounded) {
    SegmentDesc desc = sample(0);
    for (int i = 0; i < 64; ++i) desc.priority_matrix["cuda:" + std::to_string(i)].second.assign(1024, "d");
    desc.priority_matrix.erase("cpu:0");
    desc.priority_matrix.erase("cpu:1");
    const auto most = decodeSegmentDesc(encodeSegmentDesc(desc));
    ASSERT_TRUE(most.isOk()) << most.status().toString();
    EXPECT_TRUE(*most == desc);
    desc.priority_matrix["cpu:0"].first.assign(1, "d");
    expectRefused(encodeSegmentDesc(desc), "priority_matrix has more than 65536 names of devices");
}

TEST(SegmentDesc, DamagedTextNeverCrashes) {
    std::mt19937_64 random(20260131);
    const std::string good = encodeSegmentDesc(sample());
    const std::string tokens[] = {"{", "}", "[", "]", ",", ":", "\"", "null", "-1", "1e999", "0", "\\u0000", "true"};
    for (int round = 0; round < 20000; ++round) {
        std::string text = good;
        for (std::uint64_t i = 0; i <= random() % 4; ++i) {
            const auto at = random() % text.size();
            switch (random() % 4) {
                case 0: text[at] = static_cast<char>(random()); break;
                case 1: text.erase(at, 1 + random() % 20); break;
                case 2: text.insert(at, tokens[random() % std::size(tokens)]); break;
                default: text.insert(at, text.substr(random() % text.size(), random() % 60)); break;
            }
            if (text.empty()) text = "{";
        }
        const auto decoded = decodeSegmentDesc(text);
        if (!decoded.isOk()) {
            EXPECT_EQ(decoded.status().code(), Code::ProtocolError);
            continue;
        }
        // What is accepted is a descriptor that says the same when it is passed on.
        const auto again = decodeSegmentDesc(encodeSegmentDesc(*decoded));
        if (!decoded->incarnation.isNull()) {
            ASSERT_TRUE(again.isOk()) << again.status().toString();
            EXPECT_TRUE(*again == *decoded);
        }
    }
}

TEST(SegmentDesc, TenThousandBuffersSurviveARoundTrip) {
    SegmentDesc desc = sample(10000);
    std::string text;
    auto best_encode = std::chrono::nanoseconds::max(), best_decode = best_encode;
    for (int round = 0; round < 5; ++round) {
        const auto start = std::chrono::steady_clock::now();
        text = encodeSegmentDesc(desc);
        const auto middle = std::chrono::steady_clock::now();
        const auto decoded = decodeSegmentDesc(text);
        const auto end = std::chrono::steady_clock::now();
        ASSERT_TRUE(decoded.isOk());
        EXPECT_TRUE(*decoded == desc);
        best_encode = std::min<std::chrono::nanoseconds>(best_encode, middle - start);
        best_decode = std::min<std::chrono::nanoseconds>(best_decode, end - middle);
    }
    // Recorded, not asserted: time depends on the machine.
    RecordProperty("encode_us", static_cast<int>(best_encode.count() / 1000));
    RecordProperty("decode_us", static_cast<int>(best_decode.count() / 1000));
    RecordProperty("bytes", static_cast<int>(text.size()));
}

TEST(RecordHead, IsReadFromTheBeginningOfEveryRecord) {
    SegmentDesc desc;
    desc.name = std::string(kMaxSegmentName, '"');
    desc.incarnation = Incarnation::random();
    for (const std::uint64_t version : {std::uint64_t{0}, std::uint64_t{7}, UINT64_MAX}) {
        desc.version = version;
        const auto head = decodeRecordHead(std::string_view(encodeSegmentDesc(desc)).substr(0, kRecordHeadBytes));
        ASSERT_TRUE(head) << head.status().toString();
        EXPECT_EQ(*head, (RecordHead{desc.incarnation, version}));
    }
}

TEST(RecordHead, WhatTroupeDidNotWriteIsRefused) {
    SegmentDesc desc;
    desc.name = "a";
    const std::string foreign = encodeSegmentDesc(desc);
    desc.incarnation = Incarnation::random();
    const std::string own = encodeSegmentDesc(desc);
    for (const std::string& head : {std::string(), foreign, std::string("{\"troupe\":{}}"), own.substr(0, 40),
                                    own.substr(0, own.find("\"version\":") + 11), " " + own})
        EXPECT_EQ(decodeRecordHead(head).status().code(), Code::ProtocolError) << head;
}

}  // namespace
}  // namespace troupe
