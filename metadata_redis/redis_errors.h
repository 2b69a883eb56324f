#pragma once

#include <string_view>

#include "base/status.h"
#include "metadata_redis/redis_reply.h"

namespace troupe {

/// What a server's error reply ("WRONGPASS invalid username-password pair...") means, with what to do about it:
///
/// * AccessDenied: NOAUTH, WRONGPASS, NOPERM and their elder forms.
/// * PeerDown: it serves later, or another does. LOADING, MASTERDOWN, READONLY, NOREPLICAS, BUSY, CLUSTERDOWN.
/// * ResourceExhausted: OOM, MISCONF, too many clients.
/// * Unsupported: a Redis Cluster (MOVED, ASK, CROSSSLOT), or a command that the server does not have.
/// * InvalidArgument: no such database.
/// * ProtocolError: a key that holds something else (WRONGTYPE), and anything else.
Status redisErrorStatus(std::string_view error);

/// For a reply that is not what was due: redisErrorStatus of an error, else ProtocolError naming both.
Status wrongReply(const RedisReply& reply, std::string_view due);

/// The server has become a replica: another one takes writes.
bool isReadOnlyError(const RedisReply& reply);

/// The server answers a PING with this, too, while it cannot save to its disk (MISCONF); it serves reads all the same.
bool isOnlyAboutWrites(const RedisReply& reply);

/// AUTH was refused because the server wants no password.
bool wantsNoPassword(const RedisReply& reply);

/// Trouble that time alone does not mend: waiting for the next attempt is of no use to a caller.
bool isLasting(const Status& trouble);

}  // namespace troupe
