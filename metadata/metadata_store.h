#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/reactor.h"
#include "base/status.h"
#include "metadata/segment_desc.h"

namespace troupe {

/// What happened to a segment in the store.
struct SegmentEvent {
    enum class Kind {
        Published,
        Withdrawn,
        Missed,  ///< Events may have been lost (the store was away): look again at whatever matters. No name.
    };
    Kind kind;
    std::string name;
    std::uint64_t version = 0;  ///< Of the published descriptor; 0 where the store does not say.
    Incarnation incarnation;    ///< Of the owner; null where the store does not say.
};

/// A record as `troupe segments` shows it.
struct StoredSegment {
    std::string name;
    std::optional<Duration> lease;  ///< Left of it; none: the record stays until somebody removes it.
    std::size_t bytes = 0;          ///< Of the record.
    Result<SegmentDesc> desc;       ///< Or why it does not decode, or may not be used.
    std::string signature = {};     ///< Of the record: "none", "unchecked", "good" or "wrong"; empty: not known.
};

/// Where segments are found by name. One owner (the SegmentDirectory); every call is made on its loop's turn and
/// returns at once, every callback comes on that turn, exactly once, and none after the store is destroyed.
///
/// A store that is unreachable answers with ConnectionRefused, ConnectionLost or Timeout, and heals by itself: after a
/// reconnect it publishes what was last published here again, and re-establishes the watch.
class MetadataStore {
  public:
    using DoneCallback = std::function<void(Status)>;
    using ResolveCallback = std::function<void(Result<SegmentDesc>)>;
    using InspectCallback = std::function<void(Result<RecordHead>)>;
    using ListCallback = std::function<void(Result<std::vector<StoredSegment>>)>;
    using WatchCallback = std::function<void(const SegmentEvent&)>;

    virtual ~MetadataStore() = default;

    /// Called once, before anything else; from any thread.
    virtual Status start(Reactor& reactor) = 0;

    /// Writes the record atomically under a lease of `ttl`, renewed by the store until withdrawn. A later publish of
    /// the same name replaces it. AlreadyExists names the holder when another incarnation has the name.
    virtual void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) = 0;
    /// Tells those who watch of a version that is not written yet, for little whatever the size of the record. False
    /// when it cannot: the name is not held here at the moment, or the store knows no such thing; then publish tells.
    /// Nobody hears whether it arrived: a later publish, and the owner's control connection, make good what was missed.
    virtual bool announce(const SegmentEvent&) { return false; }
    /// Removes what was published here under `name`, unless another incarnation has the name by now.
    virtual void withdraw(const std::string& name, DoneCallback done) = 0;
    /// NotFound when no such record; ProtocolError when the record does not decode.
    virtual void resolve(const std::string& name, Duration timeout, ResolveCallback done) = 0;
    /// As resolve, but only whose record it is: cheap however many regions it has.
    virtual void inspect(const std::string& name, Duration timeout, InspectCallback done) = 0;
    /// Removes the record of `name` if `holder` has it; it must be proven dead. NotFound: it is not the holder (any
    /// more).
    virtual void evict(const std::string& name, const Incarnation& holder, DoneCallback done) = 0;
    /// All records, sorted by name.
    virtual void list(Duration timeout, ListCallback done) = 0;
    /// Hears of every change from now on. One watcher. A record whose lease ends without a word may be no event: its
    /// owner's control connection tells sooner.
    virtual void watch(WatchCallback changed) = 0;
};

}  // namespace troupe
