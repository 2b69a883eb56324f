#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/incarnation.h"
#include "base/status.h"
#include "metadata/segment_desc.h"
#include "transports/opcode.h"

namespace troupe {

/// A process that serves a segment, at one incarnation. Immutable; shared by everyone who talks to it.
struct Peer {
    std::uint32_t index = 0;  ///< Small number, unique among the engine's peers.
    std::string name;         ///< Segment name.
    std::string host;         ///< Numeric address that its control connection reached; never a name.
    std::shared_ptr<const SegmentDesc> desc;
};

/// One piece of a transfer: the unit a Nic posts. The Nic keeps a copy; the caller keeps both ranges valid until the
/// request is completed or failed.
struct WorkRequest {
    std::byte* local = nullptr;
    std::uint64_t remote = 0;  ///< Address in the peer's address space.
    std::uint64_t length = 0;  ///< Bytes, > 0.
    std::uint64_t cookie = 0;  ///< Given back unchanged; opaque to the Nic.
    Opcode opcode = Opcode::Read;
};

/// `requests` work requests with the same cookie are done: their bytes are in destination memory and visible there.
struct Completion {
    std::uint64_t cookie = 0;
    std::uint32_t requests = 0;
    std::uint64_t bytes = 0;
};

/// One work request ended without success.
struct Failure {
    WorkRequest request;
    Status cause;            ///< The first cause, with peer and device named; never the flush that followed it.
    bool retryable = false;  ///< The path broke (lost, refused, timed out), the request itself was not refused.
    bool quiesced = true;    ///< Nothing will touch `request.local` any more because of this request.
    /// A write has left nothing on its way to the peer, so that it may be tried again over any path. Else only this Nic
    /// may try again, whose new connection ends what the old one left.
    bool fenced = false;
    /// Not 0: failures of this Nic with the same number have one cause, and cost a task one retry together.
    std::uint64_t incident = 0;
    /// Not quiesced: by what the Nic will name it in Sweep::proven, should it ever know better. 0: it will not.
    std::uint64_t doubt = 0;
    /// This Nic will never carry it, for what its memory is; `cause` says why. Nothing was sent, and transports that
    /// are preferred less may take it. Costs no retry. Only with `quiesced` and `fenced`.
    bool declined = false;
};

/// Whether a path can carry anything now: it was lost, or is there again. Said at each loss and each return. A Nic that
/// says a path is lost tries to get it back by itself, with a pause that grows; nobody needs to risk work on it.
struct PathChange {
    std::uint32_t path = 0;
    bool usable = true;
};

/// What one poll gathered. The owner clears and reuses it.
struct Sweep {
    std::vector<Completion> completed;
    std::vector<Failure> failed;
    std::vector<PathChange> paths;
    /// Doubts (Failure::doubt, of this sweep or earlier ones) that are over: nothing touches those buffers any more.
    std::vector<std::uint64_t> proven;

    bool empty() const { return completed.empty() && failed.empty() && paths.empty() && proven.empty(); }
    void clear() {
        completed.clear();
        failed.clear();
        paths.clear();
        proven.clear();
    }
    /// Adds one finished request, merged with the previous entry when the cookie is the same.
    void complete(std::uint64_t cookie, std::uint64_t bytes) {
        if (!completed.empty() && completed.back().cookie == cookie) {
            completed.back().requests += 1;
            completed.back().bytes += bytes;
        } else {
            completed.push_back({cookie, 1, bytes});
        }
    }
};

/// What a Nic is and how much it takes.
struct NicInfo {
    std::string name;            ///< "tcp0", "mlx5_0:1"; unique in the engine.
    std::string transport;       ///< "tcp", "rdma", ...
    std::string location = "*";  ///< NUMA node it is near, "cpu:0", or "*".
    /// Best largest work request; longer ones are cut, but for those whose two ranges overlap (same process only):
    /// their pieces would overwrite each other's source, so the Nic gets them whole.
    std::uint64_t slice_bytes = 1u << 20;
    std::uint64_t merge_bytes = 0;          ///< Adjacent requests are merged up to this; 0: never.
    std::uint64_t window_bytes = 8u << 20;  ///< Bytes in flight per path that keep it busy.
    std::uint32_t window_requests = 1024;   ///< Work requests in flight per path, at most.
    bool same_address_space = false;        ///< To the own segment it copies in this process; see `slice_bytes`.
};

/// A Nic's name for its way to one peer. Valid from openPath until closePath.
using PathId = std::uint32_t;

/// One NIC, or what moves bytes like one (a set of sockets, the copies within a host). It has exactly one
/// owner, and every call is made on that owner's turn: no call blocks, none is thread-safe, none knows of actors.
class Nic {
  public:
    virtual ~Nic() = default;  ///< Closes everything; nothing touches any buffer afterwards, unless shut said so.

    /// The last call. Ends everything and says nothing of it: the owner fails what is outstanding. Not Ok: what could
    /// not be ended, so that neither what is outstanding nor what was failed without proof counts as quiesced.
    virtual Status shut() { return {}; }

    virtual const NicInfo& info() const = 0;

    /// A way to `peer`, made ready in the background; work may be posted at once and waits for it. An error here is
    /// final for this peer (it serves no such transport, its address does not parse).
    virtual Result<PathId> openPath(std::shared_ptr<const Peer> peer) = 0;
    /// The peer's descriptor has a newer version of the same incarnation: other regions, other keys.
    // By value: who overrides it keeps it. NOLINTNEXTLINE(performance-unnecessary-value-param)
    virtual void updatePeer(PathId /*path*/, std::shared_ptr<const Peer> /*peer*/) {}
    /// Whether what this Nic goes by is at the same place for `is`, a later description of the incarnation that `was`
    /// describes. False: the owner closes its path and opens another.
    virtual bool isSamePlace(const Peer& /*was*/, const Peer& /*is*/) const { return true; }
    /// Ends everything posted on the path: each outstanding request appears in a later poll as failed with `cause`
    /// (not retryable), quiesced wherever that can be. The path id is dead afterwards.
    virtual void closePath(PathId path, const Status& cause) = 0;
    /// As closePath, but the path stays and connects anew for the next post: how deadlines and cancels are made true.
    /// Failures are marked retryable. Work that could not begin anew, a half-done copy over its own source, is brought
    /// to its end instead.
    virtual void resetPath(PathId path, const Status& cause) = 0;

    /// Takes work in order; returns how many of `requests` were taken, fewer only when the path's window is full.
    /// Nothing is sent before the next poll. Requests may complete in any order.
    virtual std::size_t post(PathId path, std::span<const WorkRequest> requests) = 0;

    /// One pass: sends, receives, serves peers, and adds what ended to `sweep`. Bounded in time (some hundred
    /// microseconds). True when anything moved, so that the loop polls again before it sleeps.
    virtual bool poll(TimePoint now, Sweep& sweep) = 0;

    /// Before sleep: makes `waitFd` readable as soon as poll would have something to do. False: poll again now.
    virtual bool arm() = 0;
    /// A descriptor for the loop's epoll (level-triggered EPOLLIN), or -1 when polling is the only way.
    virtual int waitFd() const = 0;
    /// The next time at which poll must run although waitFd is silent; kForever when none.
    virtual TimePoint nextDeadline() const { return kForever; }

    /// True while work from a peer is reading from or writing to `range`, so that it may not be unregistered yet.
    /// Work posted here is counted by the poster, not by this.
    virtual bool servesPeerIn(const ByteRange& range) const = 0;
    /// Ends such work by cutting the connections it came on; servesPeerIn is false afterwards.
    virtual void cutPeersIn(const ByteRange& range) = 0;
    /// The ranges, which may be many, are being unregistered: what peers were given to work on them by themselves is to
    /// be taken back. Called before servesPeerIn, which stays true until they are known to have let go.
    virtual void revokeIn(const RangeSet&) {}
    /// Ok, or BatchBusy naming a region and the process that was given it, has not let go of it, and is not proven
    /// gone. After cutPeersIn it can be neither cut nor waited for, and memory in the range must not be given to
    /// anybody else.
    virtual Status heldIn(const ByteRange&) const { return {}; }
    /// A region that was asked back (revokeIn, closeToPeers), and a process that has not let go of it.
    struct Holding {
        ByteRange region;
        std::string holder;
        bool operator==(const Holding&) const = default;
    };
    /// Those that touch `range`.
    virtual std::vector<Holding> holdingsIn(const ByteRange&) const { return {}; }
    /// The Nic is to leave: from now on no peer is let in or given anything to work on by itself, and what was given is
    /// taken back. heldIn of everything tells when nobody has any of it.
    virtual void closeToPeers() {}
    /// It stays after all.
    virtual void openToPeers() {}
};

}  // namespace troupe
