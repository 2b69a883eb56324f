#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "messages/transfer_types.h"
#include "metadata/metadata_store.h"
#include "metadata/segment_desc.h"
#include "security/auth_counts.h"

namespace caf {
class actor_system;
}

namespace troupe {

class ActorApi;
class EngineCore;
class FaultInjector;
class Transport;

/// What an embedding program may give an engine before init.
struct EngineOptions {
    Config config;
    Logger log;  ///< Null: warnings to standard error. Called by many threads at once: sinks of the `_mt` kind.
    caf::actor_system* system = nullptr;  ///< Null: the engine makes its own. Must outlive the engine.
    std::function<std::unique_ptr<MetadataStore>()> inproc_store;  ///< Serves the scheme "inproc://".
};

/// One region of a batch registration.
struct BufferEntry {
    void* addr = nullptr;
    std::size_t length = 0;
};

/// One transfer engine: a segment of its own that peers reach, and the means to reach theirs.
///
/// Every call may be made from any thread, also several at once, but for the constructor and the destructor.
/// Several engines in one process share nothing. A failed call changes nothing, but for: init; freeEngine, which ends
/// the engine whatever it returns but InvalidArgument; unregisterLocalMemoryBatch, which stops at the first error; and
/// where a device does not take a registration back, unregisterLocalMemory and a registerLocalMemory whose undoing met
/// that: the region is gone for everybody, and its range stays claimed. After fork() the child must neither use nor
/// destroy it: docs/api.md, "Fork".
class TransferEngine {
  public:
    explicit TransferEngine(EngineOptions options = {});
    ~TransferEngine();  ///< freeEngine(), unless it was called before; an error of it is logged.
    TransferEngine(const TransferEngine&) = delete;
    TransferEngine& operator=(const TransferEngine&) = delete;

    // --- life --------------------------------------------------------------------------------------------------

    /// Starts the loops, the control server and the metadata client, and publishes the local segment.
    ///
    /// @param metadata_conn "p2p" (or "P2PHANDSHAKE"): no store, a segment's name is its control endpoint.
    ///     "redis://host:port", "redis+unix:///path", "redis+sentinel://host,host/name": docs/redis.md.
    ///     "inproc://": the store of EngineOptions. An unknown scheme is InvalidArgument and lists the known ones.
    /// @param local_server_name the name of the local segment. With p2p it may be "host", "host:port" or empty; the
    ///     segment's name is then the advertised host and the control port (see localSegmentName).
    /// @param ip_or_host numeric address or interface name to listen on and advertise. Empty: the host of
    ///     local_server_name if it is an address of this machine; 127.0.0.1 for "localhost" or an empty name; the most
    ///     routable address of an interface that is up for this machine's own host name, and, with a metadata store,
    ///     for any name. With p2p any other name is InvalidArgument.
    /// @param rpc_port control port; 0: that of local_server_name if it has one (p2p), else any free one. With p2p two
    ///     different ports are InvalidArgument.
    /// Errors: AlreadyExists (init was called), InvalidArgument, AlreadyExists also when the port is taken,
    /// ResourceExhausted (descriptors or threads refused), NotFound (no interface that peers could reach is up),
    /// AccessDenied (a port below 1024), InvalidArgument for a cluster key that is too short or a key
    /// file that others may read, or for a call on a loop of another engine (in a metadata store's callback, say), or
    /// the store's: AlreadyExists naming the live engine that has the name in the store; ConnectionRefused, Timeout,
    /// AccessDenied and the like when it cannot be used.
    Status init(const std::string& metadata_conn, const std::string& local_server_name,
                const std::string& ip_or_host = "", std::uint16_t rpc_port = 0);

    /// Ends everything within a bound: running transfers end as CANCELED, peers are told. Idempotent.
    ///
    /// BatchBusy: the engine has ended all the same, but a process of this host that was given access is stopped, and
    /// so can be neither asked nor proven gone; the error names a region and the process. Do not free or reuse
    /// registered memory while that process lives. Or a Nic could not end what it had begun: the error names the
    /// memory, which must stay mapped, the rest is free. Every later call says the same, but for copies of GPUs,
    /// which are looked at again: it is Ok once they have ended. Timeout, Internal: a part of the engine did not answer
    /// in time, so who still touches registered memory is not known. InvalidArgument: called on a loop of this engine,
    /// and nothing has ended.
    Status freeEngine();

    /// The name that peers open: with p2p "host:port". Empty before init.
    std::string localSegmentName() const;
    /// Of this start of the engine. Null before init.
    Incarnation incarnation() const;
    /// How many connections were proven and refused by the cluster key so far (docs/security.md). Zeros before init.
    AuthCounts authCounts() const;

    // --- transports --------------------------------------------------------------------------------------------

    /// "tcp", "rdma" or "null"; the last moves nothing and reports all as COMPLETED, to measure what the engine itself
    /// costs, and is preferred to all others while it is installed. The path within the process and to other processes
    /// of this host ("host") needs no installation. `args` is reserved and must be null. AlreadyExists; NotFound lists
    /// the known names; the transport's own error leaves nothing behind. Regions registered before become usable by it
    /// too. The pointer is the engine's and says only that it is installed; it ends with uninstall.
    Result<Transport*> installTransport(const std::string& proto, void** args = nullptr);
    /// Null when it is not installed.
    Transport* getTransport(const std::string& proto) const;
    /// NotFound; BatchBusy while transfers may use it (any running batch). Peers' work on it is cut. "host": what other
    /// processes were given is taken back first, in at most `unregister_timeout`; when one of them is stopped and so
    /// cannot let go, BatchBusy names it and nothing has changed.
    Status uninstallTransport(const std::string& proto);

    // --- memory ------------------------------------------------------------------------------------------------

    /// Makes [addr, addr + length) usable as source, and reachable by peers when `remote_accessible`.
    /// Memory of a GPU is found out by asking the driver, if the process has one loaded or `location` names a GPU; its
    /// location becomes "cuda:N".
    /// InvalidArgument: zero length, null, wraps, or a part of it is not mapped (the error names the first such
    /// address); a `location` that is none of "*", "cpu:N", "cuda:N" and "segments:BYTES:N,N,..." (equal parts, of
    /// whole multiples of BYTES, on these NUMA nodes in turn), or a NUMA node that this machine does not have (the
    /// error names those it has); the memory is not what `location` says (the error says what it is). Unsupported:
    /// "cuda:N", and there is no driver; says why. DeviceLost. AddressOverlapped: shares bytes with another region
    /// (touching is fine). The transports' errors roll everything back. `update_metadata`: the record in the store
    /// follows, at once after a quiet time, else when it is paid for (docs/redis.md, "What N regions cost"); false: not
    /// before the next update. Access is not affected by either.
    Status registerLocalMemory(void* addr, std::size_t length, const std::string& location = "*",
                               bool remote_accessible = true, bool update_metadata = true);
    /// All or nothing.
    Status registerLocalMemoryBatch(const std::vector<BufferEntry>& buffers, const std::string& location = "*",
                                    bool remote_accessible = true);
    /// `addr` is the base given to registerLocalMemory; AddressNotRegistered otherwise. New work on the region is
    /// refused at once; waits until no transfer and no peer uses it, at most `unregister_timeout`. Peers' work past
    /// that is cut. Past the bound with own transfers: BatchBusy naming the batches, and the region stays registered.
    /// The same when a process of this host that was given access is stopped, and so can be neither cut nor proven
    /// gone: the error names it, the memory must stay mapped, and a later call succeeds once the process goes on or has
    /// ended. And the same while a part of it is in quarantine; the error names one, with the Nic, the peer and the
    /// cause. BatchBusy, too, when a device does not take its registration back: the error names it, nobody gets the
    /// region any more, the memory must stay mapped and cannot be registered again until a later call succeeds.
    Status unregisterLocalMemory(void* addr, bool update_metadata = true);
    /// Stops at the first error, which names the address; the ones before it are unregistered. Many are no slower than
    /// what their transports take: the data loops are asked once for a thousand.
    Status unregisterLocalMemoryBatch(const std::vector<void*>& addrs);

    /// Memory of the engine's own, registered as one region of `size` bytes. Processes of this host reach it by mapping
    /// it, which is twice as fast as copying from and to memory that the application brings. Whole pages, zeroed, all
    /// there when it returns; `huge_pages`: from the pool of 2 MiB pages. `location` "cpu:N" or
    /// "segments:...": from those NUMA nodes as long as they have room. The pointer is good until freeLocalMemory or
    /// the engine's destruction; a child made by fork does not have the memory. InvalidArgument: no bytes.
    /// ResourceExhausted names the size, what can be had, and the remedy; the machine is not driven out of memory.
    Result<void*> allocateLocalMemory(std::size_t size, const std::string& location = "*",
                                      bool remote_accessible = true, bool huge_pages = false);
    /// Unregisters and unmaps it. AddressNotRegistered: no such memory, or freed. The errors of unregisterLocalMemory,
    /// and then the memory stays; a later call may succeed.
    Status freeLocalMemory(void* addr);

    /// The local memory that tasks ended without and something may still touch (their status says `quiesced` false):
    /// who, why, since when. What the Nic could prove since has left it. While it is in there its region cannot be
    /// unregistered, and no request can name it as source: the memory must stay mapped and must not be reused. May be
    /// asked after freeEngine.
    Quarantined quarantine() const;

    // --- segments ----------------------------------------------------------------------------------------------

    /// Finds a segment and connects to its owner, at most `open_timeout`. The own name and "" differ: "" is an error,
    /// the own name is kLocalSegmentID. Opening an open segment gives the same id and counts.
    /// InvalidArgument, NotFound, ConnectionRefused, ConnectionLost, Timeout, ProtocolError, StaleIncarnation;
    /// AccessDenied: the cluster keys differ, or a store refuses; CapacityExceeded: the peer takes no more connections,
    /// or too many segments are open here; PeerDown: a store that cannot be used now, or a peer that ends meanwhile;
    /// Unsupported: the record of that name is not Troupe's, or the store is a Redis Cluster; ResourceExhausted: no
    /// descriptor, or no port of this machine's, is left.
    Result<SegmentID> openSegment(const std::string& name);
    /// The id is dead when as many closes as opens were made. StaleHandle. Transfers that run
    /// on it then end as CANCELED.
    Status closeSegment(SegmentID segment);
    /// The descriptor as last fetched; of kLocalSegmentID the current one. StaleHandle.
    Result<std::shared_ptr<const SegmentDesc>> getSegmentDescByID(SegmentID segment) const;
    /// Fetches anew the descriptor of one open segment, or of all (""), within `open_timeout`. NotFound: no such
    /// segment is open; StaleHandle: it was closed meanwhile; else as openSegment, of several the first that was met.
    Status syncSegmentCache(const std::string& name = "");
    /// Publishes the local descriptor to the store now and waits for the store (with p2p there is nothing to do). The
    /// store's errors, which change nothing here: ConnectionRefused, ConnectionLost, Timeout, AccessDenied, PeerDown,
    /// AlreadyExists (another engine has the name by now), ResourceExhausted (it is full, or cannot save), Unsupported
    /// (a Redis Cluster), InvalidArgument (a name that is not UTF-8), Canceled (freeEngine). The store has it once it
    /// is back.
    Status updateLocalSegmentDesc();
    /// Asks the owner over its control connection, within `timeout`. Ok: that incarnation answers now.
    /// PeerDown (also when the connection ends meanwhile), Timeout, StaleIncarnation (restarted), StaleHandle,
    /// CapacityExceeded (too many probes of this peer wait).
    Status probePeerAliveByID(SegmentID segment, std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
    /// Which transport carries what goes to a segment, by which Nics, why not a better one, which follow while it is
    /// lost, and how the segment's owner stands. StaleHandle.
    Result<RouteExplanation> explainSegment(SegmentID segment);
    /// The same of one task: its transports and Nics are those that carried it, of one that runs its segment's. With
    /// what did not go smoothly, in order: what came back from which Nic and why, how long until it was sent again,
    /// what arrived by whom; and of one that the engine ended (a deadline, a lost peer) how it stood at that moment.
    /// StaleHandle (batch, or the segment is closed); InvalidArgument.
    Result<RouteExplanation> explain(BatchID batch, std::size_t task);
    /// location -> (preferred, available) devices of this machine.
    PriorityMatrix getLocalTopology() const;

    // --- transfers ---------------------------------------------------------------------------------------------

    /// A batch that holds up to `capacity` tasks in its life. InvalidArgument: 0 or above `max_batch_tasks`.
    /// CapacityExceeded: `max_batches` are live. ResourceExhausted: no memory for so many tasks.
    Result<BatchID> allocateBatchID(std::size_t capacity);
    /// Adds tasks; their ids continue from the tasks already in the batch. Nothing is submitted on error.
    /// StaleHandle (batch or segment), CapacityExceeded, AddressNotRegistered (source), TransportMissing (names the
    /// segment, and why each transport does not reach it), InvalidArgument (null source, source range wraps, an opcode
    /// or an event that is none), AccessDenied (a READ into memory that was registered read-only), BatchBusy (a part of
    /// the source is in quarantine), Unsupported and CapacityExceeded of events (docs/gpu.md). The remote range is
    /// checked by its owner later. A request that names no deadline has the config's
    /// `transfer_timeout`: 30 s from here unless set, 0: none.
    Status submitTransfer(BatchID batch, const std::vector<TransferRequest>& requests);
    /// StaleHandle; InvalidArgument: no such task.
    Result<TransferStatus> getTransferStatus(BatchID batch, std::size_t task) const;
    /// PENDING until every task is terminal (COMPLETED for an empty batch); then COMPLETED, or the worst of its tasks
    /// with the first failed task's error.
    Result<TransferStatus> getBatchTransferStatus(BatchID batch) const;
    /// Blocks until every task is terminal and returns the batch's status, of which `quiesced` says whether the buffers
    /// of all tasks are free; PENDING when `timeout` passes first. Without
    /// one the deadlines of the tasks end the wait: each task has one unless `transfer_timeout` is 0.
    Result<TransferStatus> waitTransfer(BatchID batch,
                                        std::chrono::microseconds timeout = std::chrono::microseconds::max()) const;
    /// Asks that the tasks of a batch that are not terminal, or one of them, end as CANCELED as soon as nothing touches
    /// their buffers any more; waits for nothing, waitTransfer tells. What is on a connection is ended with it, and
    /// others' tasks on it are sent again. A task that ends by itself first keeps its state. It meets every task whose
    /// submit has returned; of a submit that another thread has under way, it may be the earlier one, and then those
    /// tasks run on. StaleHandle; InvalidArgument: no such task.
    Status cancelTransfer(BatchID batch);
    Status cancelTransfer(BatchID batch, std::size_t task);
    /// BatchBusy while a task is not terminal. StaleHandle.
    Status freeBatchID(BatchID batch);

    /// For tests of a program: who breaks this engine on purpose, see base/fault_injector.h. It lives as long as the
    /// engine; freeEngine ends every fault. AccessDenied unless `faults.enabled` is set in the config.
    Result<FaultInjector*> faults();

    /// The interface for services that run CAF themselves; see engine/actor_api.h. Null before init.
    ActorApi* actorApi();

  private:
    friend class ActorApi;
    Status cancel(BatchID batch, std::uint32_t task);
    Status start(std::unique_ptr<MetadataStore> store);
    Status stop();
    /// submitTransfer that calls `on_done` on a loop's turn when the batch ends.
    Status submit(BatchID batch, const std::vector<TransferRequest>& requests, std::function<void(BatchID)> on_done);

    std::unique_ptr<EngineCore> core_;
};

}  // namespace troupe
