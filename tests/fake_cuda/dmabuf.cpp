// Memory for other devices of the machine: dma-bufs, and what a peer memory driver asks. What a device's driver in the
// kernel would get is a file here, to be mapped.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/reserve.h"
#include "tests/fake_cuda/state.h"

namespace {

using troupe::fake_cuda::Backing;
using troupe::fake_cuda::Mapping;
using troupe::fake_cuda::State;

constexpr std::uint64_t kMagic = 0x4655424d44454b46;
constexpr std::uint64_t kPage = 4096;

/// What is written in a dma-buf's descriptor. It is a file of its own, as long as the range and without its bytes: who
/// maps or reads it, instead of having the kernel import it, gets nothing.
struct Ticket {
    std::uint64_t magic = kMagic;
    std::uint64_t file = 0;   ///< The memory's, by its inode.
    std::uint64_t begin = 0;  ///< Of the range in it.
};

std::uint64_t inodeOf(int fd) {
    struct stat about {};
    return ::fstat(fd, &about) == 0 ? about.st_ino : 0;
}

/// A new descriptor of a memory's file; -1: there is none to be had.
int openFile(const Backing& backing) { return ::fcntl(backing.fd(), F_DUPFD_CLOEXEC, 0); }

}  // namespace

extern "C" {

int fakeCudaOpenDmabuf(int fd, unsigned long long* offset, int* device) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    Ticket ticket;
    if (::pread(fd, &ticket, sizeof ticket, 0) != static_cast<ssize_t>(sizeof ticket) || ticket.magic != kMagic)
        return -1;
    const auto found = std::find_if(state.mappings.begin(), state.mappings.end(), [&](const auto& each) {
        return each.second.backing && inodeOf(each.second.backing->fd()) == ticket.file;
    });
    if (found == state.mappings.end()) return -1;
    *offset = ticket.begin;
    *device = found->second.device;
    return openFile(*found->second.backing);
}

int fakeCudaOpenPeerMemory(unsigned long long addr, std::size_t bytes, unsigned long long* offset, int* device) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    const Mapping* mapping = state.find(addr);
    // Of cuMemAlloc alone, and of one allocation: nvidia-peermem knows no others.
    if (mapping == nullptr || mapping->kind != Mapping::Kind::Allocated || addr - mapping->base > mapping->bytes ||
        bytes > mapping->bytes - (addr - mapping->base))
        return -1;
    *offset = mapping->offset + (addr - mapping->base);
    *device = mapping->device;
    return openFile(*mapping->backing);
}

void fakeCudaNicWrites(int ordering, int flush_options) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.settings.writes_ordering = ordering;
    state.settings.flush_options = flush_options;
}

void fakeCudaOnFlush(void (*function)(void* argument, int device), void* argument) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.on_flush = function;
    state.on_flush_argument = argument;
}

}  // extern "C"

namespace troupe::cuda::api {

extern "C" {

/// A range of several allocations has none here, though a driver may have one.
Result cuMemGetHandleForAddressRange(void* handle, DevicePtr address, std::size_t bytes, RangeHandleType type,
                                     unsigned long long) {
    TROUPE_ENTER_CONTEXT("cuMemGetHandleForAddressRange")
    if (!state.settings.dmabuf) return Result::NotSupported;
    if (type != RangeHandleType::DmaBufFd || address % kPage != 0 || bytes == 0 || bytes % kPage != 0)
        return Result::InvalidValue;
    const auto mapping = std::find_if(state.mappings.begin(), state.mappings.end(), [&](const auto& each) {
        const Mapping& candidate = each.second;
        const std::uint64_t begin = candidate.base / kPage * kPage;
        const std::uint64_t end = fake_cuda::roundUp(candidate.base + candidate.bytes, kPage);
        return candidate.isDevice() && address >= begin && address < end;
    });
    if (mapping == state.mappings.end()) return Result::InvalidValue;
    const Mapping& memory = mapping->second;
    if (address + bytes > fake_cuda::roundUp(memory.base + memory.bytes, kPage))
        return memory.kind == Mapping::Kind::Virtual ? Result::NotSupported : Result::InvalidValue;
    Ticket ticket;
    ticket.file = inodeOf(memory.backing->fd());
    ticket.begin = address + memory.offset - memory.base;
    const int fd = ::memfd_create("fake-cuda-dmabuf", MFD_CLOEXEC);
    if (fd < 0 || ::ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
        ::pwrite(fd, &ticket, sizeof ticket, 0) != static_cast<ssize_t>(sizeof ticket))
        return Result::OperatingSystem;
    std::memcpy(handle, &fd, sizeof fd);
    return Result::Success;
}

Result cuFlushGPUDirectRDMAWrites(FlushTarget target, FlushScope scope) {
    TROUPE_ENTER_CONTEXT("cuFlushGPUDirectRDMAWrites")
    if (target != FlushTarget::CurrentContext || (scope != FlushScope::Owner && scope != FlushScope::AllDevices))
        return Result::InvalidValue;
    if (static_cast<int>(scope) <= state.settings.writes_ordering) return Result::Success;
    if ((state.settings.flush_options & static_cast<int>(FlushOptions::Host)) == 0) return Result::NotSupported;
    auto* const function = state.on_flush;
    void* const argument = state.on_flush_argument;
    const int device = context->device;
    // What is written to it by others is asked of them, who may be asking for memory.
    lock.unlock();
    if (function != nullptr) function(argument, device);
    return Result::Success;
}

}  // extern "C"
}  // namespace troupe::cuda::api
