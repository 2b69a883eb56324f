#include "apps/support/remedy.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace troupe::apps {

namespace {

constexpr const char* kKeyRemedy =
    "give every engine and command of the cluster the same key: --set auth.key_file=FILE, "
    "or TROUPE_AUTH_KEY_FILE; docs/security.md";

constexpr const char* kPeerEnded =
    "the peer ended or the network broke; look at the peer's own messages, then try again";

constexpr const char* kPeerSilent =
    "was the peer stopped, its machine overloaded, or a link down for so long? Where that is usual raise "
    "keepalive_timeout (--set keepalive_timeout=10s); else look at the peer's own messages, then try again";

constexpr const char* kPeerIsBack =
    "the peer lives, so the way to it broke: look at its own messages and at the network, then try again";

bool contains(const Status& status, std::string_view text) { return status.message().find(text) != std::string::npos; }

/// Of a setting, from wherever it came: base/config.h's messages.
bool isOfSetting(const Status& status) {
    constexpr std::array kOrigins = {"--set", "environment: TROUPE_", "environment: unknown setting", "settings: "};
    return status.code() == Code::InvalidArgument &&
           std::any_of(kOrigins.begin(), kOrigins.end(),
                       [&](std::string_view origin) { return status.message().rfind(origin, 0) == 0; });
}

/// Of a file that a setting or --config names: what to give instead. Empty: of something else.
std::string remedyForFile(const Status& status) {
    if (status.code() != Code::InvalidArgument && status.code() != Code::NotFound) return "";
    const auto of = [&](std::string_view setting) {
        return contains(status, std::string(setting) + ": '") || contains(status, std::string(setting) + " '");
    };
    for (const char* setting : {"auth.key_file", "auth.accept_key_file"}) {
        if (!of(setting)) continue;
        // Whose it is and who may read it the message says by itself.
        if (contains(status, "chmod") || contains(status, "chown"))
            return "`stat FILE` shows whose it is and who may read it; docs/security.md";
        return std::string("a file whose first line is the key: (umask 077; openssl rand -hex 32 > FILE), and --set ") +
               setting + "=FILE; docs/security.md";
    }
    if (contains(status, "auth.key has ") || contains(status, "auth.accept_key has "))
        return "a longer key: (umask 077; openssl rand -hex 32 > FILE), and --set auth.key_file=FILE; docs/security.md";
    if (of("redis.password_file"))
        return "a file whose first line is the password: --set redis.password_file=FILE; or give the password itself "
               "as TROUPE_REDIS_PASSWORD; docs/redis.md";
    if (of("topology.matrix"))
        return "leave topology.matrix out, then it is made from what the machine has; `troupe topo --json` shows that "
               "as \"priority_matrix\", which is what such a file holds";
    if (status.message().rfind("file ", 0) == 0 && status.code() == Code::NotFound)
        return "is the path right? --config takes a JSON object like {\"tcp.lanes\": 2}; `troupe config` lists every "
               "setting";
    if (status.message().rfind("file ", 0) == 0)
        return "--config takes a JSON object like {\"tcp.lanes\": 2}; `troupe config` lists every setting with its "
               "unit "
               "and range";
    return "";
}

/// Of a file that is not there or cannot be started: the codes are those of peers that are not. Nothing: of none.
std::optional<std::string> remedyForPath(const Status& status) {
    const auto begins = [&](std::string_view text) { return status.message().rfind(text, 0) == 0; };
    if (begins("scenario file ")) return "docs/apps.md, \"faults\", says what such a file holds";
    if (status.code() != Code::NotFound) return std::nullopt;
    // The message says which.
    if (contains(status, "cannot start /") || contains(status, "No such file")) return "";
    return std::nullopt;
}

/// Every error of the store names its server so, and no peer's does.
bool isOfStore(const Status& status) {
    constexpr std::array kMarks = {"redis ", "redis://", "redis+", "sentinel "};
    return std::any_of(kMarks.begin(), kMarks.end(), [&](const char* mark) { return contains(status, mark); });
}

/// PATH of "connect unix:PATH: why"; empty for another server.
std::string unixSocketOf(const Status& status) {
    constexpr std::string_view kMark = "connect unix:";
    const auto at = status.message().find(kMark);
    if (at == std::string::npos) return "";
    const auto begin = at + kMark.size();
    return status.message().substr(begin, status.message().find(": ", begin) - begin);
}

std::string remedyForStore(const Status& status) {
    if (const std::string path = unixSocketOf(status); !path.empty()) {
        const std::string asks = "`redis-cli -s " + path + " ping` says whether it answers";
        // ENOENT
        return contains(status, "(errno 2)")
                   ? "there is no such file: is Redis up, with `unixsocket " + path + "` in its configuration? " + asks
                   : "is Redis up, and may this user open its socket? " + asks;
    }
    switch (status.code()) {
        case Code::InvalidArgument:
            return contains(status, "no such database") ? "take a database that the server has (0 to 15, unless its "
                                                          "`databases` says more), or leave it out"
                                                        : "";
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
            if (contains(status, "cluster key")) return kKeyRemedy;
            return "are user and password right, and may that user do what docs/redis.md lists? They go into the URI, "
                   "or the password into TROUPE_REDIS_PASSWORD (the setting redis.password), or into the file that "
                   "redis.password_file names";
        case Code::PeerDown: return "try again when it serves again; docs/redis.md, \"When Redis is away\"";
        case Code::ResourceExhausted: return "look at the log and the memory of the Redis server";
        case Code::AlreadyExists: return "take another --name, or end the engine that has this one";
        case Code::ProtocolError:
            if (contains(status, "segment descriptor") || contains(status, "the record") ||
                contains(status, "than a record"))
                return "that record is damaged, or not Troupe's: its owner writes it anew when it is restarted, and "
                       "`troupe segments --metadata URI` lists what is unreadable; docs/redis.md";
            return "is that a Redis, 5 or later and no cluster? docs/redis.md";
        case Code::Unsupported: return "is that a Redis, 5 or later and no cluster? docs/redis.md";
        default: return "";
    }
}

/// Of transport rdma that finds no device to use: each cause that the message has (verbs_backend/device.cpp), once.
/// Empty: of something else.
std::string remedyForDevices(const Status& status) {
    constexpr std::pair<std::string_view, std::string_view> kCauses[] = {
        {"ib_uverbs is not loaded",
         "`modprobe -a ib_uverbs rdma_ucm` and the module of the device, as root on the host (also of a container)"},
        {"this machine has none",
         "`ibv_devices` lists what there is; a device needs the module of its driver; `rdma link add rxe0 type rxe "
         "netdev eth0` makes one in software (Soft-RoCE)"},
        {"no access to ",
         "let this user read and write /dev/infiniband/*; a container is given it by "
         "--device=/dev/infiniband"},
        {"no channel of rdma_cm", "`modprobe rdma_ucm`; or without rdma.connect=cm, which needs it"},
        {"the port is down",
         "`ibv_devinfo` shows the state of a port; is the cable in, and its interface up (`ip link set DEVICE up`)?"},
        {"is there a subnet manager", "InfiniBand needs a subnet manager: start opensm, or the one of a switch"},
        {"the port is armed", "wait until its subnet manager has made the port active, then try again"},
        {"(gid_index)", "leave rdma.gid_index, or gid_index of rdma.per_device, out; `ibv_devinfo -v` lists the GIDs"},
        {"give its network interface an IP address",
         "`ip addr add ADDRESS/PREFIX dev DEVICE`; without rdma.connect=cm a link-local address is enough"},
        {"rdma.exclude names it", "--set rdma.exclude= with less in it; `troupe topo` shows what it leaves out"},
        {"rdma.devices does not name it",
         "--set rdma.devices= with more in it; `troupe topo` shows what it leaves out"},
        {"rdma.devices names it, but", "is the name in rdma.devices right? `ibv_devices` lists them"},
    };
    constexpr std::array kMarks = {"no usable RDMA device", "no list of RDMA devices", "no channel of rdma_cm",
                                   "no access to /dev/infiniband/"};
    if (std::none_of(kMarks.begin(), kMarks.end(), [&](const char* mark) { return contains(status, mark); })) return "";
    std::string remedy;
    for (const auto& [cause, advice] : kCauses)
        if (contains(status, cause)) remedy += std::string(advice) + "; ";
    return remedy + "docs/rdma.md; or leave --transport out, and go without RDMA";
}

}  // namespace

std::string inWordsOfTheCommandLine(std::string message) {
    constexpr std::pair<std::string_view, std::string_view> kWords[] = {
        {"; a transport that both ends install (installTransport) would", ""},
        {", which is not installed here (installTransport)", ", which is not in use here (--transport)"},
        {"give ip_or_host (--host), or an empty name", "give --host, or leave --name out"},
        {"give it as ip_or_host (--host", "use it as an address to listen on (--host"},
    };
    for (const auto& [library, here] : kWords)
        if (const auto at = message.find(library); at != std::string::npos) message.replace(at, library.size(), here);
    return message;
}

std::string inWordsOfTransportOption(std::string line, const std::string& transport) {
    constexpr std::string_view kBegin = "not host: ";
    constexpr std::string_view kEnd = "host.peers is off here";
    const auto begin = line.find(kBegin);
    const auto end = line.find(kEnd, begin == std::string::npos ? 0 : begin);
    if (begin == std::string::npos || end == std::string::npos) return line;
    return line.replace(begin + kBegin.size(), end + kEnd.size() - begin - kBegin.size(), "--transport " + transport);
}

bool tellsThatOwnerEnded(const Status& status, bool reached) {
    // A kernel that rejects what rdma_cm sent says nothing of who is there, but that nobody listens.
    if (contains(status, "the connection was rejected, reason") && !contains(status, "(nobody listens there)"))
        return false;
    return status.code() == Code::ConnectionRefused || (reached && status.code() == Code::TransportMissing);
}

std::string remedyFor(const Status& status) {
    if (isOfSetting(status)) return "`troupe config` lists every setting with its unit and range";
    if (std::string remedy = remedyForFile(status); !remedy.empty()) return remedy;
    if (const auto remedy = remedyForPath(status)) return *remedy;
    if (contains(status, kOwnerEnded)) return kPeerEnded;
    if (std::string remedy = remedyForDevices(status); !remedy.empty()) return remedy;
    if (isOfStore(status)) return remedyForStore(status);
    switch (status.code()) {
        case Code::ConnectionRefused:
            if (contains(status, "the connection was rejected, reason"))
                return "has the peer's machine a route back to the address that the error names (`ip route get`, "
                       "rp_filter)? rdma.connect=exchange needs none";
            [[fallthrough]];
        case Code::NotFound: return "is the name right, and `troupe serve` running there?";
        case Code::Timeout:
            if (contains(status, "deadline"))
                return "raise transfer_timeout (--set transfer_timeout=2min) or the request's deadline, if the peer is "
                       "alive and only slow; where nothing arrives at all, does a firewall let its data ports through "
                       "(docs/security.md, \"Ports\")?";
            return "is the peer alive, and does a firewall let its ports through?";
        case Code::ConnectionLost:
        case Code::PeerDown:
            // Of a port of this machine.
            if (contains(status, ") went down") || contains(status, "the port is down"))
                return "is the link of that device up? `ip link` and `ibv_devinfo` show it; work goes on once it is "
                       "back";
            if (contains(status, "keepalive_timeout")) return kPeerSilent;
            return contains(status, "; its owner is up") ? kPeerIsBack : kPeerEnded;
        case Code::StaleIncarnation: return "the peer was restarted meanwhile; start again";
        case Code::TransportMissing:
            return "leave --transport out at both ends: then every way that both have is open. docs/same-host.md and "
                   "docs/rdma.md say what host and rdma need";
        case Code::AccessDenied:
            if (contains(status, "cluster key")) return kKeyRemedy;
            if (contains(status, "faults.remote"))
                return "at the other end `troupe serve --set faults.enabled=true --set faults.remote=true`; "
                       "docs/security.md says what that allows";
            // Of a port; the message says what to do.
            if (contains(status, "bind ")) return "";
            return "the owner does not offer that memory; was it unregistered meanwhile?";
        case Code::AlreadyExists:
            for (const char* setting : {"tcp.port", "rdma.port"})
                if (contains(status, std::string(setting) + " "))
                    return std::string("another ") + setting +
                           ", or 0 for any that is free; docs/security.md, \"Ports\"";
            return contains(status, "bind ")
                       ? "leave --port out, then any free one is taken; `ss -tlnp` says who has it"
                       : "take another --name, or end the engine that has this one";
        case Code::InvalidArgument:
            if (contains(status, "trace '"))
                return "docs/apps.md, \"replay\", says what each line holds; `troupe trace-gen -o FILE` makes such a "
                       "file";
            if (contains(status, "--footprint"))
                return "another --footprint, fewer --threads, or `troupe serve --size` with more";
            if (contains(status, "do not fit the"))
                return "a smaller --block_size, --batch_size, --inflight or --threads, or `troupe serve --size` with "
                       "more";
            return "";
        case Code::ResourceExhausted:
            if (contains(status, "no memory for"))
                return "less memory (--size, --footprint, --staging), or end what uses it; `free -h` says how much is "
                       "left";
            return "";
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
