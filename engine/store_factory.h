#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "metadata/metadata_store.h"

namespace troupe {

/// "p2p" or "P2PHANDSHAKE": no store, a segment's name is its control endpoint.
bool isP2p(const std::string& metadata_conn);

/// The store that a redis:// URI (docs/redis.md) means, not started. InvalidArgument names what is wrong with the URI,
/// or lists the known schemes; never a password.
Result<std::unique_ptr<MetadataStore>> makeStore(const std::string& metadata_conn, const Config& settings, Logger log);

}  // namespace troupe
