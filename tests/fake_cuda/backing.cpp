#include "tests/fake_cuda/backing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

namespace troupe::fake_cuda {
namespace {

constexpr std::uint64_t kMagic = 0x3141554443454b41;
constexpr std::uint64_t kPage = 4096;
static_assert(sizeof(SharedPage) <= kPage);

std::uint64_t roundUp(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

std::shared_ptr<Backing> Backing::create(std::uint64_t bytes, const cuda::api::Uuid& uuid, std::uint64_t serial,
                                         unsigned handle_types) {
    std::shared_ptr<Backing> backing(new Backing);
    backing->fd_ = ::memfd_create("fake-cuda", MFD_CLOEXEC);
    backing->mapped_ = roundUp(bytes) + kPage;
    if (backing->fd_ < 0 || ::ftruncate(backing->fd_, static_cast<off_t>(backing->mapped_)) != 0) return nullptr;
    void* mapped = ::mmap(nullptr, backing->mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, backing->fd_, 0);
    if (mapped == MAP_FAILED) return nullptr;
    backing->data_ = static_cast<std::uint8_t*>(mapped);
    backing->page_ = new (backing->data_ + backing->mapped_ - kPage) SharedPage{};
    backing->page_->magic = kMagic;
    backing->page_->bytes = bytes;
    backing->page_->serial = serial;
    backing->page_->uuid = uuid;
    backing->page_->handle_types = handle_types;
    return backing;
}

std::shared_ptr<Backing> Backing::open(int fd) {
    std::shared_ptr<Backing> backing(new Backing);
    backing->fd_ = fd;
    struct stat about {};
    if (::fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size < static_cast<off_t>(2 * kPage) ||
        about.st_size % static_cast<off_t>(kPage) != 0)
        return nullptr;
    backing->mapped_ = static_cast<std::uint64_t>(about.st_size);
    void* mapped = ::mmap(nullptr, backing->mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) return nullptr;
    backing->data_ = static_cast<std::uint8_t*>(mapped);
    backing->page_ = reinterpret_cast<SharedPage*>(backing->data_ + backing->mapped_ - kPage);
    const bool is_ours = backing->page_->magic == kMagic && roundUp(backing->page_->bytes) + kPage == backing->mapped_;
    return is_ours ? backing : nullptr;
}

Backing::~Backing() {
    if (data_ != nullptr) ::munmap(data_, mapped_);
    if (fd_ >= 0) ::close(fd_);
}

bool Backing::addImporter(int process) {
    for (auto& place : page_->importers) {
        std::int32_t free = 0;
        if (place.compare_exchange_strong(free, process)) return true;
    }
    return false;
}

void Backing::removeImporter(int process) {
    for (auto& place : page_->importers) {
        std::int32_t mine = process;
        if (place.compare_exchange_strong(mine, 0)) return;
    }
}

int Backing::importer() const {
    for (const auto& place : page_->importers) {
        const std::int32_t process = place.load();
        if (process != 0 && process != ::getpid() && factsOf(process).runs) return process;
    }
    return 0;
}

ProcessFacts factsOf(int process) {
    const std::string path = "/proc/" + std::to_string(process) + "/stat";
    std::FILE* file = std::fopen(path.c_str(), "re");
    if (file == nullptr) return {};
    char text[1024] = {};
    const std::size_t read = std::fread(text, 1, sizeof text - 1, file);
    std::fclose(file);
    // The name in parentheses may hold anything; the state is the first field after it, the start the 20th.
    const char* at = read > 0 ? std::strrchr(text, ')') : nullptr;
    if (at == nullptr || at[1] == 0) return {};
    ProcessFacts facts;
    facts.runs = at[2] != 'Z' && at[2] != 'X';
    for (int field = 2; at != nullptr && field < 22; ++field) at = std::strchr(at + 1, ' ');
    if (at != nullptr) facts.started = std::strtoull(at + 1, nullptr, 10);
    return facts;
}

}  // namespace troupe::fake_cuda
