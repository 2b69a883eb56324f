#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/reactor.h"
#include "base/status.h"
#include "metadata/segment_desc.h"

namespace troupe {

/// What happened to a segment in the store.
struct SegmentEvent {
    enum class Kind { Published, Withdrawn };
    Kind kind;
    std::string name;
    std::uint64_t version = 0;  ///< Of the published descriptor; 0 where the store does not say.
};

/// Where segments are found by name. One owner (the SegmentDirectory); every call is made on its loop's turn and
/// returns at once, every callback comes on that turn, exactly once, and none after the store is destroyed.
///
/// A store that is unreachable answers with ConnectionLost or Timeout, and heals by itself: after a reconnect it
/// publishes what was last published here again, and re-establishes the watch.
class MetadataStore {
  public:
    using DoneCallback = std::function<void(Status)>;
    using ResolveCallback = std::function<void(Result<SegmentDesc>)>;
    using WatchCallback = std::function<void(const SegmentEvent&)>;

    virtual ~MetadataStore() = default;

    /// Called once, before anything else.
    virtual Status start(Reactor& reactor) = 0;

    /// Writes the record atomically under a lease of `ttl`, renewed by the store until withdrawn. A later publish of
    /// the same name replaces it. AlreadyExists names the holder when another live incarnation has the name.
    virtual void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) = 0;
    virtual void withdraw(const std::string& name, DoneCallback done) = 0;
    /// NotFound when no such record; ProtocolError when the record does not decode.
    virtual void resolve(const std::string& name, Duration timeout, ResolveCallback done) = 0;
    /// Hears of every change from now on. One watcher.
    virtual void watch(WatchCallback changed) = 0;
};

}  // namespace troupe
