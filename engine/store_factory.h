#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "metadata/metadata_store.h"
#include "security/cluster_auth.h"

namespace troupe {

/// "p2p" or "P2PHANDSHAKE": no store, a segment's name is its control endpoint.
bool isP2p(const std::string& metadata_conn);

/// The store that a redis:// URI (docs/redis.md) means, not started. InvalidArgument names what is wrong with the URI,
/// or lists the known schemes; never a password.
/// With a key in `auth` (may be null) its records are signed and checked.
Result<std::unique_ptr<MetadataStore>> makeStore(const std::string& metadata_conn, const Config& settings, Logger log,
                                                 std::shared_ptr<const ClusterAuth> auth = nullptr);

}  // namespace troupe
