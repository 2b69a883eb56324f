#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda_backend/driver_api.h"
#include "tests/fake_cuda/backing.h"

/// A CUDA driver in software for tests, see README.md. One State per process, as a driver has; its mutex guards
/// everything, and is not held while bytes are moved or an operation takes its time.
namespace troupe::cuda::api {

// The driver's symbols. Declared from the same list that the backend's table is made of, so that none can differ.
#define TROUPE_FAKE_DECLARE(member, name, symbol, version, need, ...) extern "C" Result symbol(__VA_ARGS__);
TROUPE_CUDA_CALLS(TROUPE_FAKE_DECLARE)
#undef TROUPE_FAKE_DECLARE

struct ContextObject {
    int device = 0;
    int retained = 0;                      ///< Not active at 0, and everything in it is gone.
    std::set<const ContextObject*> peers;  ///< Whose memory its copies reach by themselves.
    std::optional<Result> lost;
    int lose_after = -1;  ///< Operations that still succeed; -1: it is not to be lost.
    Result lose_with = Result::IllegalAddress;
};

using Task = std::function<void(std::unique_lock<std::mutex>& lock)>;

struct StreamObject : std::enable_shared_from_this<StreamObject> {
    ContextObject* context = nullptr;
    bool blocking = false;   ///< Waits for the context's legacy stream, and that for it.
    bool legacy = false;     ///< The default stream that all threads share.
    bool capturing = false;  ///< Into a graph of the application: nothing of it is done.
    bool spoilt = false;     ///< That graph.
    std::deque<Task> tasks;
    bool busy = false;
    bool ending = false;
    std::thread thread;
};

struct EventObject {
    ContextObject* context = nullptr;
    /// Of the last recording: whether it is done. Null: there was none. Streams that wait for an earlier one keep that.
    std::shared_ptr<bool> recording;
    std::weak_ptr<StreamObject> captured;  ///< By whose graph it was recorded last, while that is captured.
    bool was_captured = false;             ///< Recorded last into a graph.
};

struct ModuleObject {
    ContextObject* context = nullptr;
};

/// Runs as the threads of a launch would, given what the caller passed. Throws IllegalAccess.
using HostKernel = void (*)(class DeviceView& view, unsigned blocks, unsigned threads, void** parameters);

struct FunctionObject {
    ModuleObject* module = nullptr;
    HostKernel kernel = nullptr;
    std::vector<std::size_t> parameters;  ///< Bytes of each.
};

}  // namespace troupe::cuda::api

namespace troupe::fake_cuda {

using namespace cuda::api;

/// What a stretch of addresses is.
struct Mapping {
    enum class Kind { Allocated, Imported, Virtual, Pinned, Registered, Managed };
    Kind kind = Kind::Allocated;
    std::uint64_t base = 0;
    std::uint64_t bytes = 0;
    int device = 0;
    ContextObject* context = nullptr;
    std::uint64_t id = 0;
    std::shared_ptr<Backing> backing;  ///< Null: the addresses are the host's own.
    std::uint64_t offset = 0;          ///< Of `base` in the backing.
    std::set<int> access;              ///< Devices; of Virtual.
    AllocationHandle handle = 0;       ///< Of Virtual.
    int opened = 0;                    ///< How often it was opened; of Imported.
    bool for_kernels = true;           ///< Of Registered: with DEVICEMAP.

    bool isHost() const { return kind == Kind::Pinned || kind == Kind::Registered; }
    bool isDevice() const { return !isHost() && kind != Kind::Managed; }
};

/// Bytes as the host can touch them, and what keeps them there.
struct Segment {
    std::uint8_t* data = nullptr;
    std::uint64_t bytes = 0;
    std::shared_ptr<Backing> keep;
};

struct Physical {
    std::shared_ptr<Backing> backing;
    int device = 0;
    int references = 0;  ///< Handles that were given out and not released.
    int mappings = 0;
};

struct Settings {
    int devices = 2;
    int version = 13000;
    bool dmabuf = true;
    bool fabric = false;
    bool peer = true;
    int numa_node = -1;  ///< Of all devices.
    /// What the GPUs say of writes by other devices, and of flushing them.
    int writes_ordering = static_cast<int>(WritesOrdering::AllDevices);
    int flush_options = static_cast<int>(FlushOptions::Host);
    std::vector<int> visible;  ///< Physical number of each ordinal.
    unsigned latency_us = 0;
    unsigned ns_per_kib = 0;
    unsigned jitter_us = 0;
    bool reuse = false;
    bool own_addresses = false;     ///< What is registered has another address on the device.
    std::set<std::string> missing;  ///< Calls that this driver does not have.
};

struct Fault {
    Result result = Result::Success;
    int count = 0;
    int skip = 0;
};

class State {
  public:
    static State& get();

    // --- every call --------------------------------------------------------------------------------------------------
    /// Counts a call, and says how it is refused before anything else is looked at.
    Result enter(const char* call);
    /// The current context, or why nothing can be done in it.
    Result current(ContextObject*& context);
    /// Waits while calls of that name are held.
    void awaitTurn(const char* call, std::unique_lock<std::mutex>& lock);
    void violate(const std::string& what);
    void lose(ContextObject& context, Result result);
    /// What ends with a context; how many of it.
    std::size_t endStreams(const ContextObject& context);
    std::size_t endEvents(const ContextObject& context);
    std::size_t endModules(const ContextObject& context);
    std::size_t endMemory(const ContextObject& context);

    // --- memory ------------------------------------------------------------------------------------------------------
    Mapping* find(std::uint64_t addr);
    /// The bytes of a range for a copy of `device`. False: not all of it is memory that it may touch.
    bool resolve(std::uint64_t addr, std::uint64_t bytes, int device, std::vector<Segment>& segments);
    /// Neither memory of a GPU, nor was it ever.
    bool isPageable(std::uint64_t addr, std::uint64_t bytes) const;
    Uuid uuidOf(int ordinal) const;

    // --- streams -----------------------------------------------------------------------------------------------------
    bool isAlive(StreamHandle stream) const { return streams.count(stream) != 0; }
    /// The stream that a handle names in a context: default streams by their two special ones. Null: none.
    StreamObject* streamOf(StreamHandle handle, ContextObject* context);
    static std::shared_ptr<StreamObject> makeStream(ContextObject* context);
    /// Of a stream that is captured it goes into the graph.
    void enqueue(StreamObject& stream, Task task);
    /// The graph that a stream is captured into is of no use any more.
    void spoil(StreamObject& stream);
    /// A stream that the legacy stream waits for is being captured, which leaves that unusable.
    StreamObject* capturedBesideLegacy(const ContextObject& context) const;
    /// Waits until the streams of a device have nothing to do, or its context is lost.
    void drain(int device, std::unique_lock<std::mutex>& lock);
    void sleepFor(std::uint64_t bytes, std::unique_lock<std::mutex>& lock);
    template <class Visit>
    void forEachStream(Visit&& visit) const {
        for (const auto& [handle, stream] : streams) visit(*stream);
        for (const auto& [whose, stream] : default_streams) visit(*stream);
    }

    void configure();

    std::mutex mutex;
    std::condition_variable changed;  ///< Anything.
    int process = 0;                  ///< That called cuInit; 0: none did.
    Settings settings;
    std::vector<std::unique_ptr<ContextObject>> primaries;
    /// From before a reset: threads of streams that are about to end may still look at them.
    std::vector<std::unique_ptr<ContextObject>> retired;
    std::map<StreamHandle, std::shared_ptr<StreamObject>> streams;
    /// Made as they are named. Of all threads, or of that one.
    std::map<std::pair<ContextObject*, std::thread::id>, std::shared_ptr<StreamObject>> default_streams;
    std::map<EventHandle, std::shared_ptr<EventObject>> events;
    std::map<ModuleHandle, std::unique_ptr<ModuleObject>> modules;
    std::map<FunctionHandle, std::unique_ptr<FunctionObject>> functions;
    std::map<std::uint64_t, Mapping> mappings;
    std::map<AllocationHandle, Physical> physical;
    std::map<std::uint64_t, std::uint64_t> reservations;        ///< Every address a GPU ever had: base -> bytes.
    std::map<std::uint64_t, std::vector<std::uint64_t>> freed;  ///< Reservations without memory, by bytes.
    std::uint64_t next_id = 1;
    bool held = false;
    void (*on_flush)(void* argument, int device) = nullptr;
    void* on_flush_argument = nullptr;
    bool capturing = false;  ///< A stream of the application, into a graph.
    std::set<std::string> held_calls;
    std::map<std::string, Fault> faults;
    std::map<std::string, unsigned> counts;
    std::vector<std::string> violations;
    std::minstd_rand random;
};

/// True on a thread of a stream that is in a host function.
bool isCallingBack();

/// A kernel touched what is not there.
class IllegalAccess {};

inline Segment whole(std::uint8_t* data, std::uint64_t bytes) { return {data, bytes, nullptr}; }

}  // namespace troupe::fake_cuda

namespace troupe::cuda::api {

/// What a kernel sees: addresses that it may touch, looked up for each access. Throws fake_cuda::IllegalAccess.
class DeviceView {
  public:
    DeviceView(fake_cuda::State& state, int device) : state_(state), device_(device) {}
    std::uint8_t* at(std::uint64_t addr, std::uint64_t bytes);

  private:
    /// What was found lately.
    struct Known {
        std::uint64_t begin = 0;
        std::uint64_t bytes = 0;
        std::uint8_t* data = nullptr;
    };
    fake_cuda::State& state_;
    int device_;
    std::array<Known, 8> known_{};
    std::size_t next_ = 0;
    std::vector<std::shared_ptr<fake_cuda::Backing>> keep_;
};

}  // namespace troupe::cuda::api
