#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include "base/byte_range.h"
#include "base/incarnation.h"
#include "base/status.h"
#include "messages/task_history.h"
#include "messages/transfer_types.h"
#include "transports/nic.h"

/// The data plane's protocol: what callers, BatchTrackers and NicWorkers say to each other.
///
///     caller --SubmitTasks--> BatchTracker --Train--> NicWorker --post--> Nic
///                                   ^                     |
///                                   +---- SliceReport ----+      (one per sweep and tracker)
///
/// All of these stay inside the process, so they carry pointers and handles and are never serialised.
namespace troupe {

class Batch;

/// Caller -> tracker: tasks [first, first + count) of a batch are filled in and may run. One message per submit.
struct SubmitTasks {
    Batch* batch = nullptr;  ///< Stays valid until its last task is terminal.
    std::uint32_t first = 0;
    std::uint32_t count = 0;
    std::uint64_t regions_version = 0;  ///< Of the registration snapshot that the sources were checked against.
};

/// A piece of a task (or several whole tasks whose bytes are adjacent) on its way through one NicWorker.
struct Flight {
    Batch* batch = nullptr;
    std::uint32_t first_task = 0;
    std::uint32_t task_count = 1;  ///< More than 1: whole tasks, merged.
    std::byte* local = nullptr;
    std::uint64_t remote = 0;
    std::uint64_t length = 0;
    Opcode opcode = Opcode::Read;
    bool whole = false;     ///< Must be one work request: source and destination overlap.
    bool unfenced = false;  ///< Bytes of an earlier attempt by this worker may still be on their way to the peer.
};

/// Tracker -> worker: flights for one peer. The worker cuts them into work requests of the Nic's slice size.
struct Train {
    std::uint32_t tracker = 0;  ///< Index of the sender; reports go back to it.
    std::uint32_t peer = 0;
    Incarnation incarnation;  ///< For whom the addresses are meant: the worker may have heard of a successor already.
    std::vector<Flight> flights;
};

/// Worker -> tracker: the flights that ended since the last report. Room in the path's window comes back with it: this
/// is how a worker pulls more work.
struct SliceReport {
    /// A part of a flight that ended without success. Its flight's Settled follows in the same report, or in
    /// a later one when other parts are still with the Nic.
    struct Failed {
        Flight part;
        std::uint32_t peer = 0;
        Status cause;
        bool retryable = false;
        bool quiesced = true;
        bool fenced = false;         ///< As in Failure.
        std::uint64_t incident = 0;  ///< As in Failure.
        bool declined = false;       ///< As in Failure.
    };
    /// A flight that is over: nothing of it is with the Nic any more.
    struct Settled {
        Batch* batch = nullptr;
        std::uint32_t first_task = 0;
        std::uint32_t task_count = 1;
        std::uint32_t peer = 0;
        std::uint64_t length = 0;  ///< Of the flight: what it took of the path's window.
        std::uint64_t bytes = 0;   ///< That arrived; less than `length` when parts failed.
    };
    /// The worker's path to a peer was lost, or is there again.
    struct Path {
        std::uint32_t peer = 0;
        bool usable = true;
    };
    std::uint32_t worker = 0;
    std::vector<Failed> failed;
    std::vector<Settled> settled;
    std::vector<Path> paths;  ///< In the order in which it happened, and to be handled before `failed`.
};

/// Directory -> workers, then trackers: `peer` may be used (or has a new incarnation) through these workers.
struct UsePeer {
    std::shared_ptr<const Peer> peer;
    SegmentID segment = kInvalidSegmentID;
    /// Indices into the worker list: those of the preferred transport first, then those of the next. Which of one
    /// transport is the tracker's choice.
    std::vector<std::uint32_t> workers;
};

/// Directory -> trackers, then workers: everything to this peer ends with `cause`.
struct DropPeer {
    std::uint32_t peer = 0;
    Status cause;
    bool forget = false;  ///< The segment was closed, or its owner has a successor that other workers may reach.
};

/// Tracker -> worker: end what is posted to `peer`, so that buffers are free; the path may be used again.
struct ResetPath {
    std::uint32_t peer = 0;
    Status cause;
};

/// Supervisor -> trackers: a worker joined (or, with a null handle, left) the list.
struct WorkerJoined {
    std::uint32_t index = 0;
    caf::actor worker;
    NicInfo nic;
    std::uint32_t loop = 0;
    /// Locations of local memory ("cpu:1") that other Nics are nearer to: it serves those only where no nearer one can.
    std::vector<std::string> far_from;
};

/// Engine -> trackers: answer once no task that is not terminal has its local buffer in `ranges`. Submits that were
/// checked before `version` and name one are refused from here on; those handled earlier are waited for.
struct AwaitSourceIdle {
    RangeSet ranges;
    std::uint64_t version =
        0;  ///< Of the registration snapshot that first lacked the ranges; 0: nothing is unregistered.
    TimePoint deadline;
    std::function<void(const std::vector<BatchID>&)> reply;  ///< Empty, or the batches still using one at the deadline.
};

/// Engine -> workers: take back what peers hold of `ranges` and answer once none is using them; at the deadline cut
/// them off, then answer. Not Ok: who can be neither cut nor proven gone, so that its range must stay as it is.
struct AwaitPeersIdle {
    RangeSet ranges;
    TimePoint deadline;
    std::function<void(const Status&)> reply;
};

/// Supervisor -> a worker that is to leave: let no peer in any more, take back what peers hold, and answer once nobody
/// holds anything; at the deadline with who does.
struct CloseToPeers {
    TimePoint deadline;
    std::function<void(const Status&)> reply;
};

/// Supervisor -> a worker that was closed to peers: it stays after all.
struct OpenToPeers {};

/// Supervisor -> a worker that leaves, once no tracker sends to it any more: answer when no flight is with it, or at
/// the deadline.
struct AwaitFlights {
    TimePoint deadline;
    std::function<void()> reply;
};

/// Engine -> trackers: every task that is not terminal ends with `cause`.
struct EndAll {
    Status cause;
};

/// Caller -> tracker: end tasks of a batch (all of them: task == kAllTasks) with `cause`.
struct EndTasks {
    static constexpr std::uint32_t kAllTasks = UINT32_MAX;
    BatchID batch = kInvalidBatchID;
    std::uint32_t task = kAllTasks;
    Status cause;
};

/// Caller -> tracker: what became of a task that may be running.
struct TellHistory {
    BatchID batch = kInvalidBatchID;
    std::uint32_t task = 0;
    std::function<void(Result<TaskHistory>)> reply;  ///< StaleHandle: the batch was freed.
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SubmitTasks)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Train)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SliceReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::UsePeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::DropPeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ResetPath)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::WorkerJoined)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::AwaitSourceIdle)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::AwaitPeersIdle)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::CloseToPeers)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::OpenToPeers)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::AwaitFlights)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::EndAll)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::EndTasks)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::TellHistory)
