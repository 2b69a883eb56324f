#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "host_backend/wire.h"

namespace troupe::host {

/// ResourceExhausted when `error` says that descriptors or memory are short, which passes; else `otherwise`.
Code codeOf(int error, Code otherwise);

/// How a try on a non-blocking socket went.
enum class Io {
    Done,
    Again,   ///< Nothing there, or no room: later.
    Closed,  ///< The other end has gone, or the socket broke.
};

/// A listening SOCK_SEQPACKET socket in the abstract namespace: no file that could stay behind, and only processes of
/// the same network namespace find it. AlreadyExists; Unsupported where there are none.
Result<UniqueFd> listenAt(const std::string& name, int backlog);

/// Connects to one. At once or not at all: `Again` means that the listener's queue is full. Errors: ConnectionRefused
/// (nobody listens under that name here), AccessDenied (forbidden by policy).
struct Connecting {
    UniqueFd socket;
    bool again = false;
};
Result<Connecting> connectTo(const std::string& name);

/// Sends one frame, `descriptor` with it unless it is -1.
Io sendPacket(int socket, const Packet& packet, int descriptor = -1);

/// One received packet and the descriptor that came with it. More descriptors than one, or a packet longer than any
/// frame, make it malformed: `length` is 0 then, which no decoder accepts.
struct Received {
    Packet packet;
    UniqueFd descriptor;
    bool lost_descriptor = false;  ///< One came that this process could not take: it has none left.
    bool hasDescriptor() const { return descriptor || lost_descriptor; }
};
Io receivePacket(int socket, Received& received);

}  // namespace troupe::host
