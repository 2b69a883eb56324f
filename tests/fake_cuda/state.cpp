#include "tests/fake_cuda/state.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

#include "tests/fake_cuda/reserve.h"

namespace troupe::fake_cuda {
namespace {

const char* environment(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : otherwise;
}

int number(const char* name, int otherwise) {
    const char* value = std::getenv(name);
    return value != nullptr ? std::atoi(value) : otherwise;
}

std::vector<std::string> list(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);)
        if (!part.empty()) parts.push_back(part);
    return parts;
}

/// The innermost context of this thread is the current one.
std::vector<ContextObject*>& contextsOfThread() {
    thread_local std::vector<ContextObject*> contexts;
    return contexts;
}

CaptureMode& captureModeOfThread() {
    thread_local CaptureMode mode = CaptureMode::Global;
    return mode;
}

/// What cannot spoil a graph that is captured beside it: it only says something, or gives a stream work.
bool sparesGraphs(const std::string& call) {
    static const std::set<std::string> gives_work{
        "cuMemcpyAsync",     "cuMemsetD8Async",        "cuLaunchKernel",      "cuLaunchHostFunc",   "cuEventRecord",
        "cuStreamWaitEvent", "cuPointerGetAttributes", "cuStreamWaitValue32", "cuStreamIsCapturing"};
    if (call == "cuDevicePrimaryCtxRetain" || call == "cuDevicePrimaryCtxRelease") return false;
    return call.rfind("cuInit", 0) == 0 || call.rfind("cuDevice", 0) == 0 || call.rfind("cuCtx", 0) == 0 ||
           call.rfind("cuThread", 0) == 0 || gives_work.count(call) != 0;
}

const char* nameOf(Result result) {
    switch (result) {
#define TROUPE_FAKE_NAME(ours, theirs) \
    case Result::ours: return "CUDA_" #theirs;
        TROUPE_FAKE_NAME(Success, SUCCESS)
        TROUPE_FAKE_NAME(InvalidValue, ERROR_INVALID_VALUE)
        TROUPE_FAKE_NAME(OutOfMemory, ERROR_OUT_OF_MEMORY)
        TROUPE_FAKE_NAME(NotInitialized, ERROR_NOT_INITIALIZED)
        TROUPE_FAKE_NAME(NoDevice, ERROR_NO_DEVICE)
        TROUPE_FAKE_NAME(InvalidDevice, ERROR_INVALID_DEVICE)
        TROUPE_FAKE_NAME(InvalidImage, ERROR_INVALID_IMAGE)
        TROUPE_FAKE_NAME(InvalidContext, ERROR_INVALID_CONTEXT)
        TROUPE_FAKE_NAME(MapFailed, ERROR_MAP_FAILED)
        TROUPE_FAKE_NAME(EccUncorrectable, ERROR_ECC_UNCORRECTABLE)
        TROUPE_FAKE_NAME(InvalidHandle, ERROR_INVALID_HANDLE)
        TROUPE_FAKE_NAME(NotFound, ERROR_NOT_FOUND)
        TROUPE_FAKE_NAME(NotReady, ERROR_NOT_READY)
        TROUPE_FAKE_NAME(IllegalAddress, ERROR_ILLEGAL_ADDRESS)
        TROUPE_FAKE_NAME(ContextIsDestroyed, ERROR_CONTEXT_IS_DESTROYED)
        TROUPE_FAKE_NAME(LaunchFailed, ERROR_LAUNCH_FAILED)
        TROUPE_FAKE_NAME(NotPermitted, ERROR_NOT_PERMITTED)
        TROUPE_FAKE_NAME(MpsRpcFailure, ERROR_MPS_RPC_FAILURE)
        TROUPE_FAKE_NAME(MpsClientTerminated, ERROR_MPS_CLIENT_TERMINATED)
        TROUPE_FAKE_NAME(PeerAccessAlreadyEnabled, ERROR_PEER_ACCESS_ALREADY_ENABLED)
        TROUPE_FAKE_NAME(PeerAccessUnsupported, ERROR_PEER_ACCESS_UNSUPPORTED)
        TROUPE_FAKE_NAME(NotSupported, ERROR_NOT_SUPPORTED)
        TROUPE_FAKE_NAME(StreamCaptureUnsupported, ERROR_STREAM_CAPTURE_UNSUPPORTED)
        TROUPE_FAKE_NAME(StreamCaptureImplicit, ERROR_STREAM_CAPTURE_IMPLICIT)
        TROUPE_FAKE_NAME(CapturedEvent, ERROR_CAPTURED_EVENT)
        TROUPE_FAKE_NAME(Unknown, ERROR_UNKNOWN)
#undef TROUPE_FAKE_NAME
        default: return nullptr;
    }
}

bool losesContext(Result result) {
    switch (result) {
        case Result::EccUncorrectable:
        case Result::NvlinkUncorrectable:
        case Result::Contained:
        case Result::IllegalAddress:
        case Result::LaunchTimeout:
        case Result::Assert:
        case Result::HardwareStackError:
        case Result::IllegalInstruction:
        case Result::MisalignedAddress:
        case Result::InvalidAddressSpace:
        case Result::InvalidPc:
        case Result::LaunchFailed:
        case Result::MpsRpcFailure:
        case Result::MpsClientTerminated:
        case Result::ExternalDevice: return true;
        default: return false;
    }
}

}  // namespace

State& State::get() {
    // Never destroyed: threads of its streams may outlive every destructor.
    static State* const state = [] {
        auto* made = new State;
        made->configure();
        return made;
    }();
    return *state;
}

void State::configure() {
    settings = {};
    settings.devices = number("FAKE_CUDA_DEVICES", 2);
    settings.version = number("FAKE_CUDA_VERSION", 13000);
    settings.dmabuf = number("FAKE_CUDA_DMABUF", 1) != 0;
    settings.fabric = number("FAKE_CUDA_FABRIC", 0) != 0;
    settings.peer = number("FAKE_CUDA_PEER", 1) != 0;
    settings.numa_node = number("FAKE_CUDA_NUMA", -1);
    settings.latency_us = static_cast<unsigned>(number("FAKE_CUDA_LATENCY_US", 0));
    settings.jitter_us = static_cast<unsigned>(number("FAKE_CUDA_JITTER_US", 0));
    random.seed(static_cast<unsigned>(number("FAKE_CUDA_SEED", 1)));
    for (const std::string& call : list(environment("FAKE_CUDA_MISSING", ""), ',')) settings.missing.insert(call);
    if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
        for (const std::string& each : list(visible, ',')) {
            const int device = std::atoi(each.c_str());
            if (device < 0 || device >= settings.devices) break;
            settings.visible.push_back(device);
        }
    } else {
        for (int device = 0; device < settings.devices; ++device) settings.visible.push_back(device);
    }
    faults.clear();
    // "cuMemcpyAsync:700:count:skip,..."
    for (const std::string& each : list(environment("FAKE_CUDA_FAIL", ""), ',')) {
        std::vector<std::string> parts = list(each, ':');
        parts.resize(4);
        faults[parts[0]] = {static_cast<Result>(std::atoi(parts[1].c_str())),
                            parts[2].empty() ? 1 : std::atoi(parts[2].c_str()), std::atoi(parts[3].c_str())};
    }
    for (auto& context : primaries) retired.push_back(std::move(context));
    primaries.clear();
    for (std::size_t ordinal = 0; ordinal < settings.visible.size(); ++ordinal) {
        primaries.push_back(std::make_unique<ContextObject>());
        primaries.back()->device = static_cast<int>(ordinal);
    }
    counts.clear();
    violations.clear();
    held = false;
    on_flush = nullptr;
    capturing = false;
    held_calls.clear();
    process = 0;
}

void State::awaitTurn(const char* call, std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [&] { return held_calls.empty() || held_calls.count(call) == 0; });
}

Result State::enter(const char* call) {
    ++counts[call];
    if (isCallingBack()) violate(std::string(call) + " from a host function, which may not call the driver");
    if (const auto found = faults.find(call); found != faults.end() && found->second.count > 0) {
        Fault& fault = found->second;
        if (fault.skip > 0) {
            --fault.skip;
        } else {
            --fault.count;
            auto& contexts = contextsOfThread();
            if (losesContext(fault.result) && !contexts.empty()) lose(*contexts.back(), fault.result);
            return fault.result;
        }
    }
    if (capturing && captureModeOfThread() != CaptureMode::Relaxed && !sparesGraphs(call)) {
        violate(std::string(call) + " spoilt a graph that was being captured");
        return Result::StreamCaptureUnsupported;
    }
    // A child of fork() does not have its parent's driver.
    if (std::strcmp(call, "cuInit") != 0 && process != ::getpid()) return Result::NotInitialized;
    return Result::Success;
}

Result State::current(ContextObject*& context) {
    const auto& contexts = contextsOfThread();
    if (contexts.empty() || contexts.back() == nullptr) {
        violate("a call without a current context");
        return Result::InvalidContext;
    }
    context = contexts.back();
    if (context->lost) return *context->lost;
    return context->retained > 0 ? Result::Success : Result::ContextIsDestroyed;
}

void State::violate(const std::string& what) {
    violations.push_back(what);
    std::fprintf(stderr, "fake_cuda: %s\n", what.c_str());
}

void State::lose(ContextObject& context, Result result) {
    if (!context.lost) context.lost = result;
    // Here, not by the threads alone: the context may be another's before they look.
    forEachStream([&](StreamObject& stream) {
        if (stream.context == &context) stream.tasks.clear();
    });
    changed.notify_all();
}

std::size_t State::endStreams(const ContextObject& context) {
    const auto end = [&](const auto& each) {
        if (each.second->context != &context) return false;
        each.second->ending = true;
        changed.notify_all();
        return true;
    };
    // They are the driver's, and nobody has to give them back.
    std::erase_if(default_streams, end);
    return std::erase_if(streams, end);
}

std::size_t State::endEvents(const ContextObject& context) {
    return std::erase_if(events, [&](const auto& each) { return each.second->context == &context; });
}

std::size_t State::endModules(const ContextObject& context) {
    std::erase_if(functions, [&](const auto& each) { return each.second->module->context == &context; });
    return std::erase_if(modules, [&](const auto& each) { return each.second->context == &context; });
}

Uuid State::uuidOf(int ordinal) const {
    Uuid uuid{};
    std::snprintf(uuid.bytes, sizeof uuid.bytes, "fake-gpu-%d", settings.visible[static_cast<std::size_t>(ordinal)]);
    return uuid;
}

}  // namespace troupe::fake_cuda

namespace troupe::cuda::api {

using fake_cuda::State;

extern "C" {

// --- the library -------------------------------------------------------------------------------------------------

Result cuInit(unsigned flags) {
    TROUPE_ENTER("cuInit")
    if (flags != 0) return Result::InvalidValue;
    if (state.settings.visible.empty()) return Result::NoDevice;
    if (state.process == 0) state.process = ::getpid();
    return state.process == ::getpid() ? Result::Success : Result::NotInitialized;
}

Result cuDriverGetVersion(int* version) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    *version = state.settings.version;
    return Result::Success;
}

Result cuGetErrorName(Result error, const char** name) {
    *name = fake_cuda::nameOf(error);
    return *name != nullptr ? Result::Success : Result::InvalidValue;
}

Result cuGetErrorString(Result error, const char** text) {
    *text = error == Result::IllegalAddress ? "an illegal memory access was encountered" : "as the fake was told";
    return fake_cuda::nameOf(error) != nullptr ? Result::Success : Result::InvalidValue;
}

Result cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t, ProcAddressQuery* found) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    *function = nullptr;
    *found = ProcAddressQuery::SymbolNotFound;
    if (state.settings.missing.count(name) != 0) return Result::NotFound;
    // In the signature of that version: the newest that is not newer.
    int best = -1;
#define TROUPE_FAKE_ADDRESS(member, base, symbol, since, need, ...)                             \
    if (std::strcmp(name, #base) == 0) {                                                        \
        *found = ProcAddressQuery::VersionNotSufficient;                                        \
        if (since <= version && since <= state.settings.version && since > best) {              \
            best = since;                                                                       \
            *function = reinterpret_cast<void*>(static_cast<Result (*)(__VA_ARGS__)>(&symbol)); \
            *found = ProcAddressQuery::Success;                                                 \
        }                                                                                       \
    }
    TROUPE_CUDA_CALLS(TROUPE_FAKE_ADDRESS)
#undef TROUPE_FAKE_ADDRESS
    return *found == ProcAddressQuery::Success ? Result::Success : Result::NotFound;
}

// --- devices -----------------------------------------------------------------------------------------------------

Result cuDeviceGetCount(int* count) {
    TROUPE_ENTER("cuDeviceGetCount")
    *count = static_cast<int>(state.primaries.size());
    return Result::Success;
}

Result cuDeviceGet(DeviceHandle* device, int ordinal) {
    TROUPE_ENTER("cuDeviceGet")
    if (ordinal < 0 || ordinal >= static_cast<int>(state.primaries.size())) return Result::InvalidDevice;
    *device = ordinal;
    return Result::Success;
}

#define TROUPE_KNOWN(device) \
    if (device < 0 || device >= static_cast<int>(state.primaries.size())) return Result::InvalidDevice;

Result cuDeviceGetName(char* name, int length, DeviceHandle device) {
    TROUPE_ENTER("cuDeviceGetName")
    TROUPE_KNOWN(device)
    std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU %d",
                  state.settings.visible[static_cast<std::size_t>(device)]);
    return Result::Success;
}

Result cuDeviceGetUuid_v2(Uuid* uuid, DeviceHandle device) {
    TROUPE_ENTER("cuDeviceGetUuid")
    TROUPE_KNOWN(device)
    *uuid = state.uuidOf(device);
    return Result::Success;
}

Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, DeviceHandle device) {
    TROUPE_ENTER("cuDeviceGetAttribute")
    TROUPE_KNOWN(device)
    switch (attribute) {
        case DeviceAttribute::MultiprocessorCount: *value = 4; break;
        case DeviceAttribute::ComputeCapabilityMajor: *value = 9; break;
        case DeviceAttribute::DmaBufSupported: *value = state.settings.dmabuf ? 1 : 0; break;
        case DeviceAttribute::HandleTypeFabricSupported: *value = state.settings.fabric ? 1 : 0; break;
        case DeviceAttribute::GpuDirectRdmaWritesOrdering: *value = state.settings.writes_ordering; break;
        case DeviceAttribute::GpuDirectRdmaFlushWritesOptions: *value = state.settings.flush_options; break;
        case DeviceAttribute::HostNumaId:
            if (state.settings.version < 12000) return Result::InvalidValue;
            *value = state.settings.numa_node;
            break;
        case DeviceAttribute::ComputeCapabilityMinor: *value = 0; break;
        case DeviceAttribute::AsyncEngineCount: *value = 2; break;
        case DeviceAttribute::GpuDirectRdmaSupported: *value = 0; break;
        default: *value = 1;
    }
    return Result::Success;
}

Result cuDeviceTotalMem_v2(std::size_t* bytes, DeviceHandle device) {
    TROUPE_ENTER("cuDeviceTotalMem")
    TROUPE_KNOWN(device)
    *bytes = std::size_t{16} << 30;
    return Result::Success;
}

Result cuDeviceGetPCIBusId(char* id, int length, DeviceHandle device) {
    TROUPE_ENTER("cuDeviceGetPCIBusId")
    TROUPE_KNOWN(device)
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0",
                  0xa0 + state.settings.visible[static_cast<std::size_t>(device)]);
    return Result::Success;
}

Result cuDeviceCanAccessPeer(int* can, DeviceHandle device, DeviceHandle peer) {
    TROUPE_ENTER("cuDeviceCanAccessPeer")
    TROUPE_KNOWN(device)
    TROUPE_KNOWN(peer)
    *can = state.settings.peer && device != peer ? 1 : 0;
    return Result::Success;
}

// --- contexts ----------------------------------------------------------------------------------------------------

Result cuDevicePrimaryCtxRetain(ContextHandle* context, DeviceHandle device) {
    TROUPE_ENTER("cuDevicePrimaryCtxRetain")
    TROUPE_KNOWN(device)
    *context = state.primaries[static_cast<std::size_t>(device)].get();
    ++(*context)->retained;
    return Result::Success;
}

Result cuDevicePrimaryCtxRelease_v2(DeviceHandle device) {
    TROUPE_ENTER("cuDevicePrimaryCtxRelease")
    TROUPE_KNOWN(device)
    ContextObject& context = *state.primaries[static_cast<std::size_t>(device)];
    if (context.retained == 0) return Result::InvalidContext;
    if (--context.retained > 0) return Result::Success;
    // Everything in it ends with it. Of a lost one nothing could be given back before.
    const bool was_lost = context.lost.has_value();
    for (const auto& [what, count] : {std::pair{"streams", state.endStreams(context)},
                                      {"events", state.endEvents(context)},
                                      {"modules", state.endModules(context)},
                                      {"memory", state.endMemory(context)}})
        if (count != 0 && !was_lost)
            state.violate("a primary context was released with " + std::to_string(count) + " " + what + " in it");
    context.lose_after = -1;
    context.lost.reset();
    context.peers.clear();
    for (const auto& other : state.primaries) other->peers.erase(&context);
    return Result::Success;
}

Result cuDevicePrimaryCtxGetState(DeviceHandle device, unsigned* flags, int* active) {
    TROUPE_ENTER("cuDevicePrimaryCtxGetState")
    TROUPE_KNOWN(device)
    *flags = 0;
    *active = state.primaries[static_cast<std::size_t>(device)]->retained > 0 ? 1 : 0;
    return Result::Success;
}

Result cuCtxPushCurrent_v2(ContextHandle context) {
    TROUPE_ENTER("cuCtxPushCurrent")
    if (context == nullptr || context->retained == 0) return Result::InvalidContext;
    fake_cuda::contextsOfThread().push_back(context);
    return Result::Success;
}

Result cuCtxPopCurrent_v2(ContextHandle* context) {
    TROUPE_ENTER("cuCtxPopCurrent")
    auto& contexts = fake_cuda::contextsOfThread();
    if (contexts.empty()) return Result::InvalidContext;
    *context = contexts.back();
    contexts.pop_back();
    return Result::Success;
}

Result cuCtxGetCurrent(ContextHandle* context) {
    TROUPE_ENTER("cuCtxGetCurrent")
    const auto& contexts = fake_cuda::contextsOfThread();
    *context = contexts.empty() ? nullptr : contexts.back();
    return Result::Success;
}

Result cuCtxGetDevice(DeviceHandle* device) {
    TROUPE_ENTER_CONTEXT("cuCtxGetDevice")
    *device = context->device;
    return Result::Success;
}

Result cuCtxSetCurrent(ContextHandle context) {
    TROUPE_ENTER("cuCtxSetCurrent")
    auto& contexts = fake_cuda::contextsOfThread();
    if (!contexts.empty()) contexts.pop_back();
    if (context != nullptr) contexts.push_back(context);
    return Result::Success;
}

Result cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
    TROUPE_ENTER("cuThreadExchangeStreamCaptureMode")
    if (mode == nullptr || *mode > CaptureMode::Relaxed) return Result::InvalidValue;
    std::swap(*mode, fake_cuda::captureModeOfThread());
    return Result::Success;
}

Result cuCtxEnablePeerAccess(ContextHandle peer, unsigned flags) {
    TROUPE_ENTER("cuCtxEnablePeerAccess")
    ContextObject* context = nullptr;
    if (const Result refused = state.current(context); refused != Result::Success) return refused;
    if (flags != 0 || peer == nullptr || peer == context) return Result::InvalidValue;
    if (!state.settings.peer) return Result::PeerAccessUnsupported;
    return context->peers.insert(peer).second ? Result::Success : Result::PeerAccessAlreadyEnabled;
}

}  // extern "C"
}  // namespace troupe::cuda::api
