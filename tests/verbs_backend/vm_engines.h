#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/engine_pair.h"
#include "tests/verbs_backend/vm_support.h"

namespace troupe::test {

using namespace std::chrono_literals;
using verbs::testing::devices;
using verbs::testing::expectWithin;
using verbs::testing::isLong;
using verbs::testing::LinkDown;
using verbs::testing::Netem;
using verbs::testing::shell;
using verbs::testing::vmLog;

inline EngineSetup rdmaSetup(const std::string& names) {
    EngineSetup setup;
    setup.tcp = false;
    setup.config.rdma_devices = names;
    // Emulated processors answer late.
    setup.config.rdma_ack_timeout = 17;
    // A busy machine's guest stands still for seconds. A peer that is killed is noticed by the end of its connection.
    setup.config.keepalive_timeout = 60s;
    setup.options.log = vmLog(names);
    return setup;
}

inline std::unique_ptr<TransferEngine> startRdma(const EngineSetup& setup, std::uint16_t port = 0) {
    auto engine = startEngine(setup, port);
    const auto rdma = engine->installTransport("rdma");
    EXPECT_TRUE(rdma) << rdma.status().toString();
    return engine;
}
inline std::unique_ptr<TransferEngine> startRdma(const std::string& names, std::uint16_t port = 0) {
    return startRdma(rdmaSetup(names), port);
}

/// An engine in another process, with one region of zeros.
class ServingProcess {
  public:
    /// `at`: where the region is to lie, or null.
    ServingProcess(const std::string& names, std::size_t bytes, std::uint16_t port = 0, const void* at = nullptr) {
        int ends[2];
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        const std::vector<std::string> words = {std::to_string(bytes), std::to_string(port),
                                                std::to_string(reinterpret_cast<std::uintptr_t>(at))};
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::dup2(ends[1], 1);
            ::execl("/proc/self/exe", "serve", "--serve", names.c_str(), words[0].c_str(), words[1].c_str(),
                    words[2].c_str(), nullptr);
            ::_exit(127);
        }
        ::close(ends[1]);
        std::FILE* said = ::fdopen(ends[0], "r");
        char name[256] = "";
        EXPECT_EQ(std::fscanf(said, "serving %255s %lx", name, &address), 2) << "the peer said '" << name << "'";
        std::fclose(said);
        segment = name;
    }
    ~ServingProcess() { kill(); }
    ServingProcess(const ServingProcess&) = delete;
    ServingProcess& operator=(const ServingProcess&) = delete;

    void kill() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        pid_ = 0;
    }
    void stop() const { ASSERT_EQ(::kill(pid_, SIGSTOP), 0); }
    void goOn() const { ASSERT_EQ(::kill(pid_, SIGCONT), 0); }
    std::uint16_t port() const {
        return static_cast<std::uint16_t>(std::atoi(segment.c_str() + segment.rfind(':') + 1));
    }

    std::string segment;
    unsigned long address = 0;

    /// The process itself: `arguments` as above.
    static int serve(char** arguments) {
        const auto number = [&](int index) { return std::strtoull(arguments[index], nullptr, 10); };
        // Ready before its name is there to be asked.
        const std::size_t bytes = number(3);
        auto* const at = reinterpret_cast<void*>(number(5));
        void* const memory = ::mmap(at, bytes, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | (at != nullptr ? MAP_FIXED_NOREPLACE : 0), -1, 0);
        if (memory == MAP_FAILED) return 1;
        const auto engine = startRdma(arguments[2], static_cast<std::uint16_t>(number(4)));
        if (const Status taken = engine->registerLocalMemory(memory, bytes); !taken) return 1;
        std::printf("serving %s %lx\n", engine->localSegmentName().c_str(), reinterpret_cast<unsigned long>(memory));
        std::fflush(stdout);
        for (;;) ::pause();
    }

  private:
    pid_t pid_ = 0;
};

/// Bytes that an interface sent so far.
inline std::uint64_t sentBy(const std::string& interface) {
    std::ifstream file("/sys/class/net/" + interface + "/statistics/tx_bytes");
    std::uint64_t bytes = 0;
    file >> bytes;
    return bytes;
}

/// Does one transfer again and again until it completes. Until a monitor has found a restarted peer, the segment is
/// down, and a descriptor may have been fetched in the moment before the peer installed its transport.
inline TransferStatus untilCompleted(TransferEngine& engine, const TransferRequest& request,
                                     std::chrono::milliseconds pause = 50ms) {
    const auto limit = Clock::now() + kPatience;
    for (;;) {
        TransferStatus status;
        {
            BatchHolder batch(engine, 1);
            const Status submitted = batch.submit({request});
            if (submitted)
                status = batch.wait();
            else
                status.error = submitted;
        }
        if (status.s == TransferStatusEnum::COMPLETED || Clock::now() > limit) return status;
        std::this_thread::sleep_for(pause);
    }
}

inline std::chrono::milliseconds since(TimePoint start) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
}
inline long long millisecondsSince(TimePoint start) { return since(start).count(); }

/// What a program puts where a task has ended.
constexpr std::byte kOwn{0xee};

/// Fills the buffer of a task that has ended, and looks whether anything else comes there. Registered pages are pinned,
/// and the device has mappings of its own: that the processor may protect them tells nothing, the bytes do.
inline void expectNotWritten(Buffer& buffer) {
    buffer.fill(kOwn);
    // Longer than a packet lives on a link of this guest.
    std::this_thread::sleep_for(200ms);
    EXPECT_TRUE(buffer.holdsOnly(kOwn, 0, buffer.size())) << "bytes came after the end";
}

/// Whether there is a piece of what such a buffer holds: something was sent from it since.
inline bool holdsOwn(const Buffer& buffer) {
    constexpr int kRun = 256;
    return std::search_n(buffer.data(), buffer.data() + buffer.size(), kRun, kOwn) != buffer.data() + buffer.size();
}

/// Two engines of this process with `bytes` each; `a` has the segment of `b` open.
struct Engines {
    Engines(const std::string& own, const std::string& others, std::size_t bytes, bool tcp = false)
        : Engines(setup(own, tcp), setup(others, tcp), bytes) {}
    Engines(const EngineSetup& own, const EngineSetup& others, std::size_t bytes)
        : local(bytes), remote(bytes), a(startRdma(own)), b(startRdma(others)) {
        EXPECT_TRUE(a->registerLocalMemory(local.data(), local.size()));
        EXPECT_TRUE(b->registerLocalMemory(remote.data(), remote.size()));
        const auto opened = a->openSegment(b->localSegmentName());
        EXPECT_TRUE(opened) << opened.status().toString();
        if (opened) segment = *opened;
    }
    static EngineSetup setup(const std::string& names, bool tcp) {
        EngineSetup made = rdmaSetup(names);
        made.tcp = tcp;
        return made;
    }
    TransferRequest request(Opcode opcode, std::size_t offset, std::size_t length) {
        return makeRequest(opcode, segment, local.data() + offset, remote.address(offset), length);
    }
    /// All of the memory, in pieces.
    std::vector<TransferRequest> pieces(Opcode opcode, std::size_t piece) {
        std::vector<TransferRequest> all;
        for (std::size_t at = 0; at < local.size(); at += piece) all.push_back(request(opcode, at, piece));
        return all;
    }
    /// The buffer is the caller's: nothing reads or writes it any more. Leaves kOwn in it.
    void expectFree() {
        expectNotWritten(local);
        EXPECT_FALSE(holdsOwn(remote)) << "bytes were sent after the end";
    }

    Buffer local;
    Buffer remote;
    std::unique_ptr<TransferEngine> a;
    std::unique_ptr<TransferEngine> b;
    SegmentID segment = kInvalidSegmentID;
};

inline bool eventually(const std::function<bool()>& done) {
    const auto limit = Clock::now() + kPatience;
    while (!done()) {
        if (Clock::now() > limit) return false;
        std::this_thread::sleep_for(1ms);
    }
    return true;
}

}  // namespace troupe::test
