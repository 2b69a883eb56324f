#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include <caf/actor.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include "actors/batch.h"
#include "actors/loop.h"
#include "actors/quarantine.h"
#include "actors/segment_board.h"
#include "actors/segment_directory.h"
#include "base/fault_injector.h"
#include "base/unique_fd.h"
#include "engine/actor_api.h"
#include "engine/device_memory.h"
#include "engine/transfer_engine.h"
#include "security/cluster_auth.h"
#include "transports/memory_file.h"
#include "transports/registration_table.h"

namespace troupe {

/// What a TransferEngine consists of. Its members are made by init and live until the engine is destroyed, so that a
/// call that runs beside freeEngine never meets freed memory.
class EngineCore {
  public:
    enum class Life { New, Running, Ended };

    explicit EngineCore(EngineOptions engine_options);
    ~EngineCore();

    /// What init makes is there, for any thread to read, if init was called at all. Until then init may be writing it.
    bool begun() const { return life.load(std::memory_order_acquire) != Life::New; }
    /// NotInitialised unless the engine runs; Internal after a defect ended its data plane.
    Status usable() const;

    /// Asks an actor and waits: `build(reply)` makes the message. Answer is Status or a Result. Canceled when the
    /// engine ends meanwhile. InvalidArgument on a loop's turn, where waiting would stop an engine.
    template <class Answer, class Build>
    Answer ask(const caf::actor& actor, Build&& build);

    /// The loop on whose turn the calling thread is, if any.
    bool onAnyTurn() const;
    /// InvalidArgument on a turn of one of the loops, or of another engine's, which a call that waits would stop.
    Status mayWait() const;

    EngineOptions options;
    const Config& settings() const { return options.config; }
    /// Null unless `faults.enabled`. Before all that it breaks, which it outlives.
    std::unique_ptr<FaultInjector> faults;
    std::atomic<Life> life{Life::New};

    Incarnation incarnation;
    std::shared_ptr<const ClusterAuth> auth;  ///< Set by init, once.
    SegmentDirectory::Local local;
    std::vector<int> numa_nodes;  ///< Of this machine; 0 alone where it does not say.
    UniqueFd listener;

    // Both orders matter: actors end before the loops, the loops before the system.
    std::unique_ptr<caf::actor_system_config> own_system_config;
    std::unique_ptr<caf::actor_system> own_system;
    std::unique_ptr<Loop> control_loop;
    std::vector<std::unique_ptr<Loop>> data_loops;

    DeviceMemory device_memory;
    std::shared_ptr<device::StagingPool> staging;  ///< Made by init.
    RegistrationTable regions;
    Quarantine quarantine;
    SegmentBoard segments;
    std::unique_ptr<BatchTable> batches;

    caf::actor supervisor;
    caf::actor directory;
    std::vector<caf::actor> trackers;
    std::unique_ptr<ControlExchange> exchange;  ///< For transports.
    std::unique_ptr<ActorApi> actor_api;
    std::shared_ptr<std::promise<Status>> actors_ended;

    struct InstalledHere {
        std::shared_ptr<Transport> transport;
        int preference;
    };
    // Registration asks every transport while another thread may install one: shared for registering and unregistering,
    // exclusive for installing and uninstalling. All but registering wait for loops with it, so it is never asked for
    // on a loop's turn.
    std::shared_mutex transports_mutex;
    // For those that only look, on any thread. Held for a moment, by who changes the list inside the other.
    mutable std::mutex transports_list_mutex;
    std::vector<InstalledHere> transports;
    std::uint32_t installations = 0;  ///< Tried so far; guarded by transports_mutex.

    /// Memory of allocateLocalMemory by address. It lives until it is freed or the engine is destroyed.
    std::mutex allocations_mutex;
    std::map<std::uint64_t, std::unique_ptr<MemoryFile>> allocations;

    std::mutex life_mutex;  ///< init and freeEngine exclude each other.
    Status end;             ///< What freeEngine said last; guarded by `life_mutex`, as is the next.
    /// Copies of GPUs that had not ended are all that `end` is about.
    bool ended_beside_copies = false;
    Status init_failed;  ///< Of an init that had begun to start things; written once before `life` is Ended.
    std::atomic<std::uint32_t> next_tracker{0};
    std::atomic<bool> failed{false};
    Status fatal;  ///< Written once before `failed`.
};

template <class Answer, class Build>
Answer EngineCore::ask(const caf::actor& actor, Build&& build) {
    if (const Status may = mayWait(); !may) return may;
    // The message alone holds the promise, so that one that dies unanswered breaks it.
    auto promise = std::make_shared<std::promise<Answer>>();
    auto answer = promise->get_future();
    caf::anon_send(actor, build([held = std::move(promise)](Answer value) { held->set_value(std::move(value)); }));
    try {
        return answer.get();
    } catch (const std::future_error&) {
        // The message died with its actor, unanswered.
        return Status(Code::Canceled, "the engine ended before it answered");
    }
}

}  // namespace troupe
