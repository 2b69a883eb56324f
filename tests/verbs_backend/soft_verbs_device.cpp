// SoftVerbs: devices and memory.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/verbs_backend/soft_verbs.h"

namespace troupe::verbs::testing {

namespace {
constexpr std::uint64_t kPage = 4096;
}

// --- devices ---------------------------------------------------------------------------------------------------------

int SoftVerbs::openDevices(const std::function<bool(const std::string&)>& wanted, std::vector<Opened>& devices) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("openDevices")) return error;
    for (auto& hardware : hardware_) {
        if (!wanted(hardware->name)) continue;
        Opened opened;
        opened.name = hardware->name;
        opened.transport = hardware->transport;
        if (opened.transport != IBV_TRANSPORT_IB) {
            devices.push_back(opened);
            continue;
        }
        opened.error = fault("openDevice");
        if (opened.error == 0) {
            auto context = std::make_unique<Context>();
            context->hardware = hardware.get();
            context->events_fd = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
            context->async_fd = context->events_fd.get();
            opened.context = context.get();
            contexts_[opened.context] = std::move(context);
        }
        devices.push_back(opened);
    }
    return 0;
}

int SoftVerbs::closeDevice(ibv_context* context) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("closeDevice")) return error;
    for (const auto& [key, pd] : pds_)
        if (pd->context == context) violate("closeDevice with a protection domain");
    contexts_.erase(context);
    return 0;
}

int SoftVerbs::queryDevice(ibv_context* context, ibv_device_attr& attributes) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("queryDevice")) return error;
    attributes = {};
    const Hardware& hardware = *static_cast<Context*>(context)->hardware;
    attributes.phys_port_cnt = static_cast<std::uint8_t>(hardware.ports.size());
    attributes.max_cqe = 1 << 20;
    attributes.max_qp = 10000;
    attributes.max_qp_wr = kMaxQpWr;
    attributes.max_sge = kMaxSge;
    attributes.max_mr = 100000;
    attributes.max_mr_size = hardware.max_mr_size;
    attributes.max_qp_rd_atom = hardware.reads;
    attributes.max_qp_init_rd_atom = attributes.max_qp_rd_atom;
    return 0;
}

int SoftVerbs::queryPort(ibv_context* context, std::uint8_t port, ibv_port_attr& attributes) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("queryPort")) return error;
    Hardware& hardware = *lookUp(contexts_, context)->hardware;
    if (hardware.dead) return EIO;
    if (port < 1 || port > hardware.ports.size()) return violate("queryPort of a port that is not there"), EINVAL;
    attributes = {};
    bool up = hardware.at(port).up;
    if (int& stale = hardware.at(port).stale_answers; stale > 0) {
        --stale;
        up = !up;
    }
    attributes.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attributes.active_mtu = hardware.mtu;
    attributes.lid = hardware.at(port).lid;
    attributes.link_layer = attributes.lid != 0 ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
    attributes.max_msg_sz = 1u << 30;
    attributes.flags = hardware.needs_grh ? IBV_QPF_GRH_REQUIRED : 0;
    return 0;
}

int SoftVerbs::queryGids(ibv_context* context, std::vector<ibv_gid_entry>& gids) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("queryGids")) return error;
    if (isDead(context)) return EIO;
    gids = lookUp(contexts_, context)->hardware->gids;
    return 0;
}

int SoftVerbs::queryPkey(ibv_context* context, std::uint8_t port, int index, std::uint16_t& pkey) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("queryPkey")) return error;
    if (isDead(context)) return EIO;
    if (index < 0 || index > 1) return EINVAL;
    pkey = lookUp(contexts_, context)->hardware->at(port).pkeys[index];
    return 0;
}

bool SoftVerbs::nextAsyncEvent(ibv_context* context, AsyncEvent& event) {
    const std::lock_guard lock(mutex_);
    Context* known = lookUp(contexts_, context);
    if (known == nullptr) return false;
    ++known->hardware->events_asked;
    if (known->events.empty()) return false;
    event = known->events.front();
    known->events.pop_front();
    std::uint64_t count = 0;
    if (known->events.empty()) static_cast<void>(!::read(known->async_fd, &count, sizeof count));
    return true;
}

// --- memory ----------------------------------------------------------------------------------------------------------

ibv_pd* SoftVerbs::allocPd(ibv_context* context) {
    const std::lock_guard lock(mutex_);
    if (fault("allocPd") != 0) return nullptr;
    auto pd = std::make_unique<ibv_pd>();
    pd->context = context;
    ibv_pd* const made = pd.get();
    pds_[made] = std::move(pd);
    return made;
}

int SoftVerbs::deallocPd(ibv_pd* pd) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("deallocPd")) return error;
    for (const auto& [key, mr] : registrations_)
        if (mr->pd == pd) return violate("deallocPd with a registration"), EBUSY;
    for (const auto& [key, qp] : pairs_)
        if (qp->pd == pd) return violate("deallocPd with a queue pair"), EBUSY;
    if (pds_.erase(pd) == 0) violate("deallocPd twice");
    return 0;
}

int SoftVerbs::checkRegistration(const ibv_pd* pd, std::uint64_t length, int access) const {
    if (isDead(pd->context)) return EIO;
    if (length == 0 || length > static_cast<const Context*>(pd->context)->hardware->max_mr_size) return EINVAL;
    // IBTA 10.6.3.1: remote write needs local write.
    return (access & IBV_ACCESS_REMOTE_WRITE) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0 ? EINVAL : 0;
}

ibv_mr* SoftVerbs::regMr(ibv_pd* pd, void* addr, std::size_t length, int access) {
    const std::lock_guard lock(mutex_);
    if (fault("regMr") != 0) return nullptr;
    if ((errno = checkRegistration(pd, length, access)) != 0) return nullptr;
    const ByteRange range{reinterpret_cast<std::uint64_t>(addr), length};
    if (unseen_ || isReadable(range)) return add(pd, range.addr, length, access, nullptr);
    // The kernel asks such drivers for what it cannot pin by itself.
    DeviceBytes lent;
    if (peer_memory_) lent = peer_memory_(range);
    if (lent.file) return add(pd, range.addr, length, access, &lent);
    errno = EFAULT;
    return nullptr;
}

ibv_mr* SoftVerbs::regDmabufMr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                               int access) {
    const std::lock_guard lock(mutex_);
    if (fault("regDmabufMr") != 0) return nullptr;
    // The kernel maps whole pages of the buffer, so both must lie alike in theirs; and the descriptor must be one.
    if (offset % kPage != iova % kPage || ::fcntl(fd, F_GETFD) < 0) {
        violate("regDmabufMr with an offset that does not fit the address, or a closed descriptor");
        errno = EINVAL;
        return nullptr;
    }
    if ((errno = checkRegistration(pd, length, access)) != 0) return nullptr;
    // Its size is what a dma-buf tells of itself.
    const off_t size = ::lseek(fd, 0, SEEK_END);
    if (size < 0 || offset + length < offset || offset + length > static_cast<std::uint64_t>(size)) {
        errno = EINVAL;
        return nullptr;
    }
    DeviceBytes behind = dmabuf_exporter_ ? dmabuf_exporter_(fd) : DeviceBytes{UniqueFd(::dup(fd)), 0};
    if (!behind.file) {
        errno = EINVAL;
        return nullptr;
    }
    behind.offset += offset;
    ibv_mr* const made = add(pd, iova, length, access, &behind);
    if (made != nullptr) dmabufs_.push_back(fd);
    return made;
}

ibv_mr* SoftVerbs::add(ibv_pd* pd, std::uint64_t addr, std::size_t length, int access, const DeviceBytes* from) {
    last_access_ = access;
    auto mr = std::make_unique<Registration>();
    mr->context = pd->context;
    mr->pd = pd;
    mr->addr = reinterpret_cast<void*>(addr);
    mr->length = length;
    mr->lkey = next_key_++;
    mr->rkey = next_key_++;
    mr->access = access;
    mr->bytes = reinterpret_cast<std::byte*>(addr);
    if (from != nullptr) {
        const std::uint64_t inside = from->offset % kPage;
        void* const mapped = ::mmap(nullptr, inside + length, PROT_READ | PROT_WRITE, MAP_SHARED, from->file.get(),
                                    static_cast<off_t>(from->offset - inside));
        if (mapped == MAP_FAILED) return nullptr;
        mr->device = from->device;
        mr->mapped = mapped;
        mr->mapped_bytes = inside + length;
        mr->bytes = static_cast<std::byte*>(mapped) + inside;
    }
    ibv_mr* const made = mr.get();
    registrations_[made] = std::move(mr);
    return made;
}

SoftVerbs::Registration::~Registration() {
    if (mapped != nullptr) ::munmap(mapped, mapped_bytes);
}

bool isReadable(const ByteRange& range) {
    // By the kernel, which faults for nobody: one byte of each page.
    constexpr std::size_t kAtOnce = 512;
    std::byte bytes[kAtOnce];
    std::vector<iovec> pages;
    for (std::uint64_t at = range.addr; at < range.end();) {
        pages.clear();
        for (; at < range.end() && pages.size() < kAtOnce; at = (at / kPage + 1) * kPage)
            pages.push_back({reinterpret_cast<void*>(at), 1});
        const iovec into{bytes, pages.size()};
        if (::process_vm_readv(::getpid(), &into, 1, pages.data(), pages.size(), 0) !=
            static_cast<ssize_t>(pages.size()))
            return false;
    }
    return true;
}

int SoftVerbs::deregMr(ibv_mr* mr) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("deregMr")) return error;
    // It is lost with its way.
    std::erase_if(late_, [&](const LateWrite& each) { return each.to == mr; });
    if (registrations_.erase(mr) == 0) violate("deregMr twice");
    return 0;
}

const SoftVerbs::Registration* SoftVerbs::registration(std::uint32_t key, std::uint64_t addr, std::uint64_t length,
                                                       const ibv_pd* pd) const {
    for (const auto& [pointer, mr] : registrations_) {
        const auto start = reinterpret_cast<std::uint64_t>(mr->addr);
        if ((mr->lkey == key || mr->rkey == key) && mr->pd == pd && addr >= start && length <= mr->length &&
            addr - start <= mr->length - length)
            return mr.get();
    }
    return nullptr;
}

}  // namespace troupe::verbs::testing
