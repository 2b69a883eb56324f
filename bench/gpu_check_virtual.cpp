// troupe_gpu_check: virtual memory, as an allocator with expandable segments makes it: several allocations in one range
// of addresses.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu_check.h"

namespace troupe::cuda::check {

namespace {

void mustDo(const CudaDriver& driver, const Outcome& outcome) { must(driver.toStatus(outcome)); }

/// Allocations one behind the other, that may be given to other processes by descriptors. Plays the application.
class Expandable {
  public:
    Expandable(const CudaDriver& driver, int device, std::size_t pieces) : driver_(driver) {
        const api::Calls& calls = driver.calls();
        api::AllocationProp properties{};
        properties.type = api::AllocationType::Pinned;
        properties.requested_handle_types = api::HandleType::PosixFileDescriptor;
        properties.location = {api::LocationType::Device, device};
        const auto* const wanted = static_cast<const api::AllocationProp*>(&properties);
        mustDo(driver, invoke(calls.memGetAllocationGranularity, &piece_, wanted, api::Granularity::Minimum));
        const std::size_t all = pieces * piece_;
        mustDo(driver, invoke(calls.memAddressReserve, &base_, all, std::size_t{0}, api::DevicePtr{0}, 0ull));
        reserved_ = all;
        const api::AccessDesc access{properties.location, api::AccessFlags::ReadWrite};
        for (std::size_t piece = 0; piece < pieces; ++piece) {
            api::AllocationHandle handle = 0;
            mustDo(driver, invoke(calls.memCreate, &handle, piece_, wanted, 0ull));
            const Outcome mapped =
                invoke(calls.memMap, api::DevicePtr{base_ + mapped_}, piece_, std::size_t{0}, handle, 0ull);
            invoke(calls.memRelease, handle);
            mustDo(driver, mapped);
            mapped_ += piece_;
        }
        mustDo(driver, invoke(calls.memSetAccess, base_, mapped_, &access, std::size_t{1}));
    }
    ~Expandable() {
        const api::Calls& calls = driver_.calls();
        for (std::size_t at = 0; at < mapped_; at += piece_) invoke(calls.memUnmap, api::DevicePtr{base_ + at}, piece_);
        if (reserved_ != 0) invoke(calls.memAddressFree, base_, reserved_);
    }
    Expandable(const Expandable&) = delete;
    Expandable& operator=(const Expandable&) = delete;

    std::uint64_t addr() const { return base_; }
    std::uint64_t bytes() const { return mapped_; }
    std::uint64_t pieceBytes() const { return piece_; }

  private:
    const CudaDriver& driver_;
    api::DevicePtr base_ = 0;
    std::size_t piece_ = 0;
    std::size_t reserved_ = 0;
    std::size_t mapped_ = 0;
};

}  // namespace

void Bench::virtualMemory(nlohmann::json& report) {
    const Expandable memory(runtime_->driver(), arguments_.device, 3);
    const std::uint64_t piece = memory.pieceBytes();
    // Over both borders, and at no end.
    const ByteRange range{memory.addr() + 4096, memory.bytes() - 8192};
    const MemoryPlace place = must(runtime_->locate(range));
    fact(report, Fact::ReliedOn, "virtual memory is found piece by piece", [&] {
        const bool is = place.pieces.size() == 3 && place.pieces[1].range == ByteRange{memory.addr() + piece, piece} &&
                        std::all_of(place.pieces.begin(), place.pieces.end(),
                                    [&](const MemoryPiece& each) { return each.is_virtual; });
        return is ? Status() : Status(Code::Internal, fmt::format("{} pieces", place.pieces.size()));
    });
    fact(report, Fact::DoneWithout, "dma-buf of a piece", [&] {
        return gpu_->exportDmabuf({memory.addr(), piece}).status();
    });
    fact(report, Fact::DoneWithout, "dma-buf over the border of two",
         [&] { return gpu_->exportDmabuf(range).status(); });
    const auto pattern = noise(range.length, 31);
    put(range.addr, pattern);
    must(get(range.addr, range.length) == pattern, "what was staged into virtual memory differs");
    // As another process does it, which a driver also allows the one that made them.
    std::vector<SharedMemory> shared;
    fact(report, Fact::DoneWithout, "virtual memory is exported by descriptors", [&] {
        auto exported = gpu_->exportMemory(place, false);
        if (exported) shared = std::move(*exported);
        return exported.status();
    });
    for (std::size_t index = 0; index < shared.size(); ++index) {
        const ImportedMemory mapped = must(gpu_->importMemory(shared[index]));
        const ByteRange& part = place.pieces[index].range;
        const auto begin = pattern.begin() + static_cast<std::ptrdiff_t>(part.addr - range.addr);
        must(get(mapped.get() + (part.addr - shared[index].allocation.addr), part.length) ==
                 std::vector<std::uint8_t>(begin, begin + static_cast<std::ptrdiff_t>(part.length)),
             "what is mapped by a descriptor differs");
    }
    engineWithVirtual(report, range);
}

/// What NICs write: which of the three a GPU is, and that the driver's call works where it is needed.
void Bench::nicWrites(nlohmann::json& report) {
    fact(report, Fact::DoneWithout, "what NICs write is ordered by the GPU", [&] {
        switch (gpu_->info().nic_writes) {
            case NicWrites::Ordered: return Status();
            case NicWrites::Flushed: return Status(Code::Unsupported, "it has to be flushed");
            case NicWrites::Unseen: break;
        }
        return Status(Code::Unsupported, "and it cannot be flushed");
    });
    if (gpu_->info().nic_writes != NicWrites::Flushed) return;
    must(gpu_->flushNicWrites());
    constexpr int kCalls = 1000;
    const TimePoint start = Clock::now();
    for (int call = 0; call < kCalls; ++call) must(gpu_->flushNicWrites());
    const double each = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kCalls;
    fmt::print("  {:<44} {:>9.2f} us\n", "a flush", each);
    report.push_back({{"name", "a flush"}, {"us", each}});
}

}  // namespace troupe::cuda::check
