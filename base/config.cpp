#include "base/config.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/config_units.h"
#include "base/nearest_name.h"
#include "base/per_device.h"
#include "base/small_file.h"

namespace troupe {

namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr std::uint64_t kKiB = 1024;
constexpr std::uint64_t kGiB = kKiB * kKiB * kKiB;

constexpr std::string_view kEnvironmentPrefix = "TROUPE_";
/// A settings file is a page of text; more is the wrong file.
constexpr std::size_t kMaxFileBytes = 1u << 20;
/// Takes the largest segment whole that loopback, or a NIC that cuts them itself, is given. Far below TCP sends pieces
/// that each wait for a timer (silly window avoidance, RFC 1122 4.2.3.4): measured on loopback with one request of 64
/// KiB at a time, 0.1 MB/s with buffers of up to 12 KiB and 60 MB/s with 16 KiB.
constexpr std::uint64_t kLeastSocketBuffer = 64 * kKiB;
/// Deeper objects cannot name a key: the longest has two parts.
constexpr int kMaxDepth = 4;

// --- the schema ------------------------------------------------------------------------------------------------

Status outOfRange(std::string_view value, const std::string& range) {
    return {Code::InvalidArgument, "'" + std::string(value) + "' is not in " + range};
}

ConfigKey countKey(std::string name, std::uint32_t Config::*field, std::uint32_t low, std::uint32_t high,
                   std::string description) {
    std::string range = std::to_string(low) + ".." + std::to_string(high);
    auto set = [=](Config& config, std::string_view text) -> Status {
        std::uint32_t value = 0;
        const char* const last = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), last, value);
        if (error == std::errc::result_out_of_range) return outOfRange(text, range);
        if (error != std::errc() || rest != last)
            return {Code::InvalidArgument, "'" + std::string(text) + "' is not a whole number in " + range};
        if (value < low || value > high) return outOfRange(text, range);
        config.*field = value;
        return {};
    };
    auto get = [=](const Config& config) { return std::to_string(config.*field); };
    return {std::move(name), "count", range, std::move(description), set, get};
}

ConfigKey bytesKey(std::string name, std::uint64_t Config::*field, std::uint64_t low, std::uint64_t high,
                   std::string description) {
    std::string range = formatBytesSetting(low) + ".." + formatBytesSetting(high);
    auto set = [=](Config& config, std::string_view text) -> Status {
        auto value = parseBytes(text);
        if (!value) return value.status();
        if (*value < low || *value > high) return outOfRange(text, range);
        config.*field = *value;
        return {};
    };
    auto get = [=](const Config& config) { return formatBytesSetting(config.*field); };
    return {std::move(name), "bytes", range, std::move(description), set, get};
}

/// 0, which is something else, or `low` to `high`.
ConfigKey bytesOrZeroKey(std::string name, std::uint64_t Config::*field, std::uint64_t low, std::uint64_t high,
                         std::string description) {
    ConfigKey key = bytesKey(std::move(name), field, low, high, std::move(description));
    key.range = "0, " + key.range;
    key.set = [=, range = key.range](Config& config, std::string_view text) -> Status {
        auto value = parseBytes(text);
        if (!value) return value.status();
        if (*value != 0 && (*value < low || *value > high)) return outOfRange(text, range);
        config.*field = *value;
        return {};
    };
    return key;
}

/// `Period` is the resolution: a value between two of its ticks is refused, not rounded.
template <class Period>
ConfigKey timeKey(std::string name, Period Config::*field, microseconds low, microseconds high,
                  std::string description) {
    std::string range = formatTimeSetting(low) + ".." + formatTimeSetting(high);
    auto set = [=](Config& config, std::string_view text) -> Status {
        auto value = parseTime(text);
        if (!value) return value.status();
        if (*value < low || *value > high) return outOfRange(text, range);
        const auto ticks = std::chrono::duration_cast<Period>(*value);
        if (ticks != *value)
            return {Code::InvalidArgument,
                    "'" + std::string(text) + "' is not a multiple of " + formatTimeSetting(Period(1))};
        config.*field = ticks;
        return {};
    };
    auto get = [=](const Config& config) { return formatTimeSetting(config.*field); };
    return {std::move(name), "time", range, std::move(description), set, get};
}

ConfigKey boolKey(std::string name, bool Config::*field, std::string description) {
    const std::string range = "true, false";
    auto set = [=](Config& config, std::string_view text) -> Status {
        if (text == "true" || text == "1" || text == "on" || text == "yes")
            config.*field = true;
        else if (text == "false" || text == "0" || text == "off" || text == "no")
            config.*field = false;
        else
            return {Code::InvalidArgument, "'" + std::string(text) + "' is neither true nor false"};
        return {};
    };
    auto get = [=](const Config& config) { return std::string(config.*field ? "true" : "false"); };
    return {std::move(name), "bool", range, std::move(description), set, get};
}

/// What a secret shows in place of itself.
constexpr std::string_view kSecretShown = "(set)";

/// `low` to `high` bytes without control characters. A secret's value appears neither in errors nor from `get`.
ConfigKey textKey(std::string name, std::string Config::*field, std::size_t low, std::size_t high, bool secret,
                  std::string description) {
    auto set = [=](Config& config, std::string_view text) -> Status {
        const bool control =
            std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
        if (text.size() < low || text.size() > high || control)
            return {Code::InvalidArgument, (secret ? "the value" : "'" + std::string(text.substr(0, 64)) + "'") +
                                               " is not " + std::to_string(low) + " to " + std::to_string(high) +
                                               " bytes without control characters"};
        config.*field = text;
        return {};
    };
    auto get = [=](const Config& config) {
        return secret && !(config.*field).empty() ? std::string(kSecretShown) : config.*field;
    };
    std::string range = std::to_string(low) + ".." + std::to_string(high) + " bytes";
    return {std::move(name), secret ? "secret" : "text", range, std::move(description), set, get};
}

/// A text that `parse` has to take.
ConfigKey parsedKey(ConfigKey key, Status (*parse)(std::string_view)) {
    key.set = [set = std::move(key.set), parse](Config& config, std::string_view text) {
        Config next = config;
        Status status = set(next, text);
        if (status) status = parse(text);
        if (status) config = std::move(next);
        return status;
    };
    return key;
}

ConfigKey choiceKey(std::string name, std::string Config::*field, const std::vector<std::string>& choices,
                    std::string description) {
    std::string range;
    for (const std::string& choice : choices) range += (range.empty() ? "" : ", ") + choice;
    auto set = [=](Config& config, std::string_view text) -> Status {
        if (std::find(choices.begin(), choices.end(), text) == choices.end())
            return {Code::InvalidArgument, "'" + std::string(text.substr(0, 64)) + "' is none of " + range};
        config.*field = text;
        return {};
    };
    auto get = [=](const Config& config) { return config.*field; };
    return {std::move(name), "text", range, std::move(description), set, get};
}

std::vector<ConfigKey> makeSchema() {
    std::vector<ConfigKey> keys{
        // --- loops
        countKey("data_loops", &Config::data_loops, 0, 64, "Data loop threads; 0 is half the cores, 1 to 4."),
        timeKey("spin", &Config::spin, microseconds(0), seconds(1), "Longest busy wait of a loop before it sleeps."),
        boolKey("waiter_drives", &Config::waiter_drives, "A thread in waitTransfer runs a sleeping data loop itself."),
        timeKey("drive_grace", &Config::drive_grace, microseconds(0), seconds(1),
                "How long a loop stays with its last driver before its thread takes over."),
        // --- transfers
        bytesKey("slice_bytes", &Config::slice_bytes, 4 * kKiB, kGiB, "Largest piece that one work request carries."),
        countKey("max_batches", &Config::max_batches, 1, 1u << 20, "Live batches per engine."),
        countKey("max_batch_tasks", &Config::max_batch_tasks, 1, 1u << 24, "Largest capacity of one batch."),
        timeKey("transfer_timeout", &Config::transfer_timeout, microseconds(0), hours(24),
                "Deadline of a request that names none; 0 is none."),
        timeKey("unregister_timeout", &Config::unregister_timeout, milliseconds(1), minutes(10),
                "How long unregister waits until nothing uses the region."),
        countKey("retry_count", &Config::retry_count, 0, 100, "Attempts after the first on the same path."),
        countKey("retry_budget_percent", &Config::retry_budget_percent, 0, 1000,
                 "How much may be sent to a peer again, of what arrives there; per data loop."),
        bytesKey("retry_budget_floor", &Config::retry_budget_floor, 0, 1024 * kGiB,
                 "And this much a second whatever arrives; per data loop."),
        // --- control
        timeKey("connect_timeout", &Config::connect_timeout, milliseconds(1), minutes(5),
                "TCP connect, control and data."),
        timeKey("handshake_timeout", &Config::handshake_timeout, milliseconds(1), minutes(5),
                "An accepted connection must say hello within this."),
        timeKey("keepalive_interval", &Config::keepalive_interval, milliseconds(1), hours(1),
                "Between keepalive frames on a quiet control connection."),
        timeKey("keepalive_timeout", &Config::keepalive_timeout, milliseconds(1), hours(1),
                "Silence after which a control connection is dead."),
        timeKey("open_timeout", &Config::open_timeout, milliseconds(1), hours(1), "openSegment and syncSegmentCache."),
        bytesKey("max_descriptor_bytes", &Config::max_descriptor_bytes, 4 * kKiB, kGiB,
                 "Largest segment descriptor accepted."),
        countKey("max_control_connections", &Config::max_control_connections, 1, 65536,
                 "Accepted control connections at once."),
        timeKey("lease_ttl", &Config::lease_ttl, seconds(1), hours(24),
                "Life of a record in a metadata store without renewal."),
        // --- auth
        textKey("auth.key", &Config::auth_key, 0, 4096, true,
                "The cluster key, 32 bytes or more; better in the environment or a file than here."),
        textKey("auth.key_file", &Config::auth_key_file, 0, 4096, false,
                "File, readable by its owner only, whose first line is the cluster key; not beside auth.key."),
        textKey("auth.accept_key", &Config::auth_accept_key, 0, 4096, true,
                "A second cluster key that is accepted, while the key of a cluster is changed."),
        textKey("auth.accept_key_file", &Config::auth_accept_key_file, 0, 4096, false,
                "The same as a file; not beside auth.accept_key."),
        // --- limits of one peer
        countKey("peer.greetings", &Config::peer_greetings, 1, 65536,
                 "Connections of one address that have not greeted yet, per port; one more ends the oldest."),
        countKey("peer.control_connections", &Config::peer_control_connections, 1, 65536,
                 "Accepted control connections of one peer."),
        countKey("peer.control_frames_per_second", &Config::peer_control_frames_per_second, 10, 1u << 30,
                 "Frames on one control connection, on average; a second's worth may come at once."),
        countKey("peer.tcp_connections", &Config::peer_tcp_connections, 1, 65536,
                 "Accepted data connections of one peer per data loop."),
        bytesKey("peer.tcp_bytes", &Config::peer_tcp_bytes, kKiB * kKiB, 1024 * kGiB,
                 "Bytes that one peer has asked a data loop for and not received yet; more is refused."),
        countKey("peer.host_connections", &Config::peer_host_connections, 1, 1024,
                 "Accepted connections of one process of this host."),
        countKey("peer.rdma_connections", &Config::peer_rdma_connections, 1, 65536,
                 "Accepted queue pairs of one peer."),
        // --- redis
        timeKey("redis.connect_timeout", &Config::redis_connect_timeout, milliseconds(10), minutes(5),
                "From the first packet of an attempt to a Redis server that answers."),
        timeKey("redis.command_timeout", &Config::redis_command_timeout, milliseconds(10), minutes(5),
                "Answer to a Redis command; also the silence that ends a connection."),
        timeKey("redis.keepalive_interval", &Config::redis_keepalive_interval, milliseconds(10), hours(1),
                "Between PINGs on a quiet Redis connection."),
        textKey("redis.prefix", &Config::redis_prefix, 1, 512, false, "Begins every key and channel in Redis."),
        textKey("redis.password", &Config::redis_password, 0, 4096, true,
                "Password for Redis where the URI has none; better in the environment or a file than here."),
        textKey("redis.password_file", &Config::redis_password_file, 0, 4096, false,
                "File whose first line is the password for Redis, where neither the URI nor redis.password has one."),
        // --- tcp
        countKey("tcp.port", &Config::tcp_port, 0, 65535,
                 "Where peers' data connections arrive: data loop i listens on this port + i; 0 is any free ones."),
        countKey("tcp.lanes", &Config::tcp_lanes, 1, 64, "Connections per peer and data loop."),
        bytesKey("tcp.window_bytes", &Config::tcp_window_bytes, 64 * kKiB, 16 * kGiB,
                 "Bytes in flight per peer and data loop."),
        countKey("tcp.window_requests", &Config::tcp_window_requests, 1, 65536,
                 "Requests in flight per peer and data loop."),
        countKey("tcp.max_connections", &Config::tcp_max_connections, 1, 65536,
                 "Accepted data connections per data loop."),
        bytesOrZeroKey("tcp.socket_buffer", &Config::tcp_socket_buffer, kLeastSocketBuffer, kGiB,
                       "SO_SNDBUF and SO_RCVBUF; 0 is the kernel's auto-tuning."),
        boolKey("tcp.crc", &Config::tcp_crc, "CRC32C over every payload, both ways."),
        // --- rdma
        textKey("rdma.devices", &Config::rdma_devices, 0, 1024, false,
                "Devices to use, comma-separated, * and ? match; empty is all that work."),
        textKey("rdma.exclude", &Config::rdma_exclude, 0, 1024, false,
                "Devices not to use, as in rdma.devices; wins over it."),
        parsedKey(
            textKey("rdma.per_device", &Config::rdma_per_device, 0, 4096, false,
                    "Other values of gid_index, pkey_index, service_level, traffic_class and mtu for single devices or "
                    "ports: 'mlx5_0 gid_index=3 mtu=1024; mlx5_1:2 traffic_class=106'."),
            [](std::string_view text) { return parsePerDevice(text).status(); }),
        choiceKey("rdma.connect", &Config::rdma_connect, {"auto", "cm", "exchange"},
                  "How queue pairs are connected: by rdma_cm, by an exchange over the control connection, or by the "
                  "first where the port has an IP address and the second where it has none."),
        countKey("rdma.port", &Config::rdma_port, 0, 65535, "Port on which rdma_cm listens; 0 is any free one."),
        countKey("rdma.lanes", &Config::rdma_lanes, 1, 64, "Queue pairs per path."),
        countKey("rdma.queue_depth", &Config::rdma_queue_depth, 16, 32768, "Work requests in a send queue."),
        countKey("rdma.completion_queue", &Config::rdma_completion_queue, 64, 1u << 20,
                 "Entries of a device's completion queue."),
        bytesKey("rdma.window_bytes", &Config::rdma_window_bytes, 64 * kKiB, 16 * kGiB, "Bytes in flight per path."),
        bytesKey("rdma.max_chunk_bytes", &Config::rdma_max_chunk_bytes, 4 * kKiB, 1024 * kGiB,
                 "Most memory that one key covers, cut to whole pages; a device may say less."),
        countKey("rdma.read_depth", &Config::rdma_read_depth, 1, 255,
                 "READs outstanding on a queue pair; a device may say less."),
        countKey("rdma.inline_bytes", &Config::rdma_inline_bytes, 0, 1024,
                 "Writes up to this are sent with the work request."),
        countKey("rdma.ack_timeout", &Config::rdma_ack_timeout, 1, 31, "Wait for an ACK, 4.096 us * 2^value."),
        countKey("rdma.retry_count", &Config::rdma_retry_count, 0, 6,
                 "Times a packet is sent again before the path is broken."),
        countKey("rdma.rnr_retry", &Config::rdma_rnr_retry, 0, 6, "The same, where the receiver was not ready."),
        countKey("rdma.mtu", &Config::rdma_mtu, 256, 4096,
                 "Cap of the path MTU in bytes, rounded down to a power of 2."),
        countKey("rdma.traffic_class", &Config::rdma_traffic_class, 0, 255, "Of RoCE packets: DSCP * 4."),
        countKey("rdma.gid_index", &Config::rdma_gid_index, 0, 256,
                 "Entry of the port's GID table; 256: the first by a fixed rank (RoCE v2, IPv4, not link-local)."),
        countKey("rdma.pkey_index", &Config::rdma_pkey_index, 0, 65535,
                 "Entry of the port's P_Key table (InfiniBand partitions); 0 is what rdma_cm says."),
        countKey("rdma.service_level", &Config::rdma_service_level, 0, 15,
                 "InfiniBand service level; 0 is what rdma_cm says."),
        countKey("rdma.max_connections", &Config::rdma_max_connections, 1, 65536, "Accepted queue pairs per engine."),
        countKey("rdma.max_endpoints", &Config::rdma_max_endpoints, 1, 65536,
                 "Queue pairs that one device has to peers, opened from here; the least recently used idle one makes "
                 "room."),
        timeKey("rdma.idle_timeout", &Config::rdma_idle_timeout, milliseconds(0), hours(24),
                "A queue pair opened from here that is unused for so long is closed; 0 is never."),
        timeKey("rdma.drain_timeout", &Config::rdma_drain_timeout, milliseconds(1), minutes(1),
                "Wait for flushed completions before a queue pair is destroyed."),
        timeKey("rdma.packet_lifetime", &Config::rdma_packet_lifetime, milliseconds(1), minutes(1),
                "No packet arrives later than this after it was sent."),
        // --- topology
        textKey(
            "topology.matrix", &Config::topology_matrix, 0, 4096, false,
            "File with a priority matrix, {\"cpu:0\": [[preferred], [available]]}, in place of what is discovered."),
        // --- faults
        boolKey("faults.enabled", &Config::faults_enabled,
                "Let the program break its own engine on purpose (TransferEngine::faults), for tests."),
        boolKey("faults.remote", &Config::faults_remote,
                "Let peers break it, too, over the control port (troupe faults --at); needs faults.enabled."),
        countKey("faults.seed", &Config::faults_seed, 0, UINT32_MAX, "Of what faults.enabled draws."),
        // --- gpu
        textKey("gpu.driver", &Config::gpu_driver, 0, 4096, false, "CUDA driver library; empty: libcuda.so.1."),
        bytesKey("gpu.staging_chunk_bytes", &Config::gpu_staging_chunk_bytes, 4 * kKiB, 64 * kKiB * kKiB,
                 "One chunk of the pinned host memory that bytes of a GPU go through."),
        countKey("gpu.staging_chunks", &Config::gpu_staging_chunks, 2, 1024,
                 "Chunks for each GPU, data loop and direction."),
        choiceKey("gpu.pack", &Config::gpu_pack, {"auto", "on", "off"},
                  "Whether a kernel moves many small pages at once: auto where that was measured to be faster."),
        choiceKey("gpu.done_event", &Config::gpu_done_event, {"auto", "end"},
                  "When a transfer's done_event is recorded: auto at submit, where the GPU can wait for its end; end "
                  "when its bytes are there."),
        // --- host
        bytesKey("host.chunk_bytes", &Config::host_chunk_bytes, 4 * kKiB, kGiB,
                 "Bytes copied before the loop looks at other work."),
        boolKey("host.peers", &Config::host_peers,
                "Reach, and be reached by, other processes of this host by copying."),
        timeKey("host.probe_timeout", &Config::host_probe_timeout, milliseconds(1), minutes(1),
                "How long a process of this host may take to answer before TCP is used instead."),
    };
    std::sort(keys.begin(), keys.end(), [](const ConfigKey& a, const ConfigKey& b) { return a.name < b.name; });
    return keys;
}

// --- names -----------------------------------------------------------------------------------------------------

/// "tcp.lanes" -> "TROUPE_TCP_LANES".
std::string environmentName(std::string_view key) {
    std::string name(kEnvironmentPrefix);
    for (const char c : key) name += c == '.' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return name;
}

/// `spell` gives a key as the reader would write it.
Status unknownKey(std::string_view name, std::string (*spell)(std::string_view)) {
    std::vector<std::string> known;
    for (const ConfigKey& key : ConfigLoader::schema()) known.push_back(spell(key.name));
    // A name of the file's choosing may be long; its first bytes tell enough.
    const std::string head(name.substr(0, 64));
    const std::string nearest = nearestName(head, known);
    const bool environment = spell == environmentName;
    return {
        Code::InvalidArgument,
        "unknown setting '" + head + "'" + (nearest.empty() ? "" : "; did you mean '" + nearest + "'?") +
            "; `troupe config` lists all" +
            (environment ? ", and names that begin with " + std::string(kEnvironmentPrefix) + " are reserved for them"
                         : "")};
}

/// Kubernetes puts such variables into every container for a Service named "troupe": TROUPE_SERVICE_HOST, TROUPE_PORT,
/// TROUPE_SERVICE_PORT_data, TROUPE_PORT_7000_TCP_ADDR. No setting is named so.
bool isOfKubernetes(std::string_view name) {
    name.remove_prefix(kEnvironmentPrefix.size());
    return name == "PORT" || name.rfind("SERVICE_", 0) == 0 ||
           (name.rfind("PORT_", 0) == 0 && name.size() > 5 && name[5] >= '0' && name[5] <= '9');
}

std::string asIs(std::string_view name) { return std::string(name); }

const ConfigKey* findKey(std::string_view name) {
    const auto& keys = ConfigLoader::schema();
    const auto at = std::lower_bound(keys.begin(), keys.end(), name,
                                     [](const ConfigKey& key, std::string_view wanted) { return key.name < wanted; });
    return at != keys.end() && at->name == name ? &*at : nullptr;
}

// --- JSON ------------------------------------------------------------------------------------------------------

using Settings = std::map<std::string, std::string>;

/// Parses an object; a key that stands twice in one object is an error, where the library would take the last.
Status parseObject(std::string_view text, nlohmann::json& object) {
    std::vector<std::set<std::string>> open;
    std::string twice;
    const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
        using Event = nlohmann::json::parse_event_t;
        if (event == Event::object_start) open.emplace_back();
        if (event == Event::object_end && !open.empty()) open.pop_back();
        if (event == Event::key && !open.empty() && !open.back().insert(parsed.get<std::string>()).second)
            twice = parsed.get<std::string>();
        return true;
    };
    try {
        object = nlohmann::json::parse(text, watch);
    } catch (const nlohmann::json::exception& error) {
        return {Code::InvalidArgument, std::string("not JSON: ") + error.what()};
    }
    if (!object.is_object()) return {Code::InvalidArgument, "settings must be a JSON object"};
    if (!twice.empty()) return {Code::InvalidArgument, "'" + twice + "' is given twice"};
    return {};
}

/// Adds every leaf of `object` to `settings` under its dotted name.
Status flatten(const nlohmann::json& object, const std::string& prefix, int depth, Settings& settings) {
    if (depth > kMaxDepth) return {Code::InvalidArgument, "'" + prefix + "' is nested too deep"};
    for (const auto& [name, value] : object.items()) {
        const std::string key = prefix.empty() ? name : prefix + "." + name;
        if (value.is_object()) {
            if (Status status = flatten(value, key, depth + 1, settings); !status) return status;
            continue;
        }
        if (!value.is_string() && !value.is_number() && !value.is_boolean())
            return {Code::InvalidArgument,
                    "'" + key + "' must be a string, a number or a boolean, not " + std::string(value.type_name())};
        if (!settings.emplace(key, value.is_string() ? value.get<std::string>() : value.dump()).second)
            return {Code::InvalidArgument, "'" + key + "' is given twice, nested and dotted"};
    }
    return {};
}

Status apply(std::string_view name, std::string_view value, Config& config) {
    const ConfigKey* key = findKey(name);
    if (!key) return unknownKey(name, asIs);
    return key->set(config, value).withContext(name);
}

}  // namespace

const std::vector<ConfigKey>& ConfigLoader::schema() {
    static const std::vector<ConfigKey> keys = makeSchema();
    return keys;
}

Status ConfigLoader::loadFile(const std::string& path) {
    const std::string origin = "file " + path;
    const auto text = readSmallFile(path, kMaxFileBytes);
    if (!text) {
        const Status why = text.status().withContext(origin);
        return ::access(path.c_str(), F_OK) != 0 && errno == ENOENT ? Status(Code::NotFound, why.message()) : why;
    }
    if (text->empty()) return {Code::InvalidArgument, origin + ": it is empty; {} would be no settings"};
    return loadJson(*text, origin);
}

Status ConfigLoader::loadJson(std::string_view text, const std::string& origin) {
    nlohmann::json object;
    if (Status status = parseObject(text, object); !status) return status.withContext(origin);
    Settings settings;
    if (Status status = flatten(object, "", 1, settings); !status) return status.withContext(origin);
    Config next = config_;
    for (const auto& [name, value] : settings)
        if (Status status = apply(name, value, next); !status) return status.withContext(origin);
    config_ = next;
    for (const auto& setting : settings) origins_.insert_or_assign(setting.first, origin);
    return {};
}

Status ConfigLoader::loadEnvironment(const char* const* environment) {
    std::map<std::string, const ConfigKey*, std::less<>> known;
    for (const ConfigKey& key : schema()) known.emplace(environmentName(key.name), &key);
    Config next = config_;
    std::vector<std::pair<const ConfigKey*, std::string>> found;
    for (; environment && *environment; ++environment) {
        const std::string_view entry(*environment);
        if (entry.substr(0, kEnvironmentPrefix.size()) != kEnvironmentPrefix) continue;
        const std::size_t equals = entry.find('=');
        const std::string_view name = entry.substr(0, equals);
        const std::string_view value = equals == std::string_view::npos ? "" : entry.substr(equals + 1);
        const auto at = known.find(name);
        if (at == known.end() && isOfKubernetes(name)) continue;
        if (at == known.end()) return unknownKey(name, environmentName).withContext("environment");
        if (Status status = at->second->set(next, value); !status)
            return status.withContext(name).withContext("environment");
        found.emplace_back(at->second, "environment " + at->first);
    }
    config_ = next;
    for (const auto& [key, origin] : found) origins_.insert_or_assign(key->name, origin);
    return {};
}

Status ConfigLoader::set(std::string_view name, std::string_view value, const std::string& origin) {
    Config next = config_;
    if (Status status = apply(name, value, next); !status) return status.withContext(origin);
    config_ = next;
    origins_.insert_or_assign(std::string(name), origin);
    return {};
}

std::string ConfigLoader::provenance(std::string_view name) const {
    if (const auto at = origins_.find(name); at != origins_.end()) return at->second;
    return findKey(name) ? "default" : "";
}

}  // namespace troupe
