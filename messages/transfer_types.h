#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/status.h"
#include "transports/opcode.h"

namespace troupe {

/// A batch of transfers. Carries a generation: the id of a freed batch is an error (StaleHandle), never another batch.
using BatchID = std::uint64_t;
inline constexpr BatchID kInvalidBatchID = 0;

/// An open remote (or the local) segment. Carries a generation as BatchID does.
using SegmentID = std::uint64_t;
inline constexpr SegmentID kInvalidSegmentID = 0;
/// The engine's own segment; always open.
inline constexpr SegmentID kLocalSegmentID = 1;

/// A request's deadline that is left to the engine: the `transfer_timeout` of its config (30 s unless set; 0: none)
/// from submit.
inline constexpr TimePoint kDefaultDeadline = kForever;

/// One read or write of a contiguous range.
struct TransferRequest {
    // The names of the field's API.
    // NOLINTBEGIN(readability-identifier-naming)
    static constexpr Opcode READ = Opcode::Read;    ///< From the segment into `source`.
    static constexpr Opcode WRITE = Opcode::Write;  ///< From `source` into the segment.
    // NOLINTEND(readability-identifier-naming)

    Opcode opcode = READ;
    void* source = nullptr;  ///< Local memory, wholly inside registered regions.
    SegmentID target_id = kInvalidSegmentID;
    std::uint64_t target_offset = 0;  ///< The owner's address of the first byte.
    std::size_t length = 0;           ///< Bytes; 0 completes as soon as nothing is waited for.
    int advise_retry_cnt = 0;         ///< Attempts after the first; at least `retry_count` of the config is made.
    /// When the task ends as TIMEOUT if nothing else ended it. For none set `transfer_timeout` to 0; for a request that
    /// may take longer than the others, name a time that is far away (Clock::now() + std::chrono::hours(24)).
    TimePoint deadline = kDefaultDeadline;

    // Order with the work of a GPU, of whose memory `source` is then, in a request of no bytes, too. CUevent, CUstream
    // (cudaEvent_t, cudaStream_t). What is waited for is taken as it is at submit: from when that returns the event may
    // be recorded again, the stream given more, and either destroyed.
    /// Nothing of the request begins before the event, as recorded by now, is done. Of any GPU. Null: none.
    void* wait_event = nullptr;
    /// Nor before all is done that the stream was given by now. A stream of the GPU of `source`, and not captured into
    /// a graph. Null is a stream, too: CUDA's default stream, as cudaStreamLegacy; cudaStreamPerThread is that of the
    /// thread that submits. std::nullopt: none.
    std::optional<void*> wait_stream;
    /// Recorded by the submit, and done soon after the task has ended: what is given to the GPU behind it from when
    /// that returns sees the bytes in destination memory, if the task is COMPLETED. It is done, too, when the task ends
    /// otherwise. Named by several requests of one submit, it is done when all of those have ended. An event of the GPU
    /// of `source`, which must live until the task is terminal. Where a GPU cannot do that (docs/gpu.md; the log says
    /// so) it is recorded when the bytes are there, and only if the task is COMPLETED. Null: none.
    void* done_event = nullptr;
};

enum class TransferStatusEnum : int {
    WAITING = 0,    ///< Not submitted yet.
    PENDING = 1,    ///< Accepted, not ended.
    INVALID = 2,    ///< Never: such a request is refused at submit. Kept for Mooncake's numbering. Terminal.
    CANCELED = 3,   ///< Terminal.
    COMPLETED = 4,  ///< The bytes are in destination memory and visible there. Terminal.
    TIMEOUT = 5,    ///< The deadline passed. Terminal.
    FAILED = 6,     ///< `error` says why. Terminal.
};

constexpr bool isTerminal(TransferStatusEnum s) { return s >= TransferStatusEnum::INVALID; }
/// "COMPLETED" and so on.
const char* toString(TransferStatusEnum s);

/// How a peer stands, as the control connection to it shows. Connecting: that is being made. Suspect: it was lost, and
/// is being made anew.
enum class PeerState { Unknown, Connecting, Up, Suspect, Down };
/// "up" and so on.
const char* toString(PeerState s);

/// Which way the bytes to a segment go, and why not a better one.
struct RouteExplanation {
    /// A transport that would have been preferred, and why it is not used.
    struct Refusal {
        std::string transport;
        Status why;
    };
    /// A transport and the Nics by which it carries something.
    struct Way {
        std::string transport;
        std::vector<std::string> nics;
    };
    /// A part of a task's way that did not go as it should, and what followed.
    struct Attempt {
        std::string transport;
        std::string nic;
        std::uint64_t bytes = 0;
        Status cause;  ///< Why these bytes came back; Ok: they arrived.
        /// Of bytes that came back: until something of the task was sent again. Of bytes that arrived after others had
        /// come back: from then until the first of them.
        Duration pause{};
    };
    /// How a task stood when the engine ended it: its deadline passed, its peer went down or restarted, no transport
    /// was left. Of one that a Nic or the owner refused, or that the caller ended, there is none.
    struct Ending {
        Status cause;
        std::uint64_t length = 0;        ///< Bytes.
        std::uint64_t arrived = 0;       ///< Bytes, by then.
        std::uint32_t under_way = 0;     ///< Parts of it that Nics had; what became of them is in `attempts`.
        bool sent = false;               ///< Anything of it had been given to a Nic.
        std::vector<std::string> lost;   ///< Nics whose path to the peer was lost at that moment.
        std::uint16_t retries_left = 0;  ///< Of those that a failure costs.
    };
    /// How the owner of a segment stands now.
    struct Owner {
        PeerState state = PeerState::Unknown;
        Duration silent{};         ///< Since its control connection last brought a descriptor, or that it is unchanged.
        Status trouble;            ///< Why that connection was lost, or not made, the last time; Ok: never.
        Duration trouble_since{};  ///< Since then.

        /// "suspect, last heard of 2300 ms ago; 100 ms ago: ConnectionLost: ...", for people.
        std::string toString() const;
    };
    /// What carries it; empty: nothing does. Of a task not one that only declined it: `attempts` have that.
    std::string transport;
    std::vector<std::string> nics;  ///< Of a segment: those that may carry it. Of a task: those that did, or do.
    /// Of a task with memory of a GPU at an end, once something carries it: how that does so, for people. "copied
    /// by the GPU", "mapped by an IPC handle", "staged through pinned memory here", "straight, by dma-buf", ...
    std::string gpu;
    std::vector<Refusal> refused;  ///< The transports that would have been preferred, best first.
    /// Of a segment: what carries it while those above are lost, best first. Of a task: what carried other parts of it.
    std::vector<Way> then;
    /// Of a segment: the transports that would follow those and do not reach it either, best first.
    std::vector<Refusal> refused_next;
    /// Of a task that did not go smoothly: what happened, in order. The first 32; how many more there were is in
    /// `attempts_left_out`.
    std::vector<Attempt> attempts;
    std::uint64_t attempts_left_out = 0;
    std::optional<Ending> ending;  ///< Of a task that the engine ended.
    std::optional<Owner> owner;    ///< None for the own segment.

    /// "rdma by mlx5_0, then tcp by tcp0; not host: ...", for people; of a task with memory of a GPU "host by host0
    /// (copied by the GPU)". How a task ended and its attempts follow, and how the owner stands if it is not up or the
    /// task was ended, each on a line. `refused_next` is left out.
    std::string toString() const;
};

/// How a task or a batch stands.
struct TransferStatus {
    TransferStatusEnum s = TransferStatusEnum::WAITING;
    std::size_t transferred_bytes = 0;  ///< Bytes known to have arrived; final once `s` is terminal.
    bool quiesced = true;               ///< False: something may still touch the local buffer; docs/design.md, rule 4.
    Status error;                       ///< Why the task ended without success; of a batch, its first failed task's.
};

/// Local memory that a task ended without and a Nic may still touch: it could not prove the opposite.
struct QuarantineEntry {
    /// Empty: work of ours ended without proof, and what follows says which. Otherwise the range is a region that this
    /// process of the host was given and has not let go of, and of the rest only region, nic, cause and since are set.
    /// Such a region may be used as before; it cannot be unregistered.
    std::string holder;
    ByteRange range;
    ByteRange region;              ///< The registered region that its first byte lies in; empty: none.
    Opcode opcode = Opcode::Read;  ///< READ: it may still be written; WRITE: read.
    std::string segment;           ///< The peer's.
    std::string nic;
    BatchID batch = kInvalidBatchID;  ///< Of its first task; the id may be stale by now.
    std::uint32_t first_task = 0;
    std::uint32_t task_count = 1;
    Status cause;       ///< Why the work ended.
    TimePoint since{};  ///< On the loops' clock.
    /// "[0x1000, 0x2000) of region ... by mlx5_0:1 to segment 'a', ...", for people.
    std::string toString(TimePoint now) const;
};

/// What is in quarantine now, and what ever was.
struct Quarantined {
    std::vector<QuarantineEntry> entries;  ///< Not proven yet; adjacent parts of one task are one.
    std::uint64_t bytes = 0;               ///< Of `entries`.
    std::uint64_t ever = 0;    ///< Parts of transfers, and regions in others' hands, that came in since init.
    std::uint64_t proven = 0;  ///< Of those, that left again.
};

}  // namespace troupe
