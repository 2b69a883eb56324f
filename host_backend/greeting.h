#pragma once

#include <memory>
#include <string>

#include "base/incarnation.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "host_backend/process_handle.h"
#include "host_backend/socket.h"

namespace troupe::host {

/// Whom an initiator wants to reach, and as who.
struct GreetingPlan {
    std::string socket;  ///< Abstract name.
    Incarnation own;
    Incarnation peer;
    std::string hint;  ///< See accessHint.
    std::shared_ptr<const ClusterAuth> auth = nullptr;
};

/// The initiator's side of a new connection: from connect to the proof that the other end is the process that the
/// descriptor names, on this host, and that its memory may be copied. Never blocks; whoever owns it watches the socket.
class Greeting {
  public:
    explicit Greeting(GreetingPlan plan) : plan_(std::move(plan)) {}

    /// Connects and says Hello. False: the listener is busy, call again a little later. Errors as of connectTo,
    /// ProcessHandle::ofPeer and checkUsers.
    Result<bool> start();
    /// Call when the socket is readable, after `start`. True: done, take what was made. Errors: TransportMissing (may
    /// not copy, or the owner refused), StaleIncarnation (somebody else), AccessDenied (the cluster key),
    /// ConnectionLost, ProtocolError.
    Result<bool> advance();
    /// When it is done: Ok, or why only memory that can be mapped may be used.
    const Status& vm() const { return vm_; }

    int fd() const { return socket_.get(); }
    UniqueFd takeSocket() { return std::move(socket_); }
    std::unique_ptr<ProcessHandle> takeProcess() { return std::move(process_); }

  private:
    Result<bool> onFrame(const Frame& frame, const Packet& packet);
    Result<bool> onAnswer(const Frame& frame);

    const GreetingPlan plan_;
    // With a cluster key: what was said so far.
    Packet hello_;
    Packet challenge_;  ///< Empty before it came.
    Packet answer_;     ///< Waits for its proof.
    UniqueFd socket_;
    std::unique_ptr<ProcessHandle> process_;
    Status vm_;
};

}  // namespace troupe::host
