#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/byte_range.h"
#include "base/status.h"
#include "base/unique_fd.h"

/// What Troupe asks of a GPU, whoever made it: the door for other vendors. An implementation is a `DeviceRuntime` that
/// finds out what memory is and opens GPUs, and a `Device` per GPU. Errors name the vendor's call and its own name of
/// the error; Code::DeviceLost says that the GPU cannot be used any more by this process, and is returned by every call
/// from then on.
namespace troupe::device {

enum class MemoryKind : std::uint8_t {
    Host,     ///< Of the operating system; a GPU reaches it through the vendor's staging only.
    Pinned,   ///< Page-locked host memory that GPUs read and write by themselves.
    Managed,  ///< Moves between host and GPU as it is touched; good for a CPU's copies, too.
    Device,   ///< Of one GPU. No CPU instruction and no system call may touch it.
};

/// "host", "pinned", "managed", "device".
const char* kindName(MemoryKind kind);

/// What of a range lies in one allocation. An allocator that grows by pieces (expandable segments) makes ranges of
/// several.
struct MemoryPiece {
    ByteRange range;                  ///< Of the range that was asked for.
    ByteRange allocation;             ///< All of the allocation, for who exports it.
    std::uint64_t allocation_id = 0;  ///< Unique in the process's life: another one means other memory.
    /// Mapped by whoever made it, or of a pool: other GPUs and processes may have no access.
    bool is_virtual = false;
};

/// What a range of memory is.
struct MemoryPlace {
    MemoryKind kind = MemoryKind::Host;
    int device = -1;                  ///< Ordinal; of Device only.
    std::vector<MemoryPiece> pieces;  ///< In address order, without a gap; of Device only.
    std::string location;             ///< As errors have it: "cuda:1", "pinned", "managed", "host".
};

using DeviceUuid = std::array<std::uint8_t, 16>;

/// What it takes until a GPU sees what a NIC wrote straight into its memory, once the NIC says that it has.
enum class NicWrites : std::uint8_t {
    Ordered,  ///< Nothing: its own kernels and copies see them; those of other GPUs, only if it says so of all devices.
    Flushed,  ///< Device::flushNicWrites, in the process whose memory it is.
    Unseen,   ///< The driver has no way. No NIC may write there.
};

/// What a GPU is and can do. Of a GPU that is only looked at, too.
struct DeviceInfo {
    int ordinal = 0;
    std::string location;  ///< "cuda:1".
    std::string name;
    DeviceUuid uuid{};   ///< The same in every process and container.
    std::string pci;     ///< "0000:1b:00.0"
    int numa_node = -1;  ///< Nearest host memory; -1: neither the driver nor sysfs says.
    std::uint64_t bytes = 0;
    int major = 0;  ///< Compute capability.
    int minor = 0;
    int multiprocessors = 0;
    bool dmabuf = false;          ///< Its memory can be given to other devices of the host.
    bool peer_memory = false;     ///< NICs reach its memory by address, with nvidia-peermem.
    bool fd_handles = false;      ///< Virtual memory can be shared by descriptors.
    bool fabric_handles = false;  ///< Virtual memory can be shared across hosts of one NVLink domain.
    NicWrites nic_writes = NicWrites::Unseen;
    bool host_pointers = false;     ///< Its kernels reach pinned memory by the host's own addresses.
    bool waits_for_values = false;  ///< Device::waitForValue may be tried.
};

class Device;

/// Registered memory of a GPU, and the GPU, which stays open as long as this lives.
struct PlacedMemory {
    MemoryPlace memory;
    std::shared_ptr<Device> device;
};

/// What a Device made and has to take back.
enum class Resource : std::uint8_t { Stream, Event, Memory, HostMemory, Pinning, Import, Kernels };

/// Owns one resource of a device, and the device. Movable. Default: none.
template <Resource kKind>
class Owned {
  public:
    Owned() = default;
    Owned(std::shared_ptr<Device> device, std::uintptr_t value) : device_(std::move(device)), value_(value) {}
    Owned(Owned&& other) noexcept : device_(std::move(other.device_)), value_(std::exchange(other.value_, 0)) {}
    Owned& operator=(Owned&& other) noexcept {
        if (this != &other) {
            reset();
            device_ = std::move(other.device_);
            value_ = std::exchange(other.value_, 0);
        }
        return *this;
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
    ~Owned() { reset(); }

    /// The vendor's own handle, or the address of memory.
    std::uintptr_t get() const { return value_; }
    explicit operator bool() const { return value_ != 0; }
    void reset();

  private:
    std::shared_ptr<Device> device_;
    std::uintptr_t value_ = 0;
};

using DeviceStream = Owned<Resource::Stream>;
using DeviceEvent = Owned<Resource::Event>;
using DeviceMemory = Owned<Resource::Memory>;
using HostMemory = Owned<Resource::HostMemory>;
using Pinning = Owned<Resource::Pinning>;
using ImportedMemory = Owned<Resource::Import>;
using Kernels = Owned<Resource::Kernels>;

/// A stream of ours or of the application: the vendor's handle. Of the application its default streams, too: 0 is the
/// one that all threads share, and the vendor may have handles for others.
struct StreamRef {
    std::uintptr_t handle = 0;
    bool is_foreign = false;  ///< Of the application: what the driver says of it need not be about the GPU.
    StreamRef(const DeviceStream& stream) : handle(stream.get()) {}  // NOLINT(google-explicit-constructor)
    explicit StreamRef(std::uintptr_t foreign) : handle(foreign), is_foreign(true) {}
};

struct EventRef {
    std::uintptr_t handle = 0;
    bool is_foreign = false;                                     ///< As of a stream.
    EventRef(const DeviceEvent& event) : handle(event.get()) {}  // NOLINT(google-explicit-constructor)
    explicit EventRef(std::uintptr_t foreign) : handle(foreign), is_foreign(true) {}
};

/// How an allocation is handed to another process.
enum class ShareKind : std::uint8_t {
    Ipc = 1,     ///< By a handle, to another process of this host.
    File = 2,    ///< By a descriptor, to another process of this host.
    Fabric = 3,  ///< By a handle, to whoever is in the same NVLink domain.
};

inline constexpr std::size_t kShareHandleBytes = 64;

/// One allocation as another process can map it. Plain numbers, but for the descriptor, which travels on its own.
struct SharedMemory {
    ShareKind kind = ShareKind::Ipc;
    std::uint64_t allocation_id = 0;                       ///< Changes when the address is allocated anew.
    ByteRange allocation;                                  ///< Where the exporter has it.
    std::array<std::uint8_t, kShareHandleBytes> handle{};  ///< Of Ipc and Fabric.
    UniqueFd fd;                                           ///< Of File.
};

/// A file that stands for memory of a GPU, to be imported by other devices (a dma-buf).
struct DmabufRange {
    UniqueFd fd;
    std::uint64_t offset = 0;  ///< Of the range's first byte, bytes.
};

/// One of several copies that are made at once, of `bytes` > 0: between memory of the GPU, and what Device::pin pinned
/// and Device::reachesPinned takes. On no border.
struct PageMove {
    std::uint64_t to = 0;
    std::uint64_t from = 0;
    std::uint64_t bytes = 0;
};

/// Makes many small copies on one GPU at once, by a kernel. Thread-safe; keeps the GPU open.
class PageMover {
  public:
    virtual ~PageMover() = default;
    /// As so many calls of Device::copy, but for their order, which is undefined: where two write to the same bytes
    /// those of either are there in the end, or some of each. After an error some of it may be under way. What is no
    /// memory at all a copy would refuse; here it may cost the GPU.
    virtual Status move(StreamRef stream, std::span<const PageMove> moves) const = 0;
};

/// One GPU that this process uses. Thread-safe. Every call leaves the calling thread as it was: whatever GPU the
/// application had made current there is current afterwards. No call waits for a GPU, but for those that say so.
class Device : public std::enable_shared_from_this<Device> {
  public:
    virtual ~Device() = default;

    virtual const DeviceInfo& info() const = 0;
    /// Ok, or DeviceLost with the first cause.
    virtual Status state() const = 0;

    // --- memory; may take milliseconds, so never on a data loop ------------------------------------------------------
    virtual Result<DeviceMemory> allocate(std::uint64_t bytes) = 0;
    /// Pinned for all GPUs.
    virtual Result<HostMemory> allocateHost(std::uint64_t bytes) = 0;
    /// Pins memory that is there already, whole pages.
    virtual Result<Pinning> pin(const ByteRange& host) = 0;
    /// Whether kernels reach what `pin` pinned by the host's own addresses. An error says why they do not.
    virtual Status reachesPinned(const ByteRange& pinned) = 0;

    /// Has this GPU's copies go straight to and from memory of `peer`, of the same vendor; once is enough, for as long
    /// as both are open. Unsupported: it does not reach it, as DeviceRuntime::reaches says.
    virtual Status reachPeer(Device& peer) = 0;

    // --- streams and events ------------------------------------------------------------------------------------------
    /// What is done on one stream is done in order; between streams only events give an order.
    virtual Result<DeviceStream> makeStream() = 0;
    virtual Result<DeviceEvent> makeEvent() = 0;
    /// Between any two of: memory of this GPU, of another GPU, pinned and managed memory. The ranges stay valid until
    /// an event recorded afterwards is done. Of another GPU it goes from one to the other where `reachPeer` was Ok, and
    /// else through memory of the host, by the driver.
    virtual Status copy(StreamRef stream, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) = 0;
    /// The event is done as soon as all that the stream was given until now is. InvalidArgument for a stream of the
    /// application that is of another GPU, or is being captured into a graph: nothing is recorded, nor the graph
    /// spoilt.
    virtual Status record(EventRef event, StreamRef stream) = 0;
    /// What the stream is given from now on begins when the event is done, as it was recorded last: what it is recorded
    /// for afterwards, or that it is given back, changes nothing. The event may be of another GPU.
    virtual Status wait(StreamRef stream, EventRef event) = 0;
    /// What the stream is given from now on begins when the word has come to `value`, counted in a circle: when
    /// int32(word - value) >= 0. What was written before the word was stored with release is seen behind the wait. The
    /// word is 4 bytes, on a border of 4, of what `pin` pinned and `reachesPinned` takes, and stays there until then.
    /// Unsupported, with the reason: this vendor, driver or GPU does not do that.
    virtual Status waitForValue(StreamRef stream, const std::uint32_t* word, std::uint32_t value);
    /// Whether the event is done, as it was recorded last. An event that was never recorded is.
    virtual Result<bool> isDone(EventRef event) = 0;
    /// Calls `function(argument)` on a thread of the driver when the stream has come so far, and lets the stream go on
    /// afterwards; it may not call the driver. Not called when the device is lost before.
    virtual Status notify(StreamRef stream, void (*function)(void*), void* argument) = 0;
    /// Waits until the stream is done.
    virtual Status synchronize(StreamRef stream) = 0;

    // --- kernels -----------------------------------------------------------------------------------------------------
    virtual Result<Kernels> loadKernels(std::span<const std::byte> image) = 0;
    virtual Result<std::uintptr_t> findKernel(const Kernels& kernels, const char* name) = 0;
    /// `parameters` as the vendor has them: a pointer to each.
    virtual Status launch(StreamRef stream, std::uintptr_t kernel, unsigned blocks, unsigned threads,
                          std::span<void*> parameters) = 0;

    /// May take milliseconds. Unsupported, with the reason: there is no such kernel (of this vendor, in this build, for
    /// this GPU or driver). Whoever asks makes the copies one by one then.
    virtual Result<std::shared_ptr<const PageMover>> makeMover();

    // --- sharing; may take milliseconds ------------------------------------------------------------------------------
    /// How the allocations that `place` lies in can be given to others, one entry for each piece: to processes of this
    /// host, or with `fabric` to those of the NVLink domain. Unsupported says what stands in the way of which piece.
    virtual Result<std::vector<SharedMemory>> exportMemory(const MemoryPlace& place, bool fabric) = 0;
    /// Maps an allocation of another process for this GPU; get() is the address of its first byte. The handle may be
    /// hostile: what comes of it is refused unless it is as long as it claims.
    virtual Result<ImportedMemory> importMemory(const SharedMemory& shared) = 0;
    /// A file of the range. Unsupported where the driver or the memory has none.
    virtual Result<DmabufRange> exportDmabuf(const ByteRange& range) = 0;
    /// Has the driver finish what it does with the range by itself before it answers, as a NIC that reads the memory
    /// needs it. Of virtual memory no driver can be asked for that: there only the events of a request order.
    virtual Status orderForNics(const ByteRange& range) = 0;
    /// Waits until this GPU's kernels and copies, and those of others that reach its memory, see what NICs had written
    /// to that when it was called; not for what the GPU does. A read over the bus: microseconds, so for many requests
    /// at once. Where DeviceInfo::nic_writes is Ordered it does nothing (see there), and where it is Unseen it is
    /// Unsupported.
    virtual Status flushNicWrites() = 0;

  private:
    template <Resource kKind>
    friend class Owned;
    virtual void release(Resource kind, std::uintptr_t value) = 0;
};

/// The GPUs of this machine. Thread-safe. Makes no context on any GPU until that is opened, or memory on it is
/// looked at, which the application can only have if it uses that GPU.
class DeviceRuntime {
  public:
    virtual ~DeviceRuntime() = default;

    virtual std::string vendor() const = 0;  ///< "cuda": what comes before the colon in a location.
    virtual int count() const = 0;
    virtual Result<DeviceInfo> info(int ordinal) const = 0;
    /// NotFound: there is no such GPU.
    virtual Result<std::shared_ptr<Device>> open(int ordinal) = 0;
    /// Whether the first reads and writes memory of the second by itself.
    virtual bool reaches(int ordinal, int peer) const = 0;
    /// What a range is. InvalidArgument: it is of more than one kind or GPU, or part of it is no memory; says which.
    virtual Result<MemoryPlace> locate(const ByteRange& range) = 0;
};

/// The ordinal of a location of that vendor; -1: it is none.
int ordinalOf(const std::string& location, const std::string& vendor);

template <Resource kKind>
void Owned<kKind>::reset() {
    if (device_ && value_ != 0) device_->release(kKind, value_);
    value_ = 0;
    device_.reset();
}

}  // namespace troupe::device
