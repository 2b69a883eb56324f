#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "cuda_backend/driver_api.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace troupe::fake_cuda {

/// The fake of this process, for tests: its functions of fake_cuda.h as C++. Loads it.
class Control {
  public:
    Control() : library_(::dlopen(TROUPE_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
        if (library_ == nullptr) throw std::runtime_error(::dlerror());
    }

    static std::string path() { return TROUPE_FAKE_CUDA; }

    void reset() { find<decltype(fakeCudaReset)>("fakeCudaReset")(); }
    void fail(const char* call, cuda::api::Result result, int count = 1, int skip = 0) {
        find<decltype(fakeCudaFail)>("fakeCudaFail")(call, static_cast<unsigned>(result), count, skip);
    }
    void lose(int device, cuda::api::Result result, int operations = 0) {
        find<decltype(fakeCudaLose)>("fakeCudaLose")(device, static_cast<unsigned>(result), operations);
    }
    void latency(unsigned us, unsigned ns_per_kib = 0, unsigned jitter_us = 0) {
        find<decltype(fakeCudaLatency)>("fakeCudaLatency")(us, ns_per_kib, jitter_us);
    }
    void hold(bool held) { find<decltype(fakeCudaHold)>("fakeCudaHold")(held ? 1 : 0); }
    void holdCall(const char* call, bool held) {
        find<decltype(fakeCudaHoldCall)>("fakeCudaHoldCall")(call, held ? 1 : 0);
    }
    void captureGraph(bool capturing) {
        find<decltype(fakeCudaCaptureGraph)>("fakeCudaCaptureGraph")(capturing ? 1 : 0);
    }
    /// At the end of a capture: whether the graph is whole.
    bool captureStream(std::uintptr_t stream, bool capturing) {
        return find<decltype(fakeCudaCaptureStream)>("fakeCudaCaptureStream")(reinterpret_cast<void*>(stream),
                                                                              capturing ? 1 : 0) != 0;
    }
    void reuseAddresses(bool reuse) { find<decltype(fakeCudaReuseAddresses)>("fakeCudaReuseAddresses")(reuse ? 1 : 0); }
    void ownAddresses(bool own) { find<decltype(fakeCudaOwnAddresses)>("fakeCudaOwnAddresses")(own ? 1 : 0); }
    void delay(std::uintptr_t stream, unsigned us) {
        if (find<decltype(fakeCudaDelay)>("fakeCudaDelay")(reinterpret_cast<void*>(stream), us) != 0)
            throw std::runtime_error("fakeCudaDelay: no such stream");
    }
    std::vector<std::uint8_t> read(std::uint64_t from, std::size_t bytes) {
        std::vector<std::uint8_t> out(bytes);
        if (find<decltype(fakeCudaRead)>("fakeCudaRead")(from, out.data(), bytes) == 0)
            throw std::runtime_error("fakeCudaRead: no such memory");
        return out;
    }
    void write(std::uint64_t to, const std::vector<std::uint8_t>& bytes) {
        if (find<decltype(fakeCudaWrite)>("fakeCudaWrite")(to, bytes.data(), bytes.size()) == 0)
            throw std::runtime_error("fakeCudaWrite: no such memory");
    }
    /// A file of memory that devices beside the GPU may reach, and where a range begins in it; no file: they may not.
    struct DeviceFile {
        int fd = -1;  ///< The caller's to close.
        unsigned long long offset = 0;
        int device = -1;
    };
    DeviceFile openDmabuf(int fd) {
        DeviceFile file;
        file.fd = find<decltype(fakeCudaOpenDmabuf)>("fakeCudaOpenDmabuf")(fd, &file.offset, &file.device);
        return file;
    }
    DeviceFile openPeerMemory(std::uint64_t addr, std::size_t bytes) {
        DeviceFile file;
        file.fd =
            find<decltype(fakeCudaOpenPeerMemory)>("fakeCudaOpenPeerMemory")(addr, bytes, &file.offset, &file.device);
        return file;
    }
    void nicWrites(cuda::api::WritesOrdering ordering, bool can_flush) {
        find<decltype(fakeCudaNicWrites)>("fakeCudaNicWrites")(
            static_cast<int>(ordering), can_flush ? static_cast<int>(cuda::api::FlushOptions::Host) : 0);
    }
    void onFlush(void (*function)(void* argument, int device), void* argument) {
        find<decltype(fakeCudaOnFlush)>("fakeCudaOnFlush")(function, argument);
    }
    unsigned count(const char* what) { return find<decltype(fakeCudaCount)>("fakeCudaCount")(what); }
    std::string violations() {
        char text[4096];
        find<decltype(fakeCudaViolations)>("fakeCudaViolations")(text, sizeof text);
        return text;
    }
    /// What a test provoked and expects is not to fail it.
    void forgetViolations() { find<decltype(fakeCudaForgetViolations)>("fakeCudaForgetViolations")(); }
    std::string leftovers() {
        char text[256];
        find<decltype(fakeCudaLeftovers)>("fakeCudaLeftovers")(text, sizeof text);
        return text;
    }

  private:
    template <class Signature>
    Signature* find(const char* name) {
        auto* const function = reinterpret_cast<Signature*>(::dlsym(library_, name));
        if (function == nullptr) throw std::runtime_error(std::string("no ") + name);
        return function;
    }

    void* library_;
};

}  // namespace troupe::fake_cuda
