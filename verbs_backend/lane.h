#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/back_off.h"
#include "base/clock.h"
#include "verbs_backend/connector.h"
#include "verbs_backend/remote_keys.h"
#include "verbs_backend/send_queue.h"

namespace troupe::verbs {

/// What arrived by a pair, or by several.
struct Carried {
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;

    void add(std::uint64_t more) {
        bytes += more;
        ++requests;
    }
    void add(const Carried& more) {
        bytes += more.bytes;
        requests += more.requests;
    }
};

/// What the lanes of a path have in common.
struct PathState {
    RemoteKeys keys;
    std::vector<Connector::Candidate> candidates;
    std::uint32_t id = 0;             ///< The PathId.
    std::uint64_t bytes = 0;          ///< In flight, all lanes.
    std::uint32_t requests = 0;       ///< In flight, all lanes.
    std::string worked = {};          ///< The peer's device of the last pair that carried something; empty: none yet.
    bool worked_by_exchange = false;  ///< That pair was made over the control connection.
    /// The peer's devices to which pairs came up and lost the first that they were to carry, as those of another rail
    /// may: tried after the others, until something arrives by any.
    std::set<std::string> barren = {};
    std::uint32_t lanes_up = 0;
    std::uint32_t lanes = 1;                      ///< That there are.
    std::map<std::string, Carried> carried = {};  ///< By the peer's device: of pairs that have ended.
    std::uint64_t incident = 0;  ///< The last loss: each lane takes part in it once at most. See Failure.
    bool usable = true;  ///< False from the loss of the last lane, or a first attempt that failed, until one is up.
};

struct Lane;

/// WRITEs that ended with a lane's pair, lost or reset. The own device is done with them, but packets may still be on
/// their way to the peer's. They are given back when the peer has ended its end (asked through another device, or by
/// the lane's next connection) or no packet lives any more, so that any path may take them.
struct Fence {
    std::uint32_t pair = 0;  ///< The Connector's number of what asks the peer; 0: nothing does.
    Lane* lane = nullptr;    ///< Of a path that is open.
    std::vector<WorkRequest> writes;
    Status cause;
    bool retryable = true;
    std::uint64_t incident = 0;
    TimePoint deadline = kForever;  ///< No packet lives any more: they are fenced.
    TimePoint give_up = kForever;   ///< Of what its owner reset: given back without a fence. A task's end has a bound.
};

/// One queue pair's worth of a path: the requests that wait for it, those posted on it, and where it is in its life.
/// Plain data; VerbsNic moves it along.
///
///     Idle -> Connecting -> Up -> Draining -> Ending -> Idle
///                 |                  |          ^
///                 +-> Idle           +----------+  (every completion counted, or drain_timeout passed)
struct Lane {
    enum class Step : std::uint8_t {
        Idle,        ///< No pair; one is ordered when there is work and the back-off is over.
        Connecting,  ///< Ordered.
        Up,
        Draining,  ///< In the error state, or on its way there; completions are being counted.
        Ending,    ///< To be destroyed; nothing new before that is done.
    };

    Lane(std::shared_ptr<PathState> of, std::uint32_t lane_number) : path(std::move(of)), number(lane_number) {}

    std::shared_ptr<PathState> path;
    std::uint32_t number;  ///< Of the path's lanes to this peer.
    Step step = Step::Idle;
    bool orphan = false;     ///< Its path was closed; it ends when its pair has.
    std::uint32_t pair = 0;  ///< The Connector's number; 0 when there is none.

    ibv_qp* qp = nullptr;
    std::size_t remote_device = 0;  ///< Index in the peer's descriptor.
    std::string peer_device;        ///< Its name, also of the last pair when there is none now; empty: none was up yet.
    bool by_exchange = false;       ///< Up: made over the control connection.
    std::string way;                ///< Up: what its packets go by, for errors.
    std::uint32_t segments = 1;
    std::uint32_t inlined = 0;
    SendQueue queue{1};
    bool failed = false;  ///< Its last attempt to connect did: work goes by the others, and it is tried without any.
    bool proven = false;  ///< Up: something has arrived by this pair. Until then one request at a time is risked on it.
    Carried carried;      ///< By this pair.
    std::deque<WorkRequest> waiting;  ///< Not posted.
    std::uint64_t backlog = 0;        ///< Bytes waiting or posted.

    std::uint64_t incident = 0;  ///< Of its last end; see Failure.
    std::uint64_t shared = 0;    ///< The last of its path that it took part in, or that was over when it came up.
    Status cause;                ///< Draining, Ending: why; the first one that was known.
    bool lost = true;    ///< Draining, Ending: the way broke; no reset, refused request, or idle pair that was closed.
    bool reset = false;  ///< Draining, Ending: the owner reset or closed the path, and waits for its end.
    bool retryable = true;          ///< Draining, Ending: what becomes of the requests but for the culprit.
    TimePoint deadline = kForever;  ///< Of Draining and Ending.
    TimePoint retry_at{};           ///< Idle: no attempt before.
    BackOff back_off;
    std::uint32_t attempts = 0;           ///< To connect, since it carried something.
    TimePoint used_at{};                  ///< Up: when work was posted last, or it came up.
    bool evicted = false;                 ///< Draining, Ending: to make room for another.
    TimePoint roomless_since = kForever;  ///< Idle with work: no pair may be made for want of room.
    std::uint32_t owed = 0;               ///< Places in the completion queue that its pair's end will give back.
    std::uint32_t fences = 0;             ///< Of its writes, that wait.
    bool is_listed = false;               ///< On the Nic's list of lanes with something to send.
};

}  // namespace troupe::verbs
