#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/incarnation.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe::host {

/// The process at the other end of a unix socket: its number, its user, and a pidfd, which goes on meaning this process
/// when the number is given to another.
///
/// The number is that of the process that called connect or listen. It may have ended, and the number been given away,
/// before the pidfd was opened; so whoever makes one must afterwards hear over the socket from the process itself
/// (an answer to something sent after this call): it was alive then, hence it was alive here, hence the pidfd is its.
class ProcessHandle {
  public:
    /// TransportMissing: it lives in another pid namespace, or there are no pidfds here. ConnectionLost: it has ended.
    static Result<ProcessHandle> ofPeer(int socket);

    pid_t pid() const { return pid_; }
    uid_t uid() const { return uid_; }
    /// Readable once the process has ended with all its threads: then nothing it began can touch anything any more.
    int fd() const { return pidfd_.get(); }
    bool ended() const;
    /// "process 4711".
    std::string name() const;

  private:
    pid_t pid_ = 0;
    uid_t uid_ = 0;
    UniqueFd pidfd_;
};

/// Ok when an initiator of the user `initiator` may use the memory of a process of `owner`: the same user, or root.
/// In a user namespace all users that have no number there look like one (kernel.overflowuid); those are refused.
Status checkUsers(uid_t initiator, uid_t owner);

/// Tries whether this process may read and write the memory of that one, by reading the 16 bytes at `word`, which must
/// be `expected`. TransportMissing says what stands in the way; StaleIncarnation: something else stands there.
/// `hint` is added when the kernel forbids it.
Status checkAccess(const ProcessHandle& process, std::uint64_t word, const Incarnation& expected,
                   const std::string& hint);

/// What this kernel says about who may look into whom ("ptrace_scope is 1: ..."), or nothing. Reads a file.
std::string accessHint();

}  // namespace troupe::host
