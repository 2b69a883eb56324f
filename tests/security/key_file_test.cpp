#include "security/key_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "security/cluster_auth.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

class KeyFile : public testing::Test {
  protected:
    KeyFile() {
        std::string name = (std::filesystem::temp_directory_path() / "troupe_key_XXXXXX").string();
        EXPECT_NE(::mkdtemp(name.data()), nullptr);
        directory_ = name;
    }
    ~KeyFile() override { std::filesystem::remove_all(directory_); }

    std::string file(const std::string& text, mode_t mode = 0600) {
        const std::string path = directory_ + "/key";
        ::unlink(path.c_str());
        std::ofstream(path) << text;
        EXPECT_EQ(::chmod(path.c_str(), mode), 0);
        return path;
    }

    std::string directory_;
};

TEST_F(KeyFile, IsItsFirstLine) {
    EXPECT_EQ(*readKeyFile(file("secret\n"), 100), "secret");
    EXPECT_EQ(*readKeyFile(file("secret\r\nmore\n"), 100), "secret");
    EXPECT_EQ(*readKeyFile(file("secret"), 6), "secret");
}

TEST_F(KeyFile, ThatOthersMayReadOrWriteIsRefused) {
    for (const mode_t mode : {0604, 0602, 0644, 0666, 0620, 0660, 0777}) {
        const auto read = readKeyFile(file("secret\n", mode), 100);
        ASSERT_FALSE(read) << std::oct << mode;
        EXPECT_EQ(read.status().code(), Code::InvalidArgument);
        EXPECT_THAT(read.status().message(),
                    testing::AllOf(HasSubstr("chmod 600"), HasSubstr(directory_), testing::Not(HasSubstr("secret\n"))));
    }
    for (const mode_t mode : {0600, 0400, 0700}) EXPECT_TRUE(readKeyFile(file("secret\n", mode), 100)) << mode;
}

TEST_F(KeyFile, OfRootMayBeReadByItsGroupAndOfOthersNot) {
    const std::string path = file("secret\n", 0440);
    EXPECT_EQ(readKeyFile(path, 100).isOk(), ::geteuid() == 0);
    if (::geteuid() != 0) return;
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
    EXPECT_THAT(readKeyFile(path, 100).status().message(), HasSubstr("another user"));
}

TEST_F(KeyFile, ThatCannotBeOneIsNamed) {
    EXPECT_THAT(readKeyFile(directory_ + "/none", 100).status().message(), HasSubstr("No such file"));
    EXPECT_THAT(readKeyFile(directory_, 100).status().message(), HasSubstr("no regular file"));
    EXPECT_THAT(readKeyFile(file("\nsecond line\n"), 100).status().message(), HasSubstr("first line is empty"));
    EXPECT_THAT(readKeyFile(file(""), 100).status().message(), HasSubstr("first line is empty"));
    EXPECT_THAT(readKeyFile(file("1234567"), 6).status().message(), HasSubstr("more than 6 bytes"));
    const std::string pipe = directory_ + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    // Nobody writes to it: opening it must not wait.
    EXPECT_THAT(readKeyFile(pipe, 100).status().message(), HasSubstr("no regular file"));
}

TEST_F(KeyFile, IsReadForTheSettingsThatNameIt) {
    Config config;
    config.auth_key_file = file("0123456789abcdef0123456789abcdef\n");
    const auto auth = ClusterAuth::load(config);
    ASSERT_TRUE(auth) << auth.status().toString();
    EXPECT_TRUE((*auth)->hasKey());
    config.auth_key_file = file("short\n");
    EXPECT_THAT(ClusterAuth::load(config).status().message(), HasSubstr("5 bytes"));
    config.auth_key_file = file(std::string(64, 'x'), 0644);
    EXPECT_THAT(ClusterAuth::load(config).status().message(), HasSubstr("auth.key_file: '"));
}

}  // namespace
}  // namespace troupe::test
