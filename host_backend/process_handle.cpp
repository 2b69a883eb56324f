#include "host_backend/process_handle.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/endpoint.h"
#include "host_backend/socket.h"

namespace troupe::host {

Result<ProcessHandle> ProcessHandle::ofPeer(int socket) {
    ucred peer{};
    socklen_t length = sizeof peer;
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0)
        return errnoStatus(codeOf(errno, Code::TransportMissing), "SO_PEERCRED", errno);
    if (peer.pid <= 0) return {Code::TransportMissing, "the process is in a pid namespace that this one cannot see"};
    ProcessHandle handle;
    handle.pid_ = peer.pid;
    handle.uid_ = peer.uid;
    handle.pidfd_ = UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, peer.pid, 0)));
    if (!handle.pidfd_) {
        if (errno == ESRCH) return {Code::ConnectionLost, handle.name() + " has ended"};
        return errnoStatus(codeOf(errno, Code::TransportMissing), "pidfd_open of " + handle.name(), errno);
    }
    return handle;
}

bool ProcessHandle::ended() const {
    pollfd entry{pidfd_.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
}

std::string ProcessHandle::name() const { return "process " + std::to_string(pid_); }

namespace {

/// Whether `user` may be the kernel's stand-in for any user that has no number in this process's user namespace. Reads
/// files, the second only for that one number.
bool standsForMany(uid_t user) {
    std::ifstream file("/proc/sys/kernel/overflowuid");
    uid_t stand_in = 65534;  // What it is unless somebody changed it.
    file >> stand_in;
    if (user != stand_in) return false;
    // Where every number has its own there is nobody to stand in for: so it is outside of all user namespaces.
    std::ifstream map("/proc/self/uid_map");
    std::uint64_t inside = 0;
    std::uint64_t outside = 0;
    std::uint64_t count = 0;
    return !(map >> inside >> outside >> count) || inside != 0 || count != UINT32_MAX;
}

}  // namespace

Status checkUsers(uid_t initiator, uid_t owner) {
    if (initiator == owner && initiator != 0 && standsForMany(owner))
        return {Code::TransportMissing,
                "who the users are cannot be told: in this user namespace neither has a number, "
                "and user " +
                    std::to_string(owner) + " stands for all of them"};
    if (initiator == owner || initiator == 0) return Status::ok();
    return {Code::TransportMissing, "user " + std::to_string(initiator) + " may not use the memory of user " +
                                        std::to_string(owner) + " without a wire; only the same user and root may"};
}

Status checkAccess(const ProcessHandle& process, std::uint64_t word, const Incarnation& expected,
                   const std::string& hint) {
    Incarnation found;
    const iovec local{found.bytes.data(), found.bytes.size()};
    const iovec remote{reinterpret_cast<void*>(word), found.bytes.size()};
    const ssize_t got = ::process_vm_readv(process.pid(), &local, 1, &remote, 1, 0);
    const int error = got < 0 ? errno : 0;
    const std::string what = "process_vm_readv of " + process.name();
    if (error == ESRCH) return {Code::ConnectionLost, process.name() + " has ended"};
    if (error == EPERM) {
        const Status forbidden = errnoStatus(Code::TransportMissing, what, error);
        return {forbidden.code(),
                forbidden.message() + "; " +
                    (hint.empty() ? "forbidden by its user, its dumpable flag or a seccomp filter" : hint)};
    }
    if (error != 0 && error != EFAULT) return errnoStatus(codeOf(error, Code::TransportMissing), what, error);
    if (got != static_cast<ssize_t>(found.bytes.size()) || found != expected)
        return {Code::StaleIncarnation, process.name() + " does not hold incarnation " + expected.toString()};
    // A seccomp filter may allow the one and not the other; with nothing to write, only a filter refuses.
    if (::process_vm_writev(process.pid(), nullptr, 0, nullptr, 0, 0) != 0)
        return errnoStatus(Code::TransportMissing, "process_vm_writev", errno);
    return Status::ok();
}

std::string accessHint() {
    std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
    int scope = 0;
    if (!(file >> scope) || scope == 0) return {};
    return "kernel.yama.ptrace_scope is " + std::to_string(scope) +
           (scope == 1 ? ": the owner may allow it with prctl(PR_SET_PTRACER), or run both with CAP_SYS_PTRACE"
                       : ": it needs CAP_SYS_PTRACE");
}

}  // namespace troupe::host
