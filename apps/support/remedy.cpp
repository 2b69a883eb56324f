#include "apps/support/remedy.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace troupe::apps {

namespace {

bool contains(const Status& status, std::string_view text) { return status.message().find(text) != std::string::npos; }

/// Every error of the store names its server so, and no peer's does.
bool isOfStore(const Status& status) {
    constexpr std::array kMarks = {"redis ", "redis://", "redis+", "sentinel "};
    return std::any_of(kMarks.begin(), kMarks.end(), [&](const char* mark) { return contains(status, mark); });
}

std::string remedyForStore(const Status& status) {
    switch (status.code()) {
        case Code::NotFound:
            // Of a segment; else the server's own name does not resolve, or its Sentinels do not know it.
            if (contains(status, "no segment '"))
                return "is the name right, and its engine running? `troupe segments --metadata URI` lists the names";
            return "is the address in --metadata right?";
        case Code::ConnectionRefused:
        case Code::ConnectionLost:
            return "is Redis up at the address in --metadata? `redis-cli -h HOST -p PORT ping` says so";
        case Code::Timeout:
            return "is Redis up at the address in --metadata, and does a firewall let its port through?";
        case Code::AccessDenied:
            return "are user and password right, and may that user do what docs/redis.md lists? They go into the URI, "
                   "or "
                   "the password into TROUPE_REDIS_PASSWORD";
        case Code::PeerDown: return "try again when it serves again; docs/redis.md, \"When Redis is away\"";
        case Code::ResourceExhausted: return "look at the log and the memory of the Redis server";
        case Code::AlreadyExists: return "take another --name, or end the engine that has this one";
        case Code::ProtocolError:
        case Code::Unsupported: return "is that a Redis, 5 or later and no cluster? docs/redis.md";
        default: return "";
    }
}

}  // namespace

std::string remedyFor(const Status& status) {
    if (isOfStore(status)) return remedyForStore(status);
    switch (status.code()) {
        case Code::ConnectionRefused:
        case Code::NotFound: return "is the name right, and `troupe serve` running there?";
        case Code::Timeout: return "is the peer alive, and does a firewall let its ports through?";
        case Code::ConnectionLost:
        case Code::PeerDown:
            return "the peer ended or the network broke; look at the peer's own messages, then try again";
        case Code::StaleIncarnation: return "the peer was restarted meanwhile; start again";
        case Code::TransportMissing:
            return "leave --transport out at both ends: then every way that both have is open. docs/same-host.md and "
                   "docs/rdma.md say what host and rdma need";
        case Code::AccessDenied:
            // Of a port; the message says what to do.
            if (contains(status, "bind ")) return "";
            return "the owner does not offer that memory; was it unregistered meanwhile?";
        case Code::AddressNotRegistered: return "the owner does not offer that memory; was it unregistered meanwhile?";
        case Code::ProtocolError:
            return "give the name that `troupe serve` prints; is it of this version at both ends?";
        case Code::ChecksumMismatch:
            return "does anybody else write to that segment? If not this is a defect; please report it with this "
                   "message";
        case Code::Internal: return "this is a defect of Troupe; please report it with this message";
        default: return "";
    }
}

}  // namespace troupe::apps
