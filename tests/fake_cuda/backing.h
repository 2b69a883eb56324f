#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "cuda_backend/driver_api.h"

namespace troupe::fake_cuda {

/// The last page of a Backing's file, seen by every process that has it.
struct SharedPage {
    std::uint64_t magic;
    std::uint64_t bytes;   ///< Of the memory.
    std::uint64_t serial;  ///< Unique among the allocations of a process.
    cuda::api::Uuid uuid;  ///< Of the GPU.
    unsigned handle_types;
    std::atomic<std::uint32_t> freed;                     ///< The exporter gave it up.
    std::array<std::atomic<std::int32_t>, 32> importers;  ///< Processes that map it; 0: a free place.
};

/// Memory of a GPU: a memory file, mapped where nobody but the fake looks.
class Backing {
  public:
    static std::shared_ptr<Backing> create(std::uint64_t bytes, const cuda::api::Uuid& uuid, std::uint64_t serial,
                                           unsigned handle_types);
    /// Takes the descriptor. Null: it is no such file.
    static std::shared_ptr<Backing> open(int fd);
    ~Backing();
    Backing(const Backing&) = delete;
    Backing& operator=(const Backing&) = delete;

    std::uint8_t* data() const { return data_; }
    std::uint64_t bytes() const { return page_->bytes; }
    SharedPage& page() const { return *page_; }
    int fd() const { return fd_; }

    /// False: no place is free.
    bool addImporter(int process);
    void removeImporter(int process);
    /// A process that maps it, is another one, and lives; 0: none.
    int importer() const;

  private:
    Backing() = default;
    int fd_ = -1;
    std::uint8_t* data_ = nullptr;
    std::uint64_t mapped_ = 0;
    SharedPage* page_ = nullptr;
};

struct ProcessFacts {
    bool runs = false;          ///< It is there, and has not ended.
    std::uint64_t started = 0;  ///< Clock ticks since the boot: with the number, who it is.
};
ProcessFacts factsOf(int process);

}  // namespace troupe::fake_cuda
