#include "metadata_redis/redis_errors.h"

#include <array>
#include <string>

#include "base/printable.h"

namespace troupe {

namespace {

struct Known {
    std::string_view begins;
    Code code;
    std::string_view meaning;  ///< With the remedy.
};

constexpr std::string_view kScriptForbidden =
    "the server's ACL forbids what the script does; docs/redis.md has the line it needs";

// The first word of an error is its kind (redis.io, "RESP errors"); what begins with ERR goes by its text.
constexpr std::array kKnown{
    Known{"NOAUTH", Code::AccessDenied, "the server asks for a password; give it in the URI or as redis.password"},
    Known{"WRONGPASS", Code::AccessDenied, "the server refuses this user or password"},
    Known{"ERR invalid password", Code::AccessDenied, "the server refuses this password"},
    Known{"NOPERM", Code::AccessDenied, "the server's ACL forbids it; docs/redis.md has the line it needs"},
    // What the ACL forbids to a script: Redis 7, and Redis 6, which has it behind its words about the script.
    Known{"ERR The user executing the script can't", Code::AccessDenied, kScriptForbidden},
    Known{"The user executing the script can't", Code::AccessDenied, kScriptForbidden},
    Known{"ERR ACL failure in script", Code::AccessDenied, kScriptForbidden},
    Known{"LOADING", Code::PeerDown, "the server is loading its data and serves when that is done"},
    Known{"MASTERDOWN", Code::PeerDown, "this server is a replica that has lost its master"},
    Known{"READONLY", Code::PeerDown, "this server is a read-only replica; is the URI that of the master?"},
    Known{"NOREPLICAS", Code::PeerDown, "the server has too few replicas to take writes (min-replicas-to-write)"},
    Known{"BUSY", Code::PeerDown, "the server is busy with somebody's script"},
    Known{"CLUSTERDOWN", Code::PeerDown, "the cluster does not serve"},
    Known{"OOM", Code::ResourceExhausted, "the server is full (maxmemory); give it more, or remove records"},
    Known{"MISCONF", Code::ResourceExhausted, "the server cannot save to its disk and takes no writes; see its log"},
    Known{"ERR max number of clients", Code::ResourceExhausted, "the server has all the clients it takes (maxclients)"},
    Known{"MOVED", Code::Unsupported, "this is a node of a Redis Cluster; one server or a Sentinel is needed"},
    Known{"ASK", Code::Unsupported, "this is a node of a Redis Cluster; one server or a Sentinel is needed"},
    Known{"CROSSSLOT", Code::Unsupported, "this is a node of a Redis Cluster; one server or a Sentinel is needed"},
    Known{"ERR unknown command", Code::Unsupported,
          "the server lacks a command; Redis 5 or later is needed, and for a Sentinel redis+sentinel://"},
    Known{"ERR DB index", Code::InvalidArgument, "the server has no such database; look at the end of the URI"},
    Known{"WRONGTYPE", Code::ProtocolError, "the key holds something else than a record; is redis.prefix right?"},
};

// Enough of a server's words to recognise them in its log.
constexpr std::size_t kQuoted = 160;

bool begins(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

std::string quoted(std::string_view error) { return printable(std::string(error.substr(0, kQuoted))); }

}  // namespace

Status redisErrorStatus(std::string_view error) {
    // The error of a script stands behind some words about the script in Redis 6 and before.
    for (const Known& known : kKnown) {
        const bool inside = begins(error, "ERR Error running script") && error.find(known.begins) != error.npos;
        if (!begins(error, known.begins) && !inside) continue;
        // Redis repeats the arguments of an unknown command, which for AUTH are secrets.
        const std::string words = known.begins == "ERR unknown command" ? std::string(known.begins) : quoted(error);
        return {known.code, std::string(known.meaning) + " ('" + words + "')"};
    }
    return {Code::ProtocolError, "the server answered '" + quoted(error) + "'"};
}

Status wrongReply(const RedisReply& reply, std::string_view due) {
    if (reply.type == RedisReply::Type::Error) return redisErrorStatus(reply.text);
    return {Code::ProtocolError,
            "the server answered with " + describe(reply) + " where " + std::string(due) + " was due; is this Redis?"};
}

bool isReadOnlyError(const RedisReply& reply) {
    return reply.type == RedisReply::Type::Error &&
           (begins(reply.text, "READONLY") || reply.text.find("-READONLY") != std::string::npos);
}

bool isOnlyAboutWrites(const RedisReply& reply) {
    return reply.type == RedisReply::Type::Error && begins(reply.text, "MISCONF");
}

bool wantsNoPassword(const RedisReply& reply) {
    // Redis 6 and later; before.
    return reply.type == RedisReply::Type::Error &&
           (reply.text.find("called without any password configured") != std::string::npos ||
            reply.text.find("no password is set") != std::string::npos);
}

bool isLasting(const Status& trouble) {
    switch (trouble.code()) {
        case Code::AccessDenied:
        case Code::Unsupported:
        case Code::InvalidArgument: return true;
        default: return false;
    }
}

}  // namespace troupe
