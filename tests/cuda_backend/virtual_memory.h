#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cuda_backend/driver.h"

namespace troupe::cuda::testing {

/// What an allocator with expandable segments makes: a reservation with pieces of 2 MiB in it, of which some may be
/// missing. Plays the application.
class VirtualMemory {
  public:
    static constexpr std::uint64_t kPiece = 2u << 20;

    VirtualMemory(const CudaDriver& driver, int device, std::size_t pieces, unsigned handle_types)
        : driver_(driver), pieces_(pieces) {
        invoke(calls().memAddressReserve, &base_, std::size_t{bytes()}, std::size_t{0}, api::DevicePtr{0}, 0ull);
        for (std::size_t index = 0; index < pieces; ++index) map(index, device, handle_types);
    }
    ~VirtualMemory() {
        for (std::size_t index = 0; index < pieces_; ++index)
            if (mapped_[index]) unmap(index);
        invoke(calls().memAddressFree, base_, std::size_t{bytes()});
    }
    VirtualMemory(const VirtualMemory&) = delete;
    VirtualMemory& operator=(const VirtualMemory&) = delete;

    std::uint64_t base() const { return base_; }
    std::uint64_t bytes() const { return pieces_ * kPiece; }

    void unmap(std::size_t index) {
        invoke(calls().memUnmap, api::DevicePtr{base_ + index * kPiece}, std::size_t{kPiece});
        mapped_[index] = false;
    }
    void map(std::size_t index, int device, unsigned handle_types) {
        api::AllocationProp properties{};
        properties.type = api::AllocationType::Pinned;
        properties.requested_handle_types = static_cast<api::HandleType>(handle_types);
        properties.location = {api::LocationType::Device, device};
        api::AllocationHandle handle = 0;
        invoke(calls().memCreate, &handle, std::size_t{kPiece}, static_cast<const api::AllocationProp*>(&properties),
               0ull);
        const api::DevicePtr at = base_ + index * kPiece;
        invoke(calls().memMap, at, std::size_t{kPiece}, std::size_t{0}, handle, 0ull);
        const api::AccessDesc access{{api::LocationType::Device, device}, api::AccessFlags::ReadWrite};
        invoke(calls().memSetAccess, at, std::size_t{kPiece}, &access, std::size_t{1});
        invoke(calls().memRelease, handle);
        mapped_[index] = true;
    }

  private:
    const api::Calls& calls() const { return driver_.calls(); }

    const CudaDriver& driver_;
    std::size_t pieces_;
    api::DevicePtr base_ = 0;
    std::vector<bool> mapped_ = std::vector<bool>(pieces_);
};

}  // namespace troupe::cuda::testing
