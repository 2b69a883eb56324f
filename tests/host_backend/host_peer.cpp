// A peer for the tests of the host transport: an engine with one region, told what to do on its standard input.
//
//     host_peer BYTES mapped|vm PORT [LIMIT...]
//
// `mapped`: memory of allocateLocalMemory, else its own. LIMIT: uid=N (runs as that user), undumpable, novmwrite (by
// seccomp), novm (nor reads), newnet and newpid (namespaces of its own), newuser (the same, with no users in it). Its
// first line is "SEGMENT ADDRESS INCARNATION"; each command is answered by one line:
//
//     open SEGMENT              OK, or the error
//     read|write ADDR LENGTH    how one transfer between that address there and the start of the own region ended
//     loop ADDR LENGTH          OK; goes on writing there until the first transfer fails
//     ended                     how the loop ended, once it has
//     fill BYTE                 OK; the whole region
//     check BYTE                OK, or where it is otherwise
//     explain                   the route to the segment
//     fork                      OK; its child does nothing, and lives until the input ends for good
//
// Exits when its input ends, with 1 when it cannot start.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>

#include "tests/support/engine_pair.h"

namespace {

using namespace troupe;
using troupe::test::Buffer;

void fail(const std::string& why) {
    std::fprintf(stderr, "host_peer: %s\n", why.c_str());
    std::exit(1);
}

void bringLoopbackUp() {
    const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ifreq request{};
    std::snprintf(request.ifr_name, sizeof request.ifr_name, "lo");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (::ioctl(fd, SIOCSIFFLAGS, &request) != 0) fail("lo cannot be brought up");
    ::close(fd);
}

/// As a container's seccomp profile does: `call` is refused.
void forbid(unsigned call) {
    sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA)),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog filter{std::size(program), program};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
        fail("no seccomp filter");
}

void apply(const std::string& limit) {
    if (limit == "newnet") {
        if (::unshare(CLONE_NEWNET) != 0) fail("no network namespace");
        bringLoopbackUp();
    } else if (limit == "newuser") {
        if (::unshare(CLONE_NEWUSER) != 0) fail("no user namespace");
        ::prctl(PR_SET_DUMPABLE, 1);
    } else if (limit == "newpid") {
        if (::unshare(CLONE_NEWPID) != 0) fail("no pid namespace");
        // Only children are in it. This process stays as their parent, and ends with them.
        const pid_t child = ::fork();
        if (child < 0) fail("no child");
        if (child > 0) {
            int status = 0;
            ::waitpid(child, &status, 0);
            std::_Exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    } else if (limit.rfind("uid=", 0) == 0) {
        const auto user = static_cast<uid_t>(std::stoul(limit.substr(4)));
        if (::setgid(user) != 0 || ::setuid(user) != 0) fail("no other user");
        // setuid made it undumpable, which a program that began as that user would not be.
        ::prctl(PR_SET_DUMPABLE, 1);
    } else if (limit == "novmwrite") {
        forbid(__NR_process_vm_writev);
    } else if (limit == "novm") {
        forbid(__NR_process_vm_readv);
        forbid(__NR_process_vm_writev);
    } else if (limit == "undumpable") {
        ::prctl(PR_SET_DUMPABLE, 0);
    } else {
        fail("unknown limit " + limit);
    }
}

std::string outcome(const TransferStatus& status) {
    return std::string(toString(status.s)) + (status.error ? "" : " " + status.error.toString());
}

class Servant {
  public:
    Servant(TransferEngine& engine, std::byte* data, std::size_t size) : engine_(engine), data_(data), size_(size) {}
    ~Servant() {
        if (loop_.valid()) loop_.wait();
    }

    std::string obey(const std::string& line) {
        std::istringstream words(line);
        std::string verb;
        words >> verb;
        if (verb == "open") {
            std::string name;
            words >> name;
            const auto opened = engine_.openSegment(name);
            if (opened) segment_ = *opened;
            return opened ? "OK" : opened.status().toString();
        }
        if (verb == "explain") {
            const auto route = engine_.explainSegment(segment_);
            return route ? route->toString() : route.status().toString();
        }
        if (verb == "fork") return haveChild();
        if (verb == "ended") return outcome(loop_.get());
        std::uint64_t first = 0;
        std::uint64_t second = 0;
        words >> first >> second;
        if (verb == "read") return outcome(copy(Opcode::Read, first, second));
        if (verb == "write") return outcome(copy(Opcode::Write, first, second));
        if (verb == "loop") {
            loop_ = std::async(std::launch::async, [this, first, second] {
                for (;;) {
                    auto status = copy(Opcode::Write, first, second);
                    if (status.s != TransferStatusEnum::COMPLETED) return status;
                }
            });
            return "OK";
        }
        if (verb == "fill") {
            std::memset(data_, static_cast<int>(first), size_);
            return "OK";
        }
        if (verb == "check") {
            for (std::size_t i = 0; i < size_; ++i)
                if (data_[i] != static_cast<std::byte>(first)) return "differs at " + std::to_string(i);
            return "OK";
        }
        return "unknown command " + verb;
    }

  private:
    /// It has all that this process has: sockets, memory files, and mappings that are inherited.
    static std::string haveChild() {
        const pid_t child = ::fork();
        if (child < 0) return "no child";
        if (child > 0) return "OK";
        // Told nothing, only that no writer is left.
        pollfd input{STDIN_FILENO, 0, 0};
        while (::poll(&input, 1, -1) < 0 && errno == EINTR) {
        }
        std::_Exit(0);
    }

    TransferStatus copy(Opcode opcode, std::uint64_t addr, std::uint64_t length) {
        const auto batch = engine_.allocateBatchID(1);
        if (!batch) return {TransferStatusEnum::INVALID, 0, true, batch.status()};
        TransferRequest request;
        request.opcode = opcode;
        request.source = data_;
        request.target_id = segment_;
        request.target_offset = addr;
        request.length = length;
        const Status submitted = engine_.submitTransfer(*batch, {request});
        auto status = engine_.waitTransfer(*batch, std::chrono::minutes(1));
        static_cast<void>(engine_.freeBatchID(*batch));
        if (!submitted) return {TransferStatusEnum::INVALID, 0, true, submitted};
        return status ? *status : TransferStatus{TransferStatusEnum::INVALID, 0, true, status.status()};
    }

    TransferEngine& engine_;
    std::byte* const data_;
    const std::size_t size_;
    SegmentID segment_ = kInvalidSegmentID;
    std::future<TransferStatus> loop_;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) return 2;
    const std::size_t bytes = std::strtoull(argv[1], nullptr, 10);
    const bool mapped = std::string(argv[2]) == "mapped";
    for (int i = 4; i < argc; ++i) apply(argv[i]);

    Buffer own(bytes);
    EngineOptions options;
    options.config.data_loops = 1;
    options.config.host_probe_timeout = std::chrono::seconds(30);
    options.log = makeSilentLogger();
    TransferEngine engine(options);
    Status status = engine.init("p2p", "", "127.0.0.1", static_cast<std::uint16_t>(std::stoul(argv[3])));
    if (status) status = engine.installTransport("tcp").status();
    auto* data = own.data();
    if (status && mapped) {
        const auto memory = engine.allocateLocalMemory(bytes);
        status = memory.status();
        if (memory) data = static_cast<std::byte*>(*memory);
    } else if (status) {
        status = engine.registerLocalMemory(data, bytes);
    }
    if (!status) fail(status.toString());
    std::printf("%s %llu %s\n", engine.localSegmentName().c_str(),
                static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(data)),
                engine.incarnation().toString().c_str());
    std::fflush(stdout);
    Servant servant(engine, data, bytes);
    for (std::string line; std::getline(std::cin, line);) {
        std::printf("%s\n", servant.obey(line).c_str());
        std::fflush(stdout);
    }
    static_cast<void>(engine.freeEngine());
    return 0;
}
