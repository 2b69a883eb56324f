// Memory that somebody else writes to: verify, bench and replay find it, say where and what, and fail.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/apps_process/troupe_process.h"
#include "tests/support/engine_pair.h"

namespace troupe::apps {
namespace {

/// A segment of this process, which writes over its own memory again and again, whatever peers keep there.
class Scribbler {
  public:
    static constexpr std::size_t kBytes = 1u << 20;
    static constexpr std::size_t kStride = 61;  ///< Between the bytes that it changes; not the period of anything else.
    static constexpr unsigned kInk = 0x5b;

    Scribbler() : memory_(kBytes), engine_(test::startEngine()) {
        const Status registered = engine_->registerLocalMemory(memory_.data(), memory_.size());
        EXPECT_TRUE(registered) << registered.toString();
        thread_ = std::thread([this] { scribble(); });
    }
    ~Scribbler() {
        stop_ = true;
        thread_.join();
    }
    Scribbler(const Scribbler&) = delete;
    Scribbler& operator=(const Scribbler&) = delete;

    std::string segment() const { return engine_->localSegmentName(); }
    bool writesTo(std::uint64_t address) const {
        return address >= memory_.address() && address < memory_.address(kBytes) &&
               (address - memory_.address()) % kStride == 0;
    }

  private:
    void scribble() {
        while (!stop_) {
            for (std::size_t at = 0; at < kBytes; at += kStride) {
                auto& byte = reinterpret_cast<unsigned char&>(memory_.data()[at]);
                std::atomic_ref(byte).store(kInk, std::memory_order_relaxed);
            }
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    }

    test::Buffer memory_;
    std::unique_ptr<TransferEngine> engine_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

/// What "MISMATCH at 0x7f..: expected 0x12, got 0x5b" says.
struct Said {
    std::uint64_t address = 0;
    unsigned expected = 0;
    unsigned got = 0;
};

std::optional<Said> mismatchIn(const std::string& text) {
    const auto at = text.find("MISMATCH at 0x");
    if (at == std::string::npos) return std::nullopt;
    unsigned long long address = 0;
    Said said;
    if (std::sscanf(text.c_str() + at, "MISMATCH at 0x%llx: expected 0x%2x, got 0x%2x;", &address, &said.expected,
                    &said.got) != 3)
        return std::nullopt;
    said.address = address;
    return said;
}

/// Runs the command with --json: it fails and tells people and programs of the same byte, one that was scribbled on.
Outcome expectMismatch(const Scribbler& scribbler, std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--transport", "tcp", "--json"});
    Outcome outcome = runTroupe(arguments);
    EXPECT_EQ(outcome.code, 1) << outcome.out << outcome.err;
    const auto said = mismatchIn(outcome.err);
    EXPECT_TRUE(said) << outcome.err;
    if (!said) return outcome;
    EXPECT_TRUE(scribbler.writesTo(said->address)) << outcome.err;
    EXPECT_EQ(said->got, Scribbler::kInk);
    EXPECT_NE(said->expected, said->got);
    const auto answer = outcome.json();
    EXPECT_EQ(answer.value("ok", true), false) << outcome.out;
    const auto error = answer.value("error", nlohmann::json::object());
    EXPECT_EQ(error.value("code", ""), "ChecksumMismatch") << outcome.out;
    const auto in_json = mismatchIn(error.value("message", ""));
    EXPECT_TRUE(in_json) << outcome.out;
    EXPECT_EQ(in_json.value_or(Said{}).address, said->address);
    EXPECT_THAT(error.value("try", ""), testing::HasSubstr("does anybody else write to that segment?"));
    return outcome;
}

TEST(Mismatch, EndsAVerifyThatHasNoOtherEnd) {
    const Scribbler scribbler;
    const auto outcome = expectMismatch(scribbler, {"verify", scribbler.segment(), "--max-size", "64KiB"});
    EXPECT_THAT(outcome.err, testing::HasSubstr("the first differing byte of operation"));
}

TEST(Mismatch, EndsABenchThatVerifies) {
    const Scribbler scribbler;
    // Contents are looked at between rows. Should nothing be scribbled just then, there is another row.
    std::string sizes = "4KiB";
    for (int i = 0; i < 200; ++i) sizes += ",4KiB";
    for (const char* operation : {"write", "read"}) {
        const auto outcome = expectMismatch(
            scribbler, {"bench", scribbler.segment(), "--verify", "--operation", operation, "--block_size", sizes,
                        "--footprint", "1MiB", "--duration", "10ms", "--warmup", "0"});
        EXPECT_THAT(outcome.err, testing::HasSubstr(std::string(operation) + " 4 KiB x 16"));
    }
}

TEST(Mismatch, EndsAReplayAtTheBlockThatWasFetched) {
    const Scribbler scribbler;
    const std::string path = testing::TempDir() + "troupe_scribbled_" + std::to_string(::getpid());
    {
        // One block, stored by the first request and fetched by the others, 50 ms apart.
        std::ofstream trace(path);
        for (int i = 0; i < 100; ++i)
            trace << R"({"timestamp": )" << 50 * i << R"(, "input_length": 1, "output_length": 1, "hash_ids": [7]})"
                  << "\n";
    }
    const auto outcome = expectMismatch(scribbler, {"replay", path, scribbler.segment(), "--bytes-per-token", "64"});
    ::unlink(path.c_str());
    EXPECT_THAT(outcome.err, testing::HasSubstr("byte of block 7 "));
    // What went well before is kept: the first request only stores.
    EXPECT_GE(outcome.json()["before"].value("requests", 0), 1) << outcome.out;
}

}  // namespace
}  // namespace troupe::apps
