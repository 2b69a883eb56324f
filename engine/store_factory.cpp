#include "engine/store_factory.h"

#include <utility>

#include "metadata_redis/redis_store.h"
#include "metadata_redis/redis_uri.h"

namespace troupe {

bool isP2p(const std::string& metadata_conn) { return metadata_conn == "p2p" || metadata_conn == "P2PHANDSHAKE"; }

Result<std::unique_ptr<MetadataStore>> makeStore(const std::string& metadata_conn, const Config& settings, Logger log,
                                                 std::shared_ptr<const ClusterAuth> auth) {
    if (!RedisUri::isRedis(metadata_conn))
        return {Code::InvalidArgument,
                "unknown metadata connection '" + withoutCredentials(metadata_conn) +
                    "'; known are p2p (or P2PHANDSHAKE), redis://host:port, redis+unix:///path, "
                    "redis+sentinel://host:port,host:port/name, and inproc:// within a program that has such a store"};
    auto uri = RedisUri::parse(metadata_conn);
    if (!uri) return uri.status();
    if (const Status added = addConfiguredPassword(*uri, settings); !added) return added;
    return std::unique_ptr<MetadataStore>(
        std::make_unique<RedisStore>(std::move(uri).value(), settings, std::move(log), std::move(auth)));
}

}  // namespace troupe
