#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe {

/// Every setting of an engine, with its default. Plain values; `ConfigLoader` fills them from a file, the
/// environment and code, and remembers where each came from. The schema (key, unit, range, meaning) is in config.cpp.
struct Config {
    // --- loops -------------------------------------------------------------------------------------------------
    std::uint32_t data_loops = 0;        ///< Data loop threads; 0: half the cores, 1 to 4.
    std::chrono::microseconds spin{50};  ///< Longest busy wait of a loop before it sleeps; adaptive below it.
    bool waiter_drives = true;           ///< A thread in waitTransfer runs a sleeping data loop itself.
    std::chrono::microseconds drive_grace{
        100};  ///< How long a loop stays with its last driver; then its thread takes it.

    // --- transfers ---------------------------------------------------------------------------------------------
    std::uint64_t slice_bytes = 1u << 20;                ///< Largest piece one work request carries.
    std::uint32_t max_batches = 65536;                   ///< Live batches per engine.
    std::uint32_t max_batch_tasks = 1u << 20;            ///< Largest capacity of one batch.
    std::chrono::milliseconds transfer_timeout{30000};   ///< Deadline of a request that names none; 0: none.
    std::chrono::milliseconds unregister_timeout{5000};  ///< Bound on waiting for quiescence in unregister.
    std::uint32_t retry_count = 1;                       ///< Attempts after the first on the same path.
    std::uint32_t retry_budget_percent = 20;             ///< Sent again, of what arrives at a peer.
    std::uint64_t retry_budget_floor = 64u << 20;        ///< Bytes a second that may be sent again whatever arrives.

    // --- control -----------------------------------------------------------------------------------------------
    std::chrono::milliseconds connect_timeout{3000};     ///< TCP connect, control and data.
    std::chrono::milliseconds handshake_timeout{2000};   ///< An accepted connection must say hello within this.
    std::chrono::milliseconds keepalive_interval{1000};  ///< Between keepalive frames on a quiet control connection.
    std::chrono::milliseconds keepalive_timeout{3000};   ///< Silence after which a control connection is dead.
    std::chrono::milliseconds open_timeout{5000};        ///< openSegment and syncSegmentCache.
    std::uint64_t max_descriptor_bytes = 64u << 20;      ///< Largest segment descriptor accepted.
    std::uint32_t max_control_connections = 1024;        ///< Accepted control connections at once.
    std::chrono::seconds lease_ttl{30};                  ///< Life of a record in a metadata store without renewal.

    // --- auth (docs/security.md) ---------------------------------------------------------------------------------
    std::string auth_key;              ///< The cluster key, by which this engine proves that it belongs; empty: none.
    std::string auth_key_file;         ///< A file whose first line it is; not beside auth_key.
    std::string auth_accept_key;       ///< A second key that is accepted, while a cluster changes its key.
    std::string auth_accept_key_file;  ///< A file whose first line it is; not beside auth_accept_key.

    // --- limits of one peer, so that it cannot take what others need ----------------------------------------------
    std::uint32_t peer_greetings = 64;                     ///< Connections of one address yet to greet, per port.
    std::uint32_t peer_control_connections = 16;           ///< Accepted control connections of one engine.
    std::uint32_t peer_control_frames_per_second = 50000;  ///< Frames on one control connection, on average.
    std::uint32_t peer_tcp_connections = 512;              ///< Accepted data connections of one engine, per loop.
    std::uint64_t peer_tcp_bytes = 4ull << 30;             ///< Asked for by READs and not sent, engine and loop.
    std::uint32_t peer_host_connections = 128;             ///< Accepted host connections of one process.
    std::uint32_t peer_rdma_connections = 512;             ///< Accepted queue pairs of one engine.

    // --- redis -------------------------------------------------------------------------------------------------
    std::chrono::milliseconds redis_connect_timeout{1000};     ///< From the first packet to a server that answers.
    std::chrono::milliseconds redis_command_timeout{2000};     ///< A command's answer; silence that ends a connection.
    std::chrono::milliseconds redis_keepalive_interval{1000};  ///< Between PINGs on a quiet connection.
    std::string redis_prefix = "mooncake/ram/";                ///< Of every key and channel.
    std::string redis_password;                                ///< Used where the URI has none.
    std::string redis_password_file;                           ///< Its first line, where neither of the others is set.

    // --- tcp ---------------------------------------------------------------------------------------------------
    std::uint32_t tcp_port = 0;                 ///< Of data loop 0, its successors for the others; 0: any free ones.
    std::uint32_t tcp_lanes = 1;                ///< Connections per peer and data loop.
    std::uint64_t tcp_window_bytes = 8u << 20;  ///< Bytes in flight per peer and data loop.
    std::uint32_t tcp_window_requests = 2048;   ///< Requests in flight per peer and data loop.
    std::uint32_t tcp_max_connections = 4096;   ///< Accepted data connections per data loop.
    std::uint64_t tcp_socket_buffer = 0;        ///< SO_SNDBUF and SO_RCVBUF; 0: the kernel's auto-tuning.
    bool tcp_crc = false;                       ///< CRC32C over every payload, both ways.

    // --- rdma --------------------------------------------------------------------------------------------------
    std::string rdma_devices;  ///< Devices to use, comma-separated, with * and ?; empty: all that work.
    std::string rdma_exclude;  ///< Devices not to use; wins over the others.
    /// Settings of single devices or ports, "mlx5_0 gid_index=3 mtu=1024; mlx5_1:2 traffic_class=106".
    std::string rdma_per_device;
    std::string rdma_connect = "auto";                    ///< How pairs are made: "cm", "exchange" or what is possible.
    std::uint32_t rdma_port = 0;                          ///< Where rdma_cm listens; 0: any free one.
    std::uint32_t rdma_lanes = 1;                         ///< Queue pairs per path.
    std::uint32_t rdma_queue_depth = 256;                 ///< Send queue of a queue pair, work requests.
    std::uint32_t rdma_completion_queue = 16384;          ///< Completion queue of a device, entries.
    std::uint64_t rdma_window_bytes = 16u << 20;          ///< Bytes in flight per path.
    std::uint64_t rdma_max_chunk_bytes = 1ull << 30;      ///< Most memory one key covers; a device may say less.
    std::uint32_t rdma_read_depth = 16;                   ///< READs outstanding on a queue pair; a device may say less.
    std::uint32_t rdma_inline_bytes = 64;                 ///< Writes up to this are sent with the work request.
    std::uint32_t rdma_ack_timeout = 14;                  ///< Wait for an ACK, 4.096 us * 2^value.
    std::uint32_t rdma_retry_count = 6;                   ///< Times a packet is sent again before the path is broken.
    std::uint32_t rdma_rnr_retry = 6;                     ///< The same, where the receiver was not ready.
    std::uint32_t rdma_mtu = 4096;                        ///< Cap of the path MTU, bytes.
    std::uint32_t rdma_traffic_class = 0;                 ///< Of RoCE packets, DSCP * 4.
    std::uint32_t rdma_gid_index = 256;                   ///< In the port's table; 256: by a fixed rank (docs/rdma.md).
    std::uint32_t rdma_pkey_index = 0;                    ///< In the port's table.
    std::uint32_t rdma_service_level = 0;                 ///< 0: as the path says.
    std::uint32_t rdma_max_connections = 4096;            ///< Accepted queue pairs per engine.
    std::uint32_t rdma_max_endpoints = 4096;              ///< Queue pairs that a device has to peers, opened here.
    std::chrono::milliseconds rdma_idle_timeout{300000};  ///< A queue pair unused for so long is closed; 0: none is.
    std::chrono::milliseconds rdma_drain_timeout{500};  ///< Wait for flushed completions before the pair is destroyed.
    /// No packet arrives later than this after it was sent. Twice 4.096 us x 2^18, which rdma_cm takes for Ethernet:
    /// what InfiniBand waits (TimeWait) before the numbers of a connection are used again.
    std::chrono::milliseconds rdma_packet_lifetime{2200};

    // --- topology ----------------------------------------------------------------------------------------------
    std::string topology_matrix;  ///< File with a priority matrix in place of what is discovered; empty: none.

    // --- host --------------------------------------------------------------------------------------------------
    std::uint64_t host_chunk_bytes = 512u << 10;        ///< Bytes copied before the loop looks at other work.
    bool host_peers = true;                             ///< Reach, and be reached by, other processes of this host.
    std::chrono::milliseconds host_probe_timeout{500};  ///< What a peer takes to answer before TCP is used instead.

    // --- gpu (docs/gpu.md) ---------------------------------------------------------------------------------------
    std::string gpu_driver;                              ///< CUDA driver library; empty: "libcuda.so.1".
    std::uint64_t gpu_staging_chunk_bytes = 256u << 10;  ///< Of pinned host memory that bytes of a GPU go through.
    /// Of these for each GPU, data loop and direction. A connection has up to 4 at a time.
    std::uint32_t gpu_staging_chunks = 32;
    /// Whether a kernel moves many small pages at once: "auto" where it was measured to be faster than a copy each,
    /// "on" wherever there are two or more, "off" never.
    std::string gpu_pack = "auto";
    /// When a transfer's done_event is recorded: "auto" at submit, where the GPU can wait for its end, so that work
    /// given to it behind the event waits for the bytes; "end" when they are there.
    std::string gpu_done_event = "auto";

    // --- faults ------------------------------------------------------------------------------------------------
    bool faults_enabled = false;    ///< TransferEngine::faults may break things; see base/fault_injector.h.
    bool faults_remote = false;     ///< And so may whoever greets at the control port; needs faults_enabled.
    std::uint32_t faults_seed = 1;  ///< Of what is drawn there.
};

/// One setting of the schema.
struct ConfigKey {
    std::string name;         ///< "tcp.lanes"; the environment name is TROUPE_TCP_LANES.
    std::string unit;         ///< "bytes", "time", "count", "bool", "text" or "secret".
    std::string range;        ///< "1..64"; of texts their length.
    std::string description;  ///< One sentence.
    std::function<Status(Config&, std::string_view)> set;
    std::function<std::string(const Config&)> get;  ///< Of a secret only "(set)", or nothing.
};

/// InvalidArgument, naming the setting, when a value is out of its range: a Config may be filled by hand. The same,
/// naming both and what to change, when two values hinder each other: engines with these settings would refuse each
/// other's ordinary work, or take each other for dead, or one is not meant without the other.
Status checkConfig(const Config& config);

/// How many data loops an engine with these settings has: data_loops, or what 0 stands for on this machine.
unsigned dataLoopCount(const Config& config);

/// Builds a Config from layers, later ones winning: file, then environment, then code. Not thread-safe.
class ConfigLoader {
  public:
    /// The whole schema, sorted by name.
    static const std::vector<ConfigKey>& schema();

    /// A JSON object of key: value, nested or dotted ({"tcp": {"lanes": 2}} or {"tcp.lanes": 2}). Values are strings
    /// with units ("64KiB", "5s"), numbers or booleans. InvalidArgument names an unknown key and the nearest known
    /// one, or the value and its range; nothing is applied then.
    /// NotFound when there is no such file.
    Status loadFile(const std::string& path);
    Status loadJson(std::string_view text, const std::string& origin);
    /// Every TROUPE_* variable of `environment` ("NAME=value" strings, as environ). An unknown one is an error, but for
    /// those that Kubernetes makes for a Service of that name.
    Status loadEnvironment(const char* const* environment);
    /// One value from code or the command line.
    Status set(std::string_view name, std::string_view value, const std::string& origin = "code");

    const Config& config() const { return config_; }
    /// Where a value came from: "default", "file /etc/troupe.json", "environment TROUPE_SPIN", "code". Empty for an
    /// unknown name.
    std::string provenance(std::string_view name) const;

  private:
    Config config_;
    std::map<std::string, std::string, std::less<>> origins_;
};

/// Parses "4096", "64KiB", "1MiB", "2GiB" (also K, M, G and KB, MB, GB as powers of 1000).
Result<std::uint64_t> parseBytes(std::string_view text);
/// Parses "10us", "5ms", "2s", "1min"; a bare number is an error but for 0.
Result<std::chrono::microseconds> parseTime(std::string_view text);

}  // namespace troupe
