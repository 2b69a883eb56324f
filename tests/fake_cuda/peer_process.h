#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace troupe::fake_cuda {

/// A program with the fake driver as a child of the test. It answers each line that it is sent with one.
class PeerProcess {
  public:
    explicit PeerProcess(const std::string& program, const std::vector<std::string>& environment = {}) {
        int to_child[2];
        int from_child[2];
        if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) ADD_FAILURE() << "pipe";
        std::vector<std::string> words = {"/usr/bin/env"};
        words.insert(words.end(), environment.begin(), environment.end());
        words.push_back(program);
        std::vector<char*> arguments;
        for (std::string& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(to_child[0], 0);
            ::dup2(from_child[1], 1);
            ::execv(arguments[0], arguments.data());
            ::_exit(127);
        }
        ::close(to_child[0]);
        ::close(from_child[1]);
        to_ = ::fdopen(to_child[1], "w");
        from_ = ::fdopen(from_child[0], "r");
    }
    ~PeerProcess() { end(); }
    PeerProcess(const PeerProcess&) = delete;
    PeerProcess& operator=(const PeerProcess&) = delete;

    pid_t pid() const { return pid_; }

    /// The whole answer.
    std::string ask(const std::string& command) {
        std::fprintf(to_, "%s\n", command.c_str());
        std::fflush(to_);
        std::string answer;
        for (int letter = std::fgetc(from_); letter != EOF && letter != '\n'; letter = std::fgetc(from_))
            answer.push_back(static_cast<char>(letter));
        return answer;
    }
    void must(const std::string& command) { EXPECT_EQ(ask(command), "ok") << command; }
    /// What is behind "ok ".
    std::string word(const std::string& command) {
        const std::string answer = ask(command);
        EXPECT_EQ(answer.rfind("ok ", 0), 0u) << command << ": " << answer;
        return answer.rfind("ok ", 0) == 0 ? answer.substr(3) : "";
    }
    std::uint64_t number(const std::string& command) {
        const std::string text = word(command);
        return text.empty() ? 0 : std::stoull(text);
    }

    void kill() {
        ::kill(pid_, SIGKILL);
        reap();
    }
    void end() {
        if (to_ != nullptr) std::fclose(to_);
        to_ = nullptr;
        reap();
        if (from_ != nullptr) std::fclose(from_);
        from_ = nullptr;
    }

  private:
    void reap() {
        if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }

    pid_t pid_ = -1;
    std::FILE* to_ = nullptr;
    std::FILE* from_ = nullptr;
};

}  // namespace troupe::fake_cuda
