#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"
#include "topology/location.h"

namespace troupe {

/// A stretch of a memory file that is mapped shared and writable. Movable; unmaps at its end.
class FileMapping {
  public:
    FileMapping() = default;
    FileMapping(FileMapping&& other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    FileMapping& operator=(FileMapping&& other) noexcept;
    FileMapping(const FileMapping&) = delete;
    FileMapping& operator=(const FileMapping&) = delete;
    ~FileMapping();

    /// Maps the first `bytes` of a file that another process made, rounded up to its pages.
    ///
    /// Refused unless a later access can never fault for want of a file behind it: the descriptor must be a memory
    /// file sealed against shrinking (then its size, looked at after that, is a promise) and at least so long.
    /// ProtocolError says which of these it is not; ResourceExhausted: no address space.
    static Result<FileMapping> ofForeign(const UniqueFd& file, std::uint64_t bytes);

    std::byte* data() const { return data_; }
    std::uint64_t size() const { return bytes_; }

  private:
    friend class MemoryFile;
    static Result<FileMapping> map(int file, std::uint64_t bytes);

    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
};

/// Memory that the engine allocates: a memfd, sealed at its size and mapped, so that a process of the same host can be
/// given a descriptor of it. It has no name in any file system: nothing is left when the last holder is gone.
///
/// A child made by fork() does not have the mapping (MADV_DONTFORK): being shared, it would be no copy there.
class MemoryFile {
  public:
    /// `bytes` > 0, rounded up to whole pages, which exist when it returns. `huge_pages`: from the pool of 2 MiB pages.
    /// `where` cpu or segments: taken from those nodes as long as they have room, by whole pages. ResourceExhausted
    /// names the size and the remedy; Unsupported: no memfd on this system.
    static Result<std::unique_ptr<MemoryFile>> create(std::uint64_t bytes, bool huge_pages, const Location& where = {});

    /// Gives the memory back, however much there is, but keeps its addresses: what is left to do is quick. Nobody may
    /// touch them any more.
    void vacate();

    std::byte* data() const { return mapping_.data(); }
    std::uint64_t size() const { return mapping_.size(); }
    int fd() const { return file_.get(); }

  private:
    MemoryFile() = default;
    UniqueFd file_;
    FileMapping mapping_;
};

}  // namespace troupe
