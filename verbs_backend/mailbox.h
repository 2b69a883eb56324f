#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "verbs_backend/completion_queue.h"

namespace troupe::verbs {

/// What the Connector tells a VerbsNic.
struct PairEvent {
    enum class Kind : std::uint8_t {
        Up,         ///< The pair is ready: work may be posted.
        Failed,     ///< It could not be made; there is nothing left of it.
        Broken,     ///< It is in the error state: what is posted on it is being flushed.
        Destroyed,  ///< It is gone; nothing of it touches memory any more if `status` is Ok.
        Fenced,     ///< Of a fence: over, with success if `status` is Ok.
        PortDown,   ///< Of the Nic's own port, not of a pair.
        PortUp,
        PortChanged,  ///< Of the port: its addresses or numbers are others.
        QueueLost,    ///< Of the Nic: its completion queue brings nothing more; all of its pairs are being ended.
        QueueMade,    ///< Of the Nic: the completion queue of all pairs that come up from here on.
    };
    Kind kind = Kind::Failed;
    std::uint32_t pair = 0;
    Status status;
    bool retryable = true;                         ///< Failed: another try may succeed.
    bool by_peer = false;                          ///< Broken: the peer said that it ends it.
    ibv_qp* qp = nullptr;                          ///< Up. The Connector owns it until it is asked to destroy it.
    std::uint32_t depth = 0;                       ///< Up: work requests that the send queue takes.
    std::uint32_t segments = 1;                    ///< Up: scatter/gather entries of one.
    std::uint32_t inlined = 0;                     ///< Up: bytes that may go inline.
    std::shared_ptr<const CompletionQueue> queue;  ///< QueueMade.
    std::string device;                            ///< Up: the peer's device, as its descriptor names it.
    std::string way;                               ///< Up: port, GID, path MTU and so on, for people.
    bool by_exchange = false;                      ///< Up: made over the control connection.
};

/// A queue of events with a descriptor that is readable while it is not empty. Any thread puts, one takes.
///
/// A mutex, held to move a few words: events are as rare as connections.
class Mailbox {
  public:
    Status open();
    int fd() const { return fd_.get(); }
    void put(PairEvent event);
    /// Moves everything to `events`, which must be empty. False, without a lock, when nothing came.
    bool take(std::vector<PairEvent>& events);

  private:
    UniqueFd fd_;
    std::mutex mutex_;
    std::vector<PairEvent> events_;
    std::atomic<bool> any_{false};
};

}  // namespace troupe::verbs
