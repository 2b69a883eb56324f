#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>

#include "base/byte_range.h"
#include "base/clock.h"
#include "base/incarnation.h"
#include "base/status.h"
#include "messages/peer_event.h"
#include "messages/task_history.h"
#include "messages/transfer_types.h"
#include "metadata/segment_desc.h"
#include "transports/transport.h"

/// The control plane's protocol: what the engine's calls, the SegmentDirectory, PeerMonitors, the ControlServer and
/// the Supervisor say to each other. All on the control loop, never serialised.
///
/// A `reply` is called exactly once, on the control loop's turn; it must not block.
namespace troupe {

// --- caller -> SegmentDirectory ----------------------------------------------------------------------------------

/// Open the segment of this name; kLocalSegmentID for the engine's own under any spelling. Answered at once where it is
/// open already, else when its owner is described and how it is reached is known. InvalidArgument: the name is empty,
/// too long, or with p2p no host:port. CapacityExceeded: too many are open. NotFound: the store has none of this name.
/// Timeout: the deadline passed. Canceled: the engine ends. Else why the first attempt to reach or understand the owner
/// failed: ConnectionRefused, ProtocolError, AccessDenied, StaleIncarnation and so on.
struct OpenSegment {
    std::string name;
    TimePoint deadline;
    std::function<void(Result<SegmentID>)> reply;
};

/// Take one OpenSegment back; with the last the peer is forgotten, and its tasks end as CANCELED. Answered in place, Ok
/// for kLocalSegmentID, which stays open. StaleHandle: not open.
struct CloseSegment {
    SegmentID segment = kInvalidSegmentID;
    std::function<void(Status)> reply;
};

/// Fetch the descriptor of one open segment anew, or of all (an empty name). Answered when the last has come, with the
/// first error: Timeout at the deadline, StaleHandle when it was closed meanwhile, else why it could not be fetched. At
/// once for the own segment; so is NotFound, no segment of that name is open.
struct SyncSegments {
    std::string name;
    TimePoint deadline;
    std::function<void(Status)> reply;
};

/// Have the peer's control server answer a ping: Ok as soon as it has, at once for kLocalSegmentID; of one that is
/// connecting or suspect as soon as it has greeted. Timeout: not before the deadline. PeerDown: it is down, which is
/// said at once and with the cause, or the connection ended meanwhile (StaleIncarnation: because another incarnation
/// answers). StaleHandle: the segment is not open. CapacityExceeded: too many probes of it are out.
struct ProbePeer {
    SegmentID segment = kInvalidSegmentID;
    TimePoint deadline;
    std::function<void(Status)> reply;
};

/// How a segment is reached, from what is known: answered in place. StaleHandle: it is not open.
struct ExplainSegment {
    SegmentID segment = kInvalidSegmentID;
    /// The workers that carried a task, as in Task::workers: the answer names their Nics. None: it is about the
    /// segment.
    std::optional<std::uint64_t> carriers;
    TaskHistory history;       ///< Of that task, to be put into words.
    std::uint64_t length = 0;  ///< Of that task, bytes.
    std::function<void(Result<RouteExplanation>)> reply;
};

/// The local regions or transports changed; publish when the store is free. `reply` may be empty; otherwise it is
/// called when a publish that includes the change is done.
struct PublishLocal {
    std::function<void(Status)> reply;
};

/// A transport's part of the local descriptor changed by itself: publish it.
struct TransportDescribedAnew {};

/// Tell `subscriber` of every PeerEvent from now on, as messages.
struct SubscribePeers {
    caf::actor subscriber;
};

/// Have the peer's transport answer; `answered` as in ControlExchange::ask, whose way this is. To the directory, which
/// passes it on to the peer's monitor.
struct AskPeer {
    std::uint32_t peer = 0;
    Incarnation whom;
    std::string transport;
    std::string question;
    TimePoint deadline;
    ControlExchange::Answered answered;
};

// --- ControlServer -> SegmentDirectory ---------------------------------------------------------------------------

/// A peer asked for our descriptor. Answered in place, without an error: what is registered and installed by then. The
/// text is made once for a version, and shared by all who ask for it.
struct DescribeLocal {
    std::uint64_t known_version = 0;  ///< 0: no version is known.
    /// Encoded JSON (null: unchanged since `known_version`) and the current version.
    std::function<void(std::shared_ptr<const std::string>, std::uint64_t)> reply;
};

/// A peer's transport asks ours, or a peer the injector of faults (kFaultsExchange in the place of a transport).
/// `reply` comes on any thread.
struct AnswerPeer {
    Asker asker;
    std::string from;  ///< Address of the asker's end of the connection.
    std::string transport;
    std::string question;
    std::function<void(Result<std::string>)> reply;
};

/// The control connection over which somebody asked has ended.
struct AskerLeft {
    std::uint64_t connection = 0;
};

// --- PeerMonitor <-> SegmentDirectory ----------------------------------------------------------------------------

/// Directory -> monitor: (re)connect now, whatever the back-off says.
struct ConnectPeer {};

/// Directory -> monitor: fetch the descriptor; the answer comes as PeerDescribed.
struct FetchDescriptor {};

/// Directory -> monitor: answer as to ProbePeer, of which this is the second half.
struct PingPeer {
    TimePoint deadline;
    std::function<void(Status)> reply;
};

/// Monitor -> directory: the control connection stands and the handshake is done.
struct PeerDescribed {
    std::uint32_t index = 0;
    std::string host;  ///< Numeric address that was reached.
    std::string name;  ///< What the peer calls itself.
    std::shared_ptr<const SegmentDesc> desc;
    bool outdated = false;  ///< It was asked for before the last FetchDescriptor, whose answer follows.
};

/// Monitor -> directory: somebody answers where the peer was down, and is being greeted. PeerDescribed or PeerTrouble
/// follows.
struct PeerConnecting {
    std::uint32_t index = 0;
};

/// Monitor -> directory: an attempt failed or the connection was lost. With `Down`, the peer is considered dead
/// until PeerDescribed comes.
struct PeerTrouble {
    std::uint32_t index = 0;
    PeerState state = PeerState::Suspect;
    Status cause;
};

/// Tracker -> directory: work to a peer failed in a way that calls for a look.
struct SuspectPeer {
    std::uint32_t index = 0;
    Status cause;
};

// --- engine -> Supervisor -> others ------------------------------------------------------------------------------

/// A transport and the workers that drive its Nics, by worker index.
struct InstalledTransport {
    std::shared_ptr<Transport> transport;
    std::vector<std::uint32_t> workers;
    int preference = 0;             ///< Lower is tried first.
    std::vector<std::string> nics;  ///< Names of the workers' Nics, in their order.
};

/// Engine -> supervisor: start workers for the transport's Nics and let peers use them. Answered, without an error,
/// once directory and trackers know them. Canceled: the engine ends.
struct InstallTransport {
    std::shared_ptr<Transport> transport;
    int preference = 0;
    std::function<void(Status)> reply;
};

/// Engine -> supervisor: take back what peers hold by this transport, for at most `unregister_timeout`, then end its
/// workers. Answered when its Nics are gone, ports and sockets with them. Whether transfers use it the engine has asked
/// before. NotFound: it is not installed. Canceled: the engine ends. BatchBusy: a process holds on to our memory; the
/// transport stays installed and serves on.
struct UninstallTransport {
    std::string name;
    std::function<void(Status)> reply;
};

/// Supervisor -> directory: the transports there are now. The workers are known to the trackers already.
struct TransportsChanged {
    std::vector<InstalledTransport> transports;
};

/// Supervisor -> directory: the data-plane actors there are now.
struct DataPlane {
    std::vector<caf::actor> trackers;
    std::vector<caf::actor> workers;  ///< By worker index; null where one has left.
};

/// Engine -> supervisor: answer once neither a transfer nor a peer uses any of `ranges` any more. Transfers still using
/// one at `deadline` are named in the answer; peers are cut off, or the error names one that can not be.
struct QuiesceRanges {
    RangeSet ranges;
    std::uint64_t version = 0;  ///< As in AwaitSourceIdle.
    TimePoint deadline;
    std::function<void(Result<std::vector<BatchID>>)> reply;
};

/// Engine -> supervisor: end everything; the supervisor ends last. To the others: end now.
struct Shutdown {
    TimePoint deadline;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::OpenSegment)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::CloseSegment)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SyncSegments)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ProbePeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ExplainSegment)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PublishLocal)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::TransportDescribedAnew)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SubscribePeers)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::AskPeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::AnswerPeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::AskerLeft)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::DescribeLocal)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ConnectPeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::FetchDescriptor)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PingPeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PeerDescribed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PeerConnecting)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PeerTrouble)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SuspectPeer)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::InstallTransport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::UninstallTransport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::TransportsChanged)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::DataPlane)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::QuiesceRanges)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Shutdown)
