#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/support/command_loop.h"
#include "base/config.h"
#include "base/log.h"
#include "control/incarnation_probe.h"
#include "metadata/metadata_store.h"
#include "security/cluster_auth.h"

namespace troupe::apps {

/// A metadata store without an engine, for a program that looks at segments and has none. One thread calls; it waits
/// for the store, each time within a bound.
class StoreSession {
  public:
    /// InvalidArgument when the store's URI is none, or the cluster key cannot be used. Connects to nothing yet.
    static Result<std::unique_ptr<StoreSession>> start(const std::string& metadata, const Config& config, Logger log);
    ~StoreSession();

    Result<std::vector<StoredSegment>> list(Duration timeout);
    /// `changed` is called by another thread.
    void watch(MetadataStore::WatchCallback changed);
    Status evict(const std::string& name, const Incarnation& holder);

    struct Finding {
        IncarnationProbe::Verdict verdict = IncarnationProbe::Verdict::Unknown;
        std::string why;
    };
    /// Whether the owners are alive, in the same order; some at a time, each within `timeout`.
    std::vector<Finding> probe(const std::vector<const SegmentDesc*>& segments, Duration timeout);

  private:
    StoreSession() = default;
    // Each ends before those above it.
    std::unique_ptr<CommandLoop> loop_;
    std::shared_ptr<const ClusterAuth> auth_;
    std::unique_ptr<MetadataStore> store_;  ///< Used and destroyed on the loop's turn.
};

}  // namespace troupe::apps
