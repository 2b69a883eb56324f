#include "base/small_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace troupe {
namespace {

using testing::HasSubstr;

class SmallFile : public testing::Test {
  protected:
    void TearDown() override { std::filesystem::remove(path_); }
    void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }
    /// What both say of `path`.
    static void expectRefused(const std::string& path, const std::string& why) {
        for (const Status& refused : {readSmallFile(path, 8).status(), readFirstLine(path, 8).status()}) {
            EXPECT_EQ(refused.code(), Code::InvalidArgument);
            EXPECT_THAT(refused.message(), HasSubstr(why));
        }
    }

    const std::string path_ = testing::TempDir() + "troupe_small_file_" + std::to_string(::getpid());
};

TEST_F(SmallFile, IsReadWhole) {
    for (const std::string text : {"", "a\n", "12345678"}) {
        write(text);
        const auto read = readSmallFile(path_, 8);
        ASSERT_TRUE(read) << read.status().toString();
        EXPECT_EQ(*read, text);
    }
}

TEST_F(SmallFile, SaysWhatIsWrongWithIt) {
    expectRefused("/nonexistent/file", "No such file");
    expectRefused(testing::TempDir(), "it is a directory");
    write("123456789");
    expectRefused(path_, "has more than 8");
    if (::geteuid() == 0) return;  // Whom nothing is forbidden.
    std::filesystem::permissions(path_, std::filesystem::perms::none);
    expectRefused(path_, "Permission denied");
}

TEST_F(SmallFile, ItsFirstLineIsWithoutItsEnd) {
    for (const std::string text : {"12345678", "12345678\n", "12345678\r\n", "12345678\nand more of it\n"}) {
        write(text);
        const auto line = readFirstLine(path_, 8);
        ASSERT_TRUE(line) << line.status().toString();
        EXPECT_EQ(*line, "12345678");
    }
    for (const std::string text : {"", "\n", "\r\n", "\nsecond"}) {
        write(text);
        EXPECT_THAT(readFirstLine(path_, 8).status().message(), HasSubstr("first line is empty"));
    }
}

TEST_F(SmallFile, APipeIsReadToItsEndAndOneWithoutAWriterIsAtIt) {
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    EXPECT_THAT(readFirstLine(path_, 8).status().message(), HasSubstr("first line is empty"));
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const std::string reading = "/dev/fd/" + std::to_string(ends[0]);
    std::thread writer([&] {
        EXPECT_EQ(::write(ends[1], "1234", 4), 4);
        // The reader has to wait for more, and not take this for all.
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        EXPECT_EQ(::write(ends[1], "5678", 4), 4);
        ::close(ends[1]);
    });
    const auto text = readSmallFile(reading, 8);
    writer.join();
    ::close(ends[0]);
    ASSERT_TRUE(text) << text.status().toString();
    EXPECT_EQ(*text, "12345678");
}

}  // namespace
}  // namespace troupe
