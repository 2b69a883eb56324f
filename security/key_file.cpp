#include "security/key_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/unique_fd.h"

namespace troupe {

Result<std::string> readKeyFile(const std::string& path, std::size_t max_bytes) {
    const auto bad = [&](const std::string& why) { return Status(Code::InvalidArgument, "'" + path + "': " + why); };
    // Non-blocking: what turns out to be a pipe must not hold the caller.
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file) return bad(std::generic_category().message(errno));
    struct stat about {};
    if (::fstat(file.get(), &about) != 0) return bad(std::generic_category().message(errno));
    if (!S_ISREG(about.st_mode)) return bad("it is no regular file");
    if (about.st_uid != ::geteuid() && about.st_uid != 0)
        return bad("it belongs to another user, who could change it; chown it to the one that runs the engine");
    // What is mounted for a group (a secret in a pod) is root's and has mode 0440.
    const mode_t most = about.st_uid == 0 ? 0750 : 0700;
    if ((about.st_mode & 0777 & ~most) != 0 || (about.st_mode & S_IWGRP) != 0)
        return bad("others may read or write it; chmod 600 it, and take another key if they may have read this one");

    std::string text(max_bytes + 2, '\0');
    std::size_t have = 0;
    while (have < text.size()) {
        const ssize_t got = ::read(file.get(), text.data() + have, text.size() - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return bad(std::generic_category().message(errno));
        if (got == 0) break;
        have += static_cast<std::size_t>(got);
    }
    text.resize(have);
    text.resize(std::min(text.size(), text.find('\n')));
    if (!text.empty() && text.back() == '\r') text.pop_back();
    if (text.empty()) return bad("its first line is empty");
    if (text.size() > max_bytes) return bad("its first line has more than " + std::to_string(max_bytes) + " bytes");
    return text;
}

}  // namespace troupe
