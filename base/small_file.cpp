#include "base/small_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/config_units.h"
#include "base/unique_fd.h"

namespace troupe {

namespace {

Status refused(const std::string& why) { return {Code::InvalidArgument, why}; }

Status refused(int error) { return refused(std::generic_category().message(error)); }

// What a pipe's writer may take for the next bytes: a program that makes a secret, and not one that never comes.
constexpr int kPipePatienceMs = 5'000;

bool waitForPipe(int file) {
    pollfd wanted{file, POLLIN, 0};
    return ::poll(&wanted, 1, kPipePatienceMs) > 0;
}

/// At most `most` bytes of it.
Result<std::string> readUpTo(const std::string& path, std::size_t most) {
    // A pipe without a writer is at its end.
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    if (!file) return refused(errno);
    struct stat about {};
    if (::fstat(file.get(), &about) != 0) return refused(errno);
    if (S_ISDIR(about.st_mode)) return refused("it is a directory");
    std::string text(most, '\0');
    std::size_t have = 0;
    while (have < text.size()) {
        const ssize_t got = ::read(file.get(), text.data() + have, text.size() - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN && waitForPipe(file.get())) continue;
        if (got < 0 && errno == EAGAIN) return refused("it is a pipe out of which nothing came for 5 s");
        if (got < 0) return refused(errno);
        if (got == 0) break;
        have += static_cast<std::size_t>(got);
    }
    text.resize(have);
    return text;
}

}  // namespace

Result<std::string> readSmallFile(const std::string& path, std::size_t max_bytes) {
    auto text = readUpTo(path, max_bytes + 1);
    if (text && text->size() > max_bytes) return refused("it has more than " + formatBytesSetting(max_bytes));
    return text;
}

Result<std::string> readFirstLine(const std::string& path, std::size_t max_bytes) {
    // Its end may be two bytes.
    auto text = readUpTo(path, max_bytes + 2);
    if (!text) return text;
    std::string& line = *text;
    line.resize(std::min(line.size(), line.find('\n')));
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) return refused("its first line is empty");
    if (line.size() > max_bytes) return refused("its first line has more than " + std::to_string(max_bytes) + " bytes");
    return text;
}

}  // namespace troupe
