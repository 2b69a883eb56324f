#include "cuda_backend/driver.h"

#include <dlfcn.h>

#include <utility>

namespace troupe::cuda {
namespace {

/// Versions 12.0 and 11.3 of cuGetProcAddress. It gives a call in the signature of the version that is asked for, so it
/// is asked for the one that driver_api.h declares, whatever the driver's own is.
using GetProcAddress = api::Result(const char* name, void** function, int version, std::uint64_t flags,
                                   api::ProcAddressQuery* found);
using GetProcAddressOld = api::Result(const char* name, void** function, int version, std::uint64_t flags);

class Resolver {
  public:
    explicit Resolver(void* library)
        : library_(library),
          newer_(reinterpret_cast<GetProcAddress*>(::dlsym(library, "cuGetProcAddress_v2"))),
          older_(reinterpret_cast<GetProcAddressOld*>(::dlsym(library, "cuGetProcAddress"))) {}

    void* find(const char* name, const char* symbol, int version) const {
        if (newer_ == nullptr && older_ == nullptr) return ::dlsym(library_, symbol);
        void* function = nullptr;
        auto found = api::ProcAddressQuery::Success;
        const api::Result result =
            newer_ != nullptr ? newer_(name, &function, version, 0, &found) : older_(name, &function, version, 0);
        return result == api::Result::Success && found == api::ProcAddressQuery::Success ? function : nullptr;
    }

  private:
    void* library_;
    GetProcAddress* newer_;
    GetProcAddressOld* older_;
};

enum class Need { Required, Optional };

template <class Signature>
void resolveOne(const Resolver& resolver, Call<Signature>& call, const char* symbol, int version, Need need,
                std::string& missing) {
    call.function = reinterpret_cast<Signature*>(resolver.find(call.name, symbol, version));
    if (call.function == nullptr && need == Need::Required && missing.empty()) missing = call.name;
}

/// Where a driver's library comes from.
constexpr const char* kRemedy =
    "; it is in NVIDIA's package libcuda1 (Debian) or libnvidia-compute (Ubuntu), a container gets it from the NVIDIA "
    "Container Toolkit, and gpu.driver names one elsewhere";

std::string pathOf(const CudaDriver::Source& source) { return source.path.empty() ? "libcuda.so.1" : source.path; }

Status noDriver(const std::string& why) { return {Code::Unsupported, "no CUDA driver: " + why}; }

}  // namespace

bool CudaDriver::isLoaded(const Source& source) {
    void* const library = ::dlopen(pathOf(source).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (library != nullptr) ::dlclose(library);
    return library != nullptr;
}

Result<std::shared_ptr<const CudaDriver>> CudaDriver::load(const Source& source) {
    std::shared_ptr<CudaDriver> driver(new CudaDriver);
    driver->path_ = pathOf(source);
    // Not unloaded ever again: it has threads, and other engines of the process may use it.
    const int mode = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | (source.only_if_loaded ? RTLD_NOLOAD : 0);
    void* library = ::dlopen(driver->path_.c_str(), mode);
    if (library == nullptr) {
        const char* why = ::dlerror();
        if (source.only_if_loaded) return noDriver("this process has not loaded " + driver->path_);
        return noDriver((why != nullptr ? why : driver->path_ + " cannot be loaded") + std::string(kRemedy));
    }
    if (Status status = driver->resolve(library); !status) return status;
    if (const Outcome outcome = invoke(driver->calls_.init, 0u); !outcome)
        return noDriver(driver->path_ + ": " + driver->toStatus(outcome).message());
    if (const Outcome outcome = invoke(driver->calls_.driverGetVersion, &driver->version_); !outcome)
        return noDriver(driver->path_ + ": " + driver->toStatus(outcome).message());
    return std::shared_ptr<const CudaDriver>(std::move(driver));
}

Status CudaDriver::resolve(void* library) {
    const Resolver resolver(library);
    std::string missing;
#define TROUPE_CUDA_RESOLVE(member, name, symbol, version, need, ...) \
    resolveOne(resolver, calls_.member, #symbol, version, Need::need, missing);
    TROUPE_CUDA_CALLS(TROUPE_CUDA_RESOLVE)
#undef TROUPE_CUDA_RESOLVE
    if (!missing.empty()) return noDriver(path_ + " has no " + missing + ": CUDA 11.4 or newer is needed");
    return {};
}

std::string CudaDriver::nameOf(api::Result result) const {
    const char* name = nullptr;
    const auto number = " (" + std::to_string(static_cast<unsigned>(result)) + ")";
    // It knows each that it returns; what it does not know is a number of a newer one.
    if (calls_.getErrorName.function == nullptr || !invoke(calls_.getErrorName, result, &name) || name == nullptr)
        return "CUDA error" + number;
    return name + number;
}

Status CudaDriver::toStatus(const Outcome& outcome) const {
    if (outcome) return {};
    std::string message = std::string(outcome.call) + ": " + nameOf(outcome.result);
    const char* text = nullptr;
    if (calls_.getErrorString.function != nullptr && invoke(calls_.getErrorString, outcome.result, &text) && text)
        message.append(": ").append(text);
    return {codeOf(outcome.result), std::move(message)};
}

bool isSticky(api::Result result) {
    switch (result) {
        case api::Result::EccUncorrectable:
        case api::Result::NvlinkUncorrectable:
        case api::Result::Contained:
        case api::Result::IllegalAddress:
        case api::Result::LaunchTimeout:
        case api::Result::ContextIsDestroyed:
        case api::Result::Assert:
        case api::Result::HardwareStackError:
        case api::Result::IllegalInstruction:
        case api::Result::MisalignedAddress:
        case api::Result::InvalidAddressSpace:
        case api::Result::InvalidPc:
        case api::Result::LaunchFailed:
        case api::Result::TensorMemoryLeak:
        case api::Result::MpsRpcFailure:
        case api::Result::MpsClientTerminated:
        case api::Result::ExternalDevice: return true;
        default: return false;
    }
}

Code codeOf(api::Result result) {
    if (isSticky(result)) return Code::DeviceLost;
    switch (result) {
        case api::Result::Success: return Code::Ok;
        case api::Result::InvalidValue:
        case api::Result::InvalidHandle:
        case api::Result::HostMemoryNotRegistered:
        case api::Result::NotMapped:
        // A stream or event of the application that is part of a graph which it captures.
        case api::Result::StreamCaptureUnsupported:
        case api::Result::StreamCaptureInvalidated:
        case api::Result::StreamCaptureIsolation:
        case api::Result::StreamCaptureImplicit:
        case api::Result::CapturedEvent: return Code::InvalidArgument;
        case api::Result::NotFound:
        case api::Result::NoDevice:
        case api::Result::InvalidDevice: return Code::NotFound;
        case api::Result::AlreadyMapped:
        case api::Result::HostMemoryAlreadyRegistered: return Code::AlreadyExists;
        case api::Result::OutOfMemory:
        case api::Result::MapFailed:
        case api::Result::OperatingSystem:
        case api::Result::LaunchOutOfResources:
        case api::Result::DeviceUnavailable: return Code::ResourceExhausted;
        case api::Result::StubLibrary:
        case api::Result::CallRequiresNewerDriver:
        case api::Result::InvalidImage:
        case api::Result::NoBinaryForGpu:
        case api::Result::InvalidPtx:
        case api::Result::UnsupportedPtxVersion:
        case api::Result::PeerAccessUnsupported:
        case api::Result::NotPermitted:
        case api::Result::NotSupported:
        case api::Result::SystemNotReady:
        case api::Result::SystemDriverMismatch:
        case api::Result::CompatNotSupportedOnDevice: return Code::Unsupported;
        default: return Code::Internal;
    }
}

}  // namespace troupe::cuda
