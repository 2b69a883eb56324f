#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/cuda_backend/cuda_peer_wire.h"
#include "tests/fake_cuda/control.h"

namespace troupe::cuda::testing {

/// cuda_peer as a child of the test.
class CudaPeerProcess {
  public:
    explicit CudaPeerProcess(const std::vector<std::string>& environment = {}) {
        int to_child[2];
        int from_child[2];
        if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) ADD_FAILURE() << "pipe";
        std::vector<std::string> words = {"/usr/bin/env", "TROUPE_CUDA_DRIVER=" + fake_cuda::Control::path()};
        words.insert(words.end(), environment.begin(), environment.end());
        words.push_back(TROUPE_CUDA_PEER);
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
    ~CudaPeerProcess() { end(); }
    CudaPeerProcess(const CudaPeerProcess&) = delete;
    CudaPeerProcess& operator=(const CudaPeerProcess&) = delete;

    /// The whole answer.
    std::string ask(const std::string& command) {
        std::fprintf(to_, "%s\n", command.c_str());
        std::fflush(to_);
        std::string answer;
        for (int letter = std::fgetc(from_); letter != EOF && letter != '\n'; letter = std::fgetc(from_))
            answer.push_back(static_cast<char>(letter));
        return answer;
    }
    /// The number after "ok".
    std::uint64_t number(const std::string& command) {
        const std::string answer = ask(command);
        EXPECT_EQ(answer.rfind("ok ", 0), 0u) << command << ": " << answer;
        return answer.rfind("ok ", 0) == 0 ? std::stoull(answer.substr(3)) : 0;
    }
    void must(const std::string& command) { EXPECT_EQ(ask(command), "ok") << command; }

    std::vector<device::SharedMemory> exported(std::uint64_t addr, std::uint64_t bytes, bool fabric = false) {
        std::istringstream answer(
            ask("export " + std::to_string(addr) + " " + std::to_string(bytes) + (fabric ? " 1" : " 0")));
        std::string ok;
        std::size_t pieces = 0;
        answer >> ok >> pieces;
        EXPECT_EQ(ok, "ok") << answer.str();
        std::vector<device::SharedMemory> shared;
        for (std::size_t index = 0; index < pieces; ++index) shared.push_back(fromText(answer, pid_));
        return shared;
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

}  // namespace troupe::cuda::testing
