#include "cuda_backend/cuda_device.h"

#include <chrono>
#include <utility>

#include "cuda_backend/packer.h"

namespace troupe::cuda {

using namespace device;

namespace {

api::StreamHandle handleOf(StreamRef stream) {
    // Which one 0 is depends on how the library that asks was compiled. Ours says so, whatever it was compiled with.
    const bool is_default = stream.is_foreign && stream.handle == 0;
    return reinterpret_cast<api::StreamHandle>(is_default ? api::kStreamLegacy : stream.handle);
}
api::EventHandle handleOf(EventRef event) { return reinterpret_cast<api::EventHandle>(event.handle); }
template <class T>
std::uintptr_t valueOf(T* handle) {
    return reinterpret_cast<std::uintptr_t>(handle);
}

/// So long an error has to be the only answer before the GPU is taken for lost. Long enough for a driver that is short
/// of something for a while, and no longer than a task's end may be kept back.
constexpr std::chrono::milliseconds kStreakBound{1000};
/// Who waits for a copy asks more often than this: two errors further apart are two. Of events and streams of the
/// application none counts: whoever names one that is not there, again and again, has not lost the GPU.
constexpr std::chrono::milliseconds kStreakGap{200};

}  // namespace

Result<std::shared_ptr<CudaDevice>> CudaDevice::open(std::shared_ptr<const CudaDriver> driver, DeviceInfo info) {
    const std::string where = info.location;
    api::DeviceHandle handle = 0;
    if (const Outcome found = invoke(driver->calls().deviceGet, &handle, info.ordinal); !found)
        return driver->toStatus(found).withContext(where);
    api::ContextHandle context = nullptr;
    const BesideGraphs beside_graphs(*driver);
    if (const Outcome retained = invoke(driver->calls().devicePrimaryCtxRetain, &context, handle); !retained)
        return driver->toStatus(retained).withContext(where);
    return std::shared_ptr<CudaDevice>(new CudaDevice(std::move(driver), std::move(info), context));
}

CudaDevice::~CudaDevice() {
    const BesideGraphs beside_graphs(*driver_);
    api::DeviceHandle handle = 0;
    if (invoke(driver_->calls().deviceGet, &handle, info_.ordinal))
        invoke(driver_->calls().devicePrimaryCtxRelease, handle);
}

Status CudaDevice::state() const {
    if (!lost_.load(std::memory_order_acquire)) return {};
    const std::lock_guard lock(mutex_);
    return cause_;
}

Status CudaDevice::settle(const Outcome& outcome) {
    if (outcome) return {};
    const Status status = driver_->toStatus(outcome).withContext(info_.location);
    return isSticky(outcome.result) ? lose(status) : status;
}

Status CudaDevice::settle(const Outcome& outcome, Streak& streak) {
    if (outcome) {
        // Without the lock: this is on every loop's way, and there is nothing to end as a rule.
        if (streak.goes_on.load(std::memory_order_relaxed)) streak.goes_on.store(false, std::memory_order_relaxed);
        return {};
    }
    const Status status = settle(outcome);
    if (status.code() == Code::DeviceLost) return status;
    const TimePoint now = Clock::now();
    {
        const std::lock_guard lock(mutex_);
        const bool is_same = streak.goes_on.load(std::memory_order_relaxed) && streak.result == outcome.result &&
                             now - streak.last <= kStreakGap;
        if (!is_same) {
            streak.goes_on.store(true, std::memory_order_relaxed);
            streak.result = outcome.result;
            streak.since = now;
        }
        streak.last = now;
        if (now - streak.since < kStreakBound) return status;
    }
    return lose(Status(status.code(), status.message() + ", and nothing else for a second"));
}

Status CudaDevice::settleForeign(const Outcome& outcome) {
    if (!isSticky(outcome.result)) return settle(outcome);
    const api::Calls& calls = driver_->calls();
    api::EventHandle event = nullptr;
    const Outcome own = invoke(calls.eventCreate, &event, api::kEventDisableTiming);
    if (isSticky(own.result)) return settle(outcome);
    if (own) invoke(calls.eventDestroy, event);
    return {Code::InvalidArgument,
            info_.location + ": " + driver_->toStatus(outcome).message() + "; it is of another GPU, which is lost"};
}

Status CudaDevice::lose(const Status& why) {
    const std::lock_guard lock(mutex_);
    if (cause_.isOk()) {
        cause_ = Status(Code::DeviceLost, why.message() + "; the context of " + info_.location +
                                              " is lost, and with it the GPU until the process is started anew");
        lost_.store(true, std::memory_order_release);
    }
    return cause_;
}

// --- memory --------------------------------------------------------------------------------------------------------

Result<DeviceMemory> CudaDevice::allocate(std::uint64_t bytes) {
    api::DevicePtr memory = 0;
    if (Status status = run(driver_->calls().memAlloc, &memory, bytes); !status)
        return status.withContext("allocate " + std::to_string(bytes) + " bytes");
    return DeviceMemory(shared_from_this(), memory);
}

Result<HostMemory> CudaDevice::allocateHost(std::uint64_t bytes) {
    void* memory = nullptr;
    if (Status status = run(driver_->calls().memHostAlloc, &memory, bytes, api::kMemHostAllocPortable); !status)
        return status.withContext("allocate " + std::to_string(bytes) + " bytes of pinned memory");
    return HostMemory(shared_from_this(), valueOf(memory));
}

Result<Pinning> CudaDevice::pin(const ByteRange& host) {
    auto* const memory = reinterpret_cast<void*>(host.addr);
    constexpr unsigned kFlags = api::kMemHostRegisterPortable | api::kMemHostRegisterDeviceMap;
    if (Status status = run(driver_->calls().memHostRegister, memory, host.length, kFlags); !status)
        return status.withContext("pin " + host.toString());
    return Pinning(shared_from_this(), host.addr);
}

Status CudaDevice::reachesPinned(const ByteRange& pinned) {
    api::DevicePtr here = 0;
    auto* const memory = reinterpret_cast<void*>(pinned.addr);
    if (Status status = run(driver_->calls().memHostGetDevicePointer, &here, memory, 0u); !status)
        return status.withContext("kernels and pinned memory");
    if (here == pinned.addr) return {};
    return Status(Code::Unsupported, info_.location + " has addresses of its own for pinned memory");
}

Status CudaDevice::reachPeer(Device& peer) {
    const auto* const other = dynamic_cast<const CudaDevice*>(&peer);
    if (other == nullptr || other == this)
        return Status(Code::InvalidArgument,
                      info_.location + " and " + peer.info().location + " are no two GPUs of CUDA");
    if (lost_.load(std::memory_order_acquire)) return state();
    const CurrentContext current(*driver_, context_);
    if (!current.outcome()) return settle(current.outcome());
    const Outcome enabled = invoke(driver_->calls().ctxEnablePeerAccess, other->context_, 0u);
    // By the application, as a rule: the contexts are its own, too.
    if (enabled.result == api::Result::PeerAccessAlreadyEnabled) return {};
    return settle(enabled).withContext("peer access to " + other->info_.location);
}

// --- streams and events --------------------------------------------------------------------------------------------

Result<DeviceStream> CudaDevice::makeStream() {
    api::StreamHandle stream = nullptr;
    // Non-blocking: what the application does on stream 0 neither waits for ours nor holds them.
    if (Status status = run(driver_->calls().streamCreate, &stream, api::kStreamNonBlocking); !status) return status;
    return DeviceStream(shared_from_this(), valueOf(stream));
}

Result<DeviceEvent> CudaDevice::makeEvent() {
    api::EventHandle event = nullptr;
    if (Status status = run(driver_->calls().eventCreate, &event, api::kEventDisableTiming); !status) return status;
    return DeviceEvent(shared_from_this(), valueOf(event));
}

Status CudaDevice::copy(StreamRef stream, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    Status status = run(driver_->calls().memcpyAsync, to, from, bytes, handleOf(stream));
    // A driver says that something is wrong, and not with which end.
    if (status.code() == Code::InvalidArgument)
        for (const auto& [end, addr] : {std::pair("source", from), std::pair("destination", to)})
            if (const auto gone = firstUnknown({addr, bytes}))
                return Status(status.code(), status.message() + "; the driver knows no memory at " + hexAddress(*gone) +
                                                 ", of its " + end + ": was it freed while it was registered?");
    return status;
}

/// The first address of the range, its beginning or its end, that the driver has no memory at.
std::optional<std::uint64_t> CudaDevice::firstUnknown(const ByteRange& range) const {
    for (const std::uint64_t addr : {range.addr, range.end() - 1}) {
        const auto facts = factsOf(*driver_, addr);
        if (facts && facts->kind == MemoryKind::Host) return addr;
    }
    return std::nullopt;
}

Status CudaDevice::checkRuns(StreamRef stream) {
    // The one question about a stream that spoils no graph. Whatever else is asked of one that is captured may.
    auto status = api::CaptureStatus::None;
    const Outcome asked = invoke(driver_->calls().streamIsCapturing, handleOf(stream), &status);
    if (asked.result == api::Result::StreamCaptureImplicit)
        return {Code::InvalidArgument, info_.location +
                                           ": the default stream cannot be used while a stream that it "
                                           "waits for is captured into a graph: name the stream that does the work"};
    if (!asked) return settleForeign(asked);
    if (status == api::CaptureStatus::None) return {};
    return {Code::InvalidArgument, info_.location +
                                       ": the stream is being captured into a graph, whose work is done "
                                       "when that is launched: name the stream that it is launched on, after that"};
}

std::string CudaDevice::whose(StreamRef stream) const {
    const api::Calls& calls = driver_->calls();
    api::ContextHandle context = nullptr;
    if (!invoke(calls.streamGetCtx, handleOf(stream), &context) || context == context_) return "";
    const CurrentContext theirs(*driver_, context);
    api::DeviceHandle device = 0;
    api::DeviceHandle own = 0;
    if (!theirs.outcome() || !invoke(calls.ctxGetDevice, &device) || !invoke(calls.deviceGet, &own, info_.ordinal))
        return "";
    return "; the stream is of " +
           (device == own ? "another context than the primary one" : "cuda:" + std::to_string(device)) +
           ": record an event on it, and wait for that";
}

Status CudaDevice::record(EventRef event, StreamRef stream) {
    if (lost_.load(std::memory_order_acquire)) return state();
    const CurrentContext current(*driver_, context_);
    if (!current.outcome()) return settle(current.outcome(), records_);
    if (stream.is_foreign)
        if (Status runs = checkRuns(stream); !runs) return runs;
    const Outcome outcome = invoke(driver_->calls().eventRecord, handleOf(event), handleOf(stream));
    if (!event.is_foreign && !stream.is_foreign) return settle(outcome, records_);
    Status status = settleForeign(outcome);
    const bool is_refused =
        outcome.result == api::Result::InvalidHandle || outcome.result == api::Result::InvalidContext;
    if (!is_refused) return status;
    if (stream.is_foreign) return {Code::InvalidArgument, status.message() + whose(stream)};
    return {Code::InvalidArgument, status.message() + "; it has to be an event of " + info_.location};
}

Status CudaDevice::waitForValue(StreamRef stream, const std::uint32_t* word, std::uint32_t value) {
    return run(driver_->calls().streamWaitValue32, handleOf(stream), api::DevicePtr{valueOf(word)}, value,
               api::kStreamWaitValueGeq);
}

Status CudaDevice::wait(StreamRef stream, EventRef event) {
    if (lost_.load(std::memory_order_acquire)) return state();
    const CurrentContext current(*driver_, context_);
    if (!current.outcome()) return settle(current.outcome());
    const Outcome outcome = invoke(driver_->calls().streamWaitEvent, handleOf(stream), handleOf(event), 0u);
    return event.is_foreign ? settleForeign(outcome) : settle(outcome);
}

Result<bool> CudaDevice::isDone(EventRef event) {
    if (lost_.load(std::memory_order_acquire)) return state();
    const CurrentContext current(*driver_, context_);
    if (!current.outcome()) return settle(current.outcome(), queries_);
    const Outcome outcome = invoke(driver_->calls().eventQuery, handleOf(event));
    const bool is_ready = outcome.result != api::Result::NotReady;
    const Outcome answer = is_ready ? outcome : Outcome{};
    if (Status status = event.is_foreign ? settleForeign(answer) : settle(answer, queries_); !status) return status;
    return is_ready;
}

Status CudaDevice::notify(StreamRef stream, void (*function)(void*), void* argument) {
    return run(driver_->calls().launchHostFunc, handleOf(stream), function, argument);
}

Status CudaDevice::synchronize(StreamRef stream) { return run(driver_->calls().streamSynchronize, handleOf(stream)); }

// --- kernels -------------------------------------------------------------------------------------------------------

Result<Kernels> CudaDevice::loadKernels(std::span<const std::byte> image) {
    if (image.empty())
        return Status(Code::Unsupported,
                      "this build has no kernels: it was made without the CUDA toolkit (TROUPE_CUDA)");
    api::ModuleHandle module = nullptr;
    if (Status status = run(driver_->calls().moduleLoadData, &module, static_cast<const void*>(image.data())); !status)
        return status;
    return Kernels(shared_from_this(), valueOf(module));
}

Result<std::uintptr_t> CudaDevice::findKernel(const Kernels& kernels, const char* name) {
    api::FunctionHandle function = nullptr;
    auto* const module = reinterpret_cast<api::ModuleHandle>(kernels.get());
    if (Status status = run(driver_->calls().moduleGetFunction, &function, module, name); !status)
        return status.withContext(name);
    return valueOf(function);
}

Status CudaDevice::launch(StreamRef stream, std::uintptr_t kernel, unsigned blocks, unsigned threads,
                          std::span<void*> parameters) {
    return run(driver_->calls().launchKernel, reinterpret_cast<api::FunctionHandle>(kernel), blocks, 1u, 1u, threads,
               1u, 1u, 0u, handleOf(stream), parameters.data(), static_cast<void**>(nullptr));
}

Result<std::shared_ptr<const PageMover>> CudaDevice::makeMover() {
    if (!info_.host_pointers)
        return Status(Code::Unsupported, info_.location + " has addresses of its own for pinned memory");
    auto packer = Packer::create(shared_from_this());
    if (!packer) return packer.status();
    return std::shared_ptr<const PageMover>(std::move(*packer));
}

// --- the end -------------------------------------------------------------------------------------------------------

/// Of a device that is lost, too: what host memory it has pinned is given back. What the driver says is of no use to
/// anybody then. Where the context cannot be made current the resource is left to the context's end: the call would be
/// made in whatever is current on this thread, which is the application's.
void CudaDevice::release(Resource kind, std::uintptr_t value) {
    const CurrentContext current(*driver_, context_);
    if (!current.outcome()) return;
    const api::Calls& calls = driver_->calls();
    switch (kind) {
        case Resource::Stream: invoke(calls.streamDestroy, reinterpret_cast<api::StreamHandle>(value)); break;
        case Resource::Event: invoke(calls.eventDestroy, reinterpret_cast<api::EventHandle>(value)); break;
        case Resource::Memory: invoke(calls.memFree, api::DevicePtr{value}); break;
        case Resource::HostMemory: invoke(calls.memFreeHost, reinterpret_cast<void*>(value)); break;
        case Resource::Pinning: invoke(calls.memHostUnregister, reinterpret_cast<void*>(value)); break;
        case Resource::Import: unmapImport(value); break;
        case Resource::Kernels: invoke(calls.moduleUnload, reinterpret_cast<api::ModuleHandle>(value)); break;
    }
}

}  // namespace troupe::cuda
