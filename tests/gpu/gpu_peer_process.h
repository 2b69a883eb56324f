#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "tests/fake_cuda/control.h"
#include "tests/support/standstill.h"

namespace troupe::gpu::testing {

/// gpu_peer as a child of the test.
class GpuPeerProcess {
  public:
    GpuPeerProcess() {
        int to_child[2];
        int from_child[2];
        if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) ADD_FAILURE() << "pipe";
        std::vector<std::string> words = {"/usr/bin/env", "TROUPE_CUDA_DRIVER=" + fake_cuda::Control::path(),
                                          TROUPE_GPU_PEER};
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
    ~GpuPeerProcess() {
        if (to_ != nullptr) std::fclose(to_);
        reap();
        if (from_ != nullptr) std::fclose(from_);
    }
    GpuPeerProcess(const GpuPeerProcess&) = delete;
    GpuPeerProcess& operator=(const GpuPeerProcess&) = delete;

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
    /// The name of its segment.
    std::string start(bool host_peers, bool tcp) {
        return word(std::string("start ") + (host_peers ? "1 " : "0 ") + (tcp ? "1" : "0"));
    }

    /// Returns when it stands still.
    void stop() {
        ::kill(pid_, SIGSTOP);
        const auto limit = Clock::now() + test::kPatience;
        while (!test::allThreadsStopped(pid_) && Clock::now() < limit) std::this_thread::yield();
    }
    void goOn() { ::kill(pid_, SIGCONT); }
    void kill() {
        ::kill(pid_, SIGKILL);
        reap();
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

}  // namespace troupe::gpu::testing
