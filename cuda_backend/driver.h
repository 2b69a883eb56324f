#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "cuda_backend/driver_api.h"

namespace troupe::cuda {

/// One call of the driver. Null where the driver has none of it.
template <class Signature>
struct Call {
    const char* name = nullptr;
    Signature* function = nullptr;
};

namespace api {

/// The calls by name: `calls.memAlloc`.
struct Calls {
#define TROUPE_CUDA_MEMBER(member, name, symbol, version, need, ...) Call<Result(__VA_ARGS__)> member{#name};
    TROUPE_CUDA_CALLS(TROUPE_CUDA_MEMBER)
#undef TROUPE_CUDA_MEMBER
};

}  // namespace api

/// What a call returned, and its name.
struct Outcome {
    api::Result result = api::Result::Success;
    const char* call = "";

    explicit operator bool() const { return result == api::Result::Success; }
};

/// Calls the driver; CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER where it has no such call.
template <class Signature, class... Arguments>
Outcome invoke(const Call<Signature>& call, Arguments... arguments) {
    if (call.function == nullptr) return {api::Result::CallRequiresNewerDriver, call.name};
    return {call.function(arguments...), call.name};
}

/// The CUDA driver of this process as a table of its calls: the seam through which everything goes. Immutable and
/// thread-safe. The library stays loaded to the end of the process, since its threads do.
class CudaDriver {
  public:
    /// Where the driver is looked for.
    struct Source {
        /// Empty: "libcuda.so.1".
        std::string path;
        /// Only if the process has it already. Memory of a GPU can only have come from a driver that is loaded, so who
        /// asks what a pointer is need not load one.
        bool only_if_loaded = false;
    };

    /// Loads and initialises it; makes no context on any GPU. Unsupported, "no CUDA driver: ..." with the reason: there
    /// is none, it lacks a call that is needed, or cuInit failed (no GPU, versions that do not match).
    static Result<std::shared_ptr<const CudaDriver>> load(const Source& source);

    /// Whether the process has that library, usable or not.
    static bool isLoaded(const Source& source);

    int version() const { return version_; }  ///< Of the API, 13000 for CUDA 13.0.
    const std::string& path() const { return path_; }

    /// Ok, or the failure with the call's name, CUDA's name and number of it, and CUDA's text.
    Status toStatus(const Outcome& outcome) const;
    /// "CUDA_ERROR_ILLEGAL_ADDRESS (700)".
    std::string nameOf(api::Result result) const;

    /// For invoke.
    const api::Calls& calls() const { return calls_; }

  private:
    CudaDriver() = default;
    Status resolve(void* library);

    api::Calls calls_;
    int version_ = 0;
    std::string path_;
};

/// True for what leaves the context it happened in unusable for the rest of the process: each later call in it returns
/// the same.
bool isSticky(api::Result result);

/// The nearest Code.
Code codeOf(api::Result result);

}  // namespace troupe::cuda
