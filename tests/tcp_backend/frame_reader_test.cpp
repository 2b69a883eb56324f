#include "tcp_backend/frame_reader.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace troupe::tcp {
namespace {

/// Frames with an 8-byte header: length, then whether to keep the payload; 2: piece by piece, 3: the same, and what is
/// behind its first 1000 bytes is not wanted.
struct Collector {
    bool onHeader(const std::byte* header, Payload& next) {
        std::uint32_t length = 0;
        std::uint32_t keep = 0;
        std::memcpy(&length, header, 4);
        std::memcpy(&keep, header + 4, 4);
        if (keep > 3) return false;
        seen.clear();
        frames.emplace_back(keep ? length : 0);
        next = {keep == 1 ? frames.back().data() : nullptr, length, keep > 1};
        put = 0;
        wanted = keep == 3 ? 1000 : length;
        if (length == 0) ++complete;
        return true;
    }
    void onBytes(const std::byte* data, std::size_t size) { seen.insert(seen.end(), data, data + size); }
    void onPayload() {
        ++complete;
        if (!frames.back().empty() && wanted == frames.back().size()) {
            EXPECT_EQ(seen, frames.back());
        }
    }
    bool onFault() { return false; }
    Room roomFor(std::span<std::byte>& here) {
        if (put >= wanted) return Room::Drop;
        if (pieces == 0) return Room::Later;
        here = std::span(frames.back()).subspan(put, std::min({pieces, wanted - put, frames.back().size() - put}));
        return Room::Here;
    }
    void onStaged(std::size_t size) {
        put += size;
        pieces -= size;
        if (put >= wanted) seen.resize(wanted);
    }
    void onSilence() {
        ++silences;
        errno = ENOENT;  // As whatever it calls may leave it.
    }
    std::size_t headerRoom() const { return room; }

    std::vector<std::vector<std::byte>> frames;
    std::vector<std::byte> seen;
    std::size_t complete = 0;
    std::size_t room = SIZE_MAX;
    std::size_t put = 0;            ///< Of a payload that comes piece by piece.
    std::size_t wanted = 0;         ///< Of that.
    std::size_t pieces = SIZE_MAX;  ///< Bytes that there is room for.
    std::size_t silences = 0;
};

class FrameReaderTest : public ::testing::Test {
  protected:
    FrameReaderTest() {
        int fds[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
        out = UniqueFd(fds[0]);
        in = UniqueFd(fds[1]);
    }
    ReadEnd read(std::size_t budget = 1u << 20) {
        bool moved = false;
        return reader.read(in.get(), scratch, budget, collector, moved);
    }
    UniqueFd out;
    UniqueFd in;
    std::vector<std::byte> scratch = std::vector<std::byte>(32768);
    FrameReader<8> reader;
    Collector collector;
};

void frame(std::vector<std::byte>& stream, std::uint32_t length, std::uint32_t keep, std::mt19937& random) {
    std::byte header[8];
    std::memcpy(header, &length, 4);
    std::memcpy(header + 4, &keep, 4);
    stream.insert(stream.end(), header, header + 8);
    for (std::uint32_t i = 0; i < length; ++i) stream.push_back(static_cast<std::byte>(random()));
}

TEST_F(FrameReaderTest, CutsTheSameFramesHoweverTheBytesCome) {
    for (unsigned seed = 0; seed < 30; ++seed) {
        std::mt19937 random(seed);
        std::vector<std::byte> stream;
        std::vector<std::vector<std::byte>> expected;
        for (int i = 0; i < 60; ++i) {
            const std::uint32_t sizes[] = {0, 1, 100, 16383, 16384, 40000, 3};
            const std::uint32_t length = sizes[random() % 7];
            const std::uint32_t keep = random() % 4 != 0;
            const std::size_t before = stream.size() + 8;
            frame(stream, length, keep, random);
            expected.emplace_back(stream.begin() + static_cast<std::ptrdiff_t>(before),
                                  keep ? stream.end() : stream.begin() + static_cast<std::ptrdiff_t>(before));
        }
        collector = {};
        collector.room = seed % 3 == 0 ? 1 : SIZE_MAX;
        std::size_t sent = 0;
        while (collector.complete < 60) {
            const std::size_t most = seed % 2 ? 1 + random() % 30 : 1 + random() % 60000;
            if (sent < stream.size()) {
                const ssize_t size = ::write(out.get(), stream.data() + sent, std::min(most, stream.size() - sent));
                if (size > 0) sent += static_cast<std::size_t>(size);
            }
            const ReadEnd end = read(seed % 5 == 0 ? 100 : 1u << 20);
            ASSERT_TRUE(end == ReadEnd::Drained || end == ReadEnd::Budget);
        }
        EXPECT_EQ(collector.frames, expected) << seed;
    }
}

TEST_F(FrameReaderTest, StagedPayloadsWaitForRoomAndNoByteIsLost) {
    for (unsigned seed = 0; seed < 40; ++seed) {
        std::mt19937 random(seed);
        std::vector<std::byte> stream;
        std::vector<std::vector<std::byte>> expected;
        for (int i = 0; i < 60; ++i) {
            const std::uint32_t sizes[] = {1, 0, 100, 16383, 16384, 40000, 3};
            const std::uint32_t length = sizes[random() % 7];
            const std::uint32_t keep = random() % 4;
            const std::size_t before = stream.size() + 8;
            frame(stream, length, keep, random);
            expected.emplace_back(stream.begin() + static_cast<std::ptrdiff_t>(before), stream.end());
            if (keep == 0) expected.back().clear();
            if (keep == 3 && length > 1000)
                std::fill(expected.back().begin() + 1000, expected.back().end(), std::byte{});
        }
        collector = {};
        std::size_t sent = 0;
        std::size_t starved = 0;
        while (collector.complete < 60) {
            if (sent < stream.size()) {
                const std::size_t most = std::min<std::size_t>(1 + random() % 60000, stream.size() - sent);
                const ssize_t size = ::write(out.get(), stream.data() + sent, most);
                if (size > 0) sent += static_cast<std::size_t>(size);
            }
            collector.pieces = random() % 3 == 0 ? 0 : random() % 20000;
            const ReadEnd end = read(seed % 5 == 0 ? 100 : 1u << 20);
            ASSERT_TRUE(end == ReadEnd::Drained || end == ReadEnd::Budget || end == ReadEnd::Starved);
            if (end == ReadEnd::Starved) ++starved;
        }
        EXPECT_TRUE(collector.frames == expected) << seed;
        EXPECT_GT(starved, 0u);
    }
}

TEST_F(FrameReaderTest, WithoutRoomItStopsBetweenFrames) {
    std::mt19937 random(1);
    std::vector<std::byte> stream;
    for (int i = 0; i < 10; ++i) frame(stream, 0, 1, random);
    ASSERT_EQ(::write(out.get(), stream.data(), stream.size()), 80);
    collector.room = 3;
    bool moved = false;
    std::size_t budget = 1;
    EXPECT_EQ(reader.read(in.get(), scratch, budget, collector, moved), ReadEnd::Budget);
    EXPECT_EQ(collector.complete, 3u);
    collector.room = 0;
    EXPECT_EQ(read(), ReadEnd::Budget);
    EXPECT_EQ(collector.complete, 3u);
    collector.room = SIZE_MAX;
    EXPECT_EQ(read(), ReadEnd::Drained);
    EXPECT_EQ(collector.complete, 10u);
}

TEST_F(FrameReaderTest, SaysHowAStreamEnds) {
    EXPECT_EQ(read(), ReadEnd::Drained);
    const std::uint32_t bad[2] = {5, 7};
    ASSERT_EQ(::write(out.get(), bad, 8), 8);
    EXPECT_EQ(read(), ReadEnd::Violation);
    reader.reset();
    out.reset();
    EXPECT_EQ(read(), ReadEnd::Closed);
    in.reset();
    EXPECT_EQ(read(), ReadEnd::Failed);
    errno = ENOENT;
    EXPECT_EQ(reader.error(), EBADF);
}

TEST_F(FrameReaderTest, SaysHowAStreamEndsWithinAStagedPayload) {
    std::mt19937 random(1);
    std::vector<std::byte> stream;
    frame(stream, 100, 2, random);
    ASSERT_EQ(::write(out.get(), stream.data(), 50), 50);
    EXPECT_EQ(read(), ReadEnd::Drained);
    EXPECT_EQ(read(), ReadEnd::Drained);
    EXPECT_GT(collector.silences, 0u);
    in.reset();
    EXPECT_EQ(read(), ReadEnd::Failed);
    EXPECT_EQ(reader.error(), EBADF);
}

}  // namespace
}  // namespace troupe::tcp
