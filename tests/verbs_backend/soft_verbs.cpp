// SoftVerbs: devices, memory, queues and work.

#include "tests/verbs_backend/soft_verbs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace troupe::verbs::testing {

namespace {

constexpr int kMaxQpWr = 4096;

template <class Map, class Key>
typename Map::mapped_type::element_type* lookUp(Map& map, Key* key) {
    const auto found = map.find(key);
    return found == map.end() ? nullptr : found->second.get();
}

}  // namespace

SoftVerbs::SoftVerbs(const std::vector<std::string>& devices) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
        auto hardware = std::make_unique<Hardware>();
        hardware->name = devices[i];
        hardware->address = *SocketAddress::fromNumeric("10.9.0." + std::to_string(i + 1), 0);
        const std::string number = std::to_string(i + 1);
        // A link-local one first, as real ones have it.
        hardware->gids = {gid("fe80::" + number, 0), gid("::ffff:10.9.0." + number, 1)};
        hardware_.push_back(std::move(hardware));
    }
}

SoftVerbs::~SoftVerbs() = default;

ibv_gid_entry SoftVerbs::gid(const std::string& address, std::uint32_t index, ibv_gid_type type) {
    ibv_gid_entry entry{};
    if (::inet_pton(AF_INET6, address.c_str(), entry.gid.raw) != 1) ADD_FAILURE() << address;
    entry.gid_index = index;
    entry.port_num = 1;
    entry.gid_type = static_cast<std::uint32_t>(type);
    return entry;
}

SoftVerbs::Hardware* SoftVerbs::find(const std::string& device) const {
    for (const auto& hardware : hardware_)
        if (hardware->name == device) return hardware.get();
    ADD_FAILURE() << "no device " << device;
    return hardware_.front().get();
}

void SoftVerbs::setGids(const std::string& device, std::vector<ibv_gid_entry> gids) {
    const std::lock_guard lock(mutex_);
    find(device)->gids = std::move(gids);
}

void SoftVerbs::setMtu(const std::string& device, ibv_mtu mtu) {
    const std::lock_guard lock(mutex_);
    find(device)->mtu = mtu;
}

void SoftVerbs::setLid(const std::string& device, std::uint16_t lid) {
    const std::lock_guard lock(mutex_);
    find(device)->lid = lid;
}

void SoftVerbs::cutRoute(const std::string& device, std::uint32_t gid_index) {
    const std::lock_guard lock(mutex_);
    find(device)->cut.push_back(gid_index);
}

std::size_t SoftVerbs::pairsOn(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(pairs_.begin(), pairs_.end(), [&](const auto& entry) {
        return static_cast<const Context*>(entry.second->context)->hardware->name == device;
    }));
}

ibv_qp_attr SoftVerbs::lastRoute(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return find(device)->last_route;
}

std::vector<int> SoftVerbs::dmabufs() const {
    const std::lock_guard lock(mutex_);
    return dmabufs_;
}

void SoftVerbs::fail(const std::string& call, int error, int count, int skip) {
    const std::lock_guard lock(mutex_);
    faults_[call] = {error, count, skip};
}

int SoftVerbs::fault(const char* call) {
    const auto found = faults_.find(call);
    if (found == faults_.end()) return 0;
    if (found->second.skip > 0) {
        --found->second.skip;
        return 0;
    }
    const int error = found->second.error;
    if (--found->second.count <= 0) faults_.erase(found);
    errno = error;
    return error;
}

void SoftVerbs::hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    if (held) return;
    for (auto& [key, pair] : pairs_) execute(*pair);
}

void SoftVerbs::loseCompletions(int count) {
    const std::lock_guard lock(mutex_);
    lose_ = count;
}

void SoftVerbs::repeatCompletions(int count) {
    const std::lock_guard lock(mutex_);
    repeat_ = count;
}

void SoftVerbs::setReads(const std::string& device, int reads) {
    const std::lock_guard lock(mutex_);
    for (auto& hardware : hardware_)
        if (hardware->name == device) hardware->reads = reads;
}

void SoftVerbs::setPort(const std::string& device, bool up) {
    const std::lock_guard lock(mutex_);
    for (auto& hardware : hardware_)
        if (hardware->name == device) hardware->up = up;
    for (auto& [key, context] : contexts_) {
        if (context->hardware->name != device) continue;
        AsyncEvent event;
        event.type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
        event.port = 1;
        event.name = up ? "port active" : "port error";
        context->events.push_back(event);
        ring(context->async_fd);
    }
}

std::vector<std::string> SoftVerbs::violations() const {
    const std::lock_guard lock(mutex_);
    return violations_;
}

std::size_t SoftVerbs::count(const std::string& kind) const {
    const std::lock_guard lock(mutex_);
    if (kind == "context") return contexts_.size();
    if (kind == "pd") return pds_.size();
    if (kind == "mr") return registrations_.size();
    if (kind == "channel") return channels_.size();
    if (kind == "cq") return queues_.size();
    if (kind == "qp") return pairs_.size();
    if (kind == "id") return ids_.size();
    return event_channels_.size();
}

std::string SoftVerbs::leftovers() const {
    std::string text;
    for (const char* kind : {"context", "pd", "mr", "channel", "cq", "qp", "id", "event channel"})
        if (const auto left = count(kind); left != 0) text += std::to_string(left) + " " + kind + ", ";
    return text;
}

void SoftVerbs::ring(int fd) {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(fd, &one, sizeof one));
}

// --- devices ---------------------------------------------------------------------------------------------------------

int SoftVerbs::openDevices(const std::function<bool(const std::string&)>& wanted, std::vector<Opened>& devices) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("openDevices")) return error;
    for (auto& hardware : hardware_) {
        if (!wanted(hardware->name)) continue;
        Opened opened;
        opened.name = hardware->name;
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
    for (const auto& [key, pd] : pds_)
        if (pd->context == context) violate("closeDevice with a protection domain");
    contexts_.erase(context);
    return 0;
}

int SoftVerbs::queryDevice(ibv_context* context, ibv_device_attr& attributes) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("queryDevice")) return error;
    attributes = {};
    attributes.phys_port_cnt = 1;
    attributes.max_cqe = 1 << 20;
    attributes.max_qp = 10000;
    attributes.max_qp_wr = kMaxQpWr;
    attributes.max_sge = 4;
    attributes.max_mr = 100000;
    attributes.max_mr_size = std::uint64_t{1} << 40;
    attributes.max_qp_rd_atom = static_cast<Context*>(context)->hardware->reads;
    attributes.max_qp_init_rd_atom = attributes.max_qp_rd_atom;
    return 0;
}

int SoftVerbs::queryPort(ibv_context* context, std::uint8_t, ibv_port_attr& attributes) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("queryPort")) return error;
    attributes = {};
    const Hardware& hardware = *lookUp(contexts_, context)->hardware;
    attributes.state = hardware.up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
    attributes.active_mtu = hardware.mtu;
    attributes.lid = hardware.lid;
    attributes.link_layer = hardware.lid != 0 ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
    attributes.max_msg_sz = 1u << 30;
    return 0;
}

int SoftVerbs::queryGids(ibv_context* context, std::vector<ibv_gid_entry>& gids) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("queryGids")) return error;
    gids = lookUp(contexts_, context)->hardware->gids;
    return 0;
}

bool SoftVerbs::nextAsyncEvent(ibv_context* context, AsyncEvent& event) {
    const std::lock_guard lock(mutex_);
    Context* known = lookUp(contexts_, context);
    if (known == nullptr || known->events.empty()) return false;
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
    for (const auto& [key, mr] : registrations_)
        if (mr->pd == pd) return violate("deallocPd with a registration"), EBUSY;
    for (const auto& [key, qp] : pairs_)
        if (qp->pd == pd) return violate("deallocPd with a queue pair"), EBUSY;
    if (pds_.erase(pd) == 0) violate("deallocPd twice");
    return 0;
}

ibv_mr* SoftVerbs::regMr(ibv_pd* pd, void* addr, std::size_t length, int access) {
    const std::lock_guard lock(mutex_);
    if (fault("regMr") != 0) return nullptr;
    // IBTA 10.6.3.1: remote write needs local write.
    if ((access & IBV_ACCESS_REMOTE_WRITE) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) {
        errno = EINVAL;
        return nullptr;
    }
    return add(pd, reinterpret_cast<std::uint64_t>(addr), length, access);
}

ibv_mr* SoftVerbs::regDmabufMr(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                               int access) {
    const std::lock_guard lock(mutex_);
    if (fault("regDmabufMr") != 0) return nullptr;
    // The kernel maps whole pages of the buffer, so both must lie alike in theirs; and the descriptor must be one.
    if (offset % 4096 != iova % 4096 || ::fcntl(fd, F_GETFD) < 0) {
        violate("regDmabufMr with an offset that does not fit the address, or a closed descriptor");
        errno = EINVAL;
        return nullptr;
    }
    dmabufs_.push_back(fd);
    return add(pd, iova, length, access);
}

ibv_mr* SoftVerbs::add(ibv_pd* pd, std::uint64_t addr, std::size_t length, int access) {
    auto mr = std::make_unique<Registration>();
    mr->context = pd->context;
    mr->pd = pd;
    mr->addr = reinterpret_cast<void*>(addr);
    mr->length = length;
    mr->lkey = next_key_++;
    mr->rkey = next_key_++;
    mr->access = access;
    ibv_mr* const made = mr.get();
    registrations_[made] = std::move(mr);
    return made;
}

int SoftVerbs::deregMr(ibv_mr* mr) {
    const std::lock_guard lock(mutex_);
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

// --- queues ----------------------------------------------------------------------------------------------------------

ibv_comp_channel* SoftVerbs::createChannel(ibv_context* context) {
    const std::lock_guard lock(mutex_);
    if (fault("createChannel") != 0) return nullptr;
    auto channel = std::make_unique<Channel>();
    channel->context = context;
    channel->owned = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    channel->fd = channel->owned.get();
    ibv_comp_channel* const made = channel.get();
    channels_[made] = std::move(channel);
    return made;
}

int SoftVerbs::destroyChannel(ibv_comp_channel* channel) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, cq] : queues_)
        if (cq->channel == channel) return violate("destroyChannel with a completion queue"), EBUSY;
    channels_.erase(channel);
    return 0;
}

ibv_cq* SoftVerbs::createCq(ibv_context* context, int entries, ibv_comp_channel* channel) {
    const std::lock_guard lock(mutex_);
    if (fault("createCq") != 0) return nullptr;
    auto cq = std::make_unique<Queue>();
    cq->context = context;
    cq->channel = channel;
    cq->cqe = entries;
    ibv_cq* const made = cq.get();
    queues_[made] = std::move(cq);
    return made;
}

int SoftVerbs::destroyCq(ibv_cq* cq) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, qp] : pairs_)
        if (qp->send_cq == cq) return violate("destroyCq with a queue pair"), EBUSY;
    queues_.erase(cq);
    return 0;
}

int SoftVerbs::requestNotify(ibv_cq* cq) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("requestNotify")) return error;
    lookUp(queues_, cq)->armed = true;
    return 0;
}

unsigned SoftVerbs::drainChannel(ibv_comp_channel* channel) {
    const std::lock_guard lock(mutex_);
    Channel& known = *lookUp(channels_, channel);
    std::uint64_t count = 0;
    static_cast<void>(!::read(known.fd, &count, sizeof count));
    return std::exchange(known.events, 0);
}

int SoftVerbs::pollCq(ibv_cq* cq, std::span<ibv_wc> completions) {
    const std::lock_guard lock(mutex_);
    Queue& queue = *lookUp(queues_, cq);
    int taken = 0;
    while (!queue.completions.empty() && static_cast<std::size_t>(taken) < completions.size()) {
        const ibv_wc& done = completions[static_cast<std::size_t>(taken++)] = queue.completions.front();
        queue.completions.pop_front();
        // The send queue's room comes back with the completion, for all before it, too.
        for (auto& [key, pair] : pairs_) {
            if (pair->qp_num != done.qp_num) continue;
            const auto at = std::find(pair->occupied.begin(), pair->occupied.end(), done.wr_id);
            if (at != pair->occupied.end()) pair->occupied.erase(pair->occupied.begin(), at + 1);
        }
    }
    return taken;
}

ibv_qp* SoftVerbs::createQp(ibv_pd* pd, ibv_qp_init_attr& attributes) {
    const std::lock_guard lock(mutex_);
    if (fault("createQp") != 0) return nullptr;
    if (attributes.cap.max_send_wr > kMaxQpWr || attributes.cap.max_inline_data > 512) {
        errno = EINVAL;
        return nullptr;
    }
    auto qp = std::make_unique<Pair>();
    qp->context = pd->context;
    qp->pd = pd;
    qp->send_cq = attributes.send_cq;
    qp->recv_cq = attributes.recv_cq;
    qp->qp_num = next_qp_++;
    qp->state = IBV_QPS_RESET;
    qp->cap = attributes.cap;
    ibv_qp* const made = qp.get();
    pairs_[made] = std::move(qp);
    return made;
}

int SoftVerbs::modifyQp(ibv_qp* qp, ibv_qp_attr& attributes, int mask) {
    const std::lock_guard lock(mutex_);
    Pair* pair = lookUp(pairs_, qp);
    if (pair == nullptr) return violate("modifyQp of a destroyed queue pair"), EINVAL;
    const bool to_error = attributes.qp_state == IBV_QPS_ERR;
    if (const int error = fault(to_error ? "modifyQpToError" : "modifyQp")) return error;
    if (to_error) return toError(*pair), 0;
    const bool legal = (pair->state == IBV_QPS_RESET && attributes.qp_state == IBV_QPS_INIT) ||
                       (pair->state == IBV_QPS_INIT && attributes.qp_state == IBV_QPS_RTR) ||
                       (pair->state == IBV_QPS_RTR && attributes.qp_state == IBV_QPS_RTS);
    if (!legal) return violate("an illegal transition of a queue pair"), EINVAL;
    // InfiniBand specification, table 91: what each transition needs.
    const int needed =
        IBV_QP_STATE |
        (attributes.qp_state == IBV_QPS_INIT ? IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
         : attributes.qp_state == IBV_QPS_RTR
             ? IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                   IBV_QP_MIN_RNR_TIMER
             : IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (mask != needed) return violate("a transition with other attributes than it takes"), EINVAL;
    if (attributes.qp_state == IBV_QPS_INIT) {
        // Two P_Keys and one port.
        if (attributes.pkey_index > 1 || attributes.port_num != 1) return EINVAL;
        pair->access = static_cast<int>(attributes.qp_access_flags);
    } else if (attributes.qp_state == IBV_QPS_RTR) {
        if (const int error = checkRoute(*pair, attributes)) return error;
        static_cast<Context*>(pair->context)->hardware->last_route = attributes;
        pair->remote = attributes.dest_qp_num;
        pair->mtu = attributes.path_mtu;
        pair->takes_from = attributes.rq_psn;
    } else {
        pair->sends_from = attributes.sq_psn;
    }
    pair->state = attributes.qp_state;
    return 0;
}

/// What the kernel finds when it looks for a way, and what a device refuses.
int SoftVerbs::checkRoute(const Pair& pair, const ibv_qp_attr& attributes) {
    const Hardware& own = *static_cast<const Context*>(pair.context)->hardware;
    if (attributes.path_mtu > own.mtu) return EINVAL;
    if (attributes.max_dest_rd_atomic > own.reads || attributes.rq_psn > 0xffffff) return EINVAL;
    const ibv_ah_attr& way = attributes.ah_attr;
    if (way.port_num != 1) return violate("a way through another port"), EINVAL;
    if (own.lid != 0)
        return std::any_of(hardware_.begin(), hardware_.end(),
                           [&](const auto& hardware) { return hardware->lid != 0 && hardware->lid == way.dlid; })
                   ? 0
                   : EINVAL;
    if (way.is_global == 0) return EINVAL;
    const auto source = std::find_if(own.gids.begin(), own.gids.end(),
                                     [&](const auto& entry) { return entry.gid_index == way.grh.sgid_index; });
    if (source == own.gids.end()) return EINVAL;
    if (std::find(own.cut.begin(), own.cut.end(), source->gid_index) != own.cut.end()) return ETIMEDOUT;
    for (const auto& hardware : hardware_)
        for (const ibv_gid_entry& entry : hardware->gids)
            if (std::memcmp(entry.gid.raw, way.grh.dgid.raw, sizeof entry.gid.raw) == 0 &&
                entry.gid_type == source->gid_type)
                return 0;
    return ETIMEDOUT;
}

int SoftVerbs::queryQp(ibv_qp* qp, ibv_qp_attr& attributes, int) {
    const std::lock_guard lock(mutex_);
    const Pair* pair = lookUp(pairs_, qp);
    if (pair == nullptr) return violate("queryQp of a destroyed queue pair"), EINVAL;
    if (const int error = fault("queryQp")) return error;
    attributes.qp_state = pair->state;
    attributes.rq_psn = (pair->takes_from + pair->taken) & 0xffffff;
    return 0;
}

int SoftVerbs::destroyQp(ibv_qp* qp) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("destroyQp")) return error;
    if (pairs_.erase(qp) == 0) violate("destroyQp twice");
    return 0;
}

// --- work ------------------------------------------------------------------------------------------------------------

int SoftVerbs::postSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** first_bad) {
    const std::lock_guard lock(mutex_);
    Pair* pair = lookUp(pairs_, qp);
    if (pair == nullptr) return violate("postSend to a destroyed queue pair"), *first_bad = list, EINVAL;
    for (ibv_send_wr* wr = list; wr != nullptr; wr = wr->next) {
        int error = fault("postSend");
        std::uint64_t length = 0;
        for (int i = 0; i < wr->num_sge; ++i) length += wr->sg_list[i].length;
        if (pair->state != IBV_QPS_RTS && pair->state != IBV_QPS_ERR) {
            violate("postSend to a queue pair that is not ready");
            error = EINVAL;
        }
        if (pair->occupied.size() >= pair->cap.max_send_wr) {
            violate("postSend to a full send queue");
            error = ENOMEM;
        }
        if (wr->num_sge < 1 || wr->num_sge > static_cast<int>(pair->cap.max_send_sge)) {
            violate("postSend with a number of pieces that the queue pair does not take");
            error = EINVAL;
        }
        if ((wr->send_flags & IBV_SEND_INLINE) != 0 && length > pair->cap.max_inline_data) {
            violate("postSend with more inline data than the queue pair takes");
            error = EINVAL;
        }
        if (error != 0) return *first_bad = wr, execute(*pair), error;
        Work work;
        work.id = wr->wr_id;
        work.opcode = wr->opcode;
        work.signaled = (wr->send_flags & IBV_SEND_SIGNALED) != 0;
        work.remote = wr->wr.rdma.remote_addr;
        work.rkey = wr->wr.rdma.rkey;
        work.pieces.assign(wr->sg_list, wr->sg_list + wr->num_sge);
        pair->waiting.push_back(std::move(work));
        pair->occupied.push_back(wr->wr_id);
    }
    execute(*pair);
    return 0;
}

void SoftVerbs::execute(Pair& pair) {
    while (!pair.waiting.empty() && (!held_ || pair.state == IBV_QPS_ERR)) {
        const Work work = std::move(pair.waiting.front());
        pair.waiting.pop_front();
        if (pair.state == IBV_QPS_ERR) {
            complete(pair, work, IBV_WC_WR_FLUSH_ERR);
            continue;
        }
        const ibv_wc_status status = run(pair, work);
        if (status != IBV_WC_SUCCESS) pair.state = IBV_QPS_ERR;
        if (status != IBV_WC_SUCCESS || work.signaled) complete(pair, work, status);
    }
}

ibv_wc_status SoftVerbs::run(Pair& pair, const Work& work) {
    const auto* own = static_cast<Context*>(pair.context);
    std::uint64_t length = 0;
    for (const ibv_sge& piece : work.pieces) {
        const Registration* mr = registration(piece.lkey, piece.addr, piece.length, pair.pd);
        if (mr == nullptr || (work.opcode == IBV_WR_RDMA_READ && (mr->access & IBV_ACCESS_LOCAL_WRITE) == 0))
            return IBV_WC_LOC_PROT_ERR;
        length += piece.length;
    }
    const auto at = std::find_if(pairs_.begin(), pairs_.end(),
                                 [&](const auto& entry) { return entry.second->qp_num == pair.remote; });
    if (at == pairs_.end()) return IBV_WC_RETRY_EXC_ERR;
    Pair& target = *at->second;
    const auto* there = static_cast<Context*>(target.context);
    if ((target.state != IBV_QPS_RTR && target.state != IBV_QPS_RTS) || !own->hardware->up || !there->hardware->up)
        return IBV_WC_RETRY_EXC_ERR;
    // Packets of another number than the one that is due are dropped.
    if (target.takes_from != pair.sends_from || target.remote != pair.qp_num) return IBV_WC_RETRY_EXC_ERR;
    ++target.taken;
    // A device refuses packets larger than it was told, and is confused by smaller ones.
    if (target.mtu != pair.mtu) violate("a pair whose ends send packets of different sizes");
    const int needed = work.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    const Registration* mr = registration(work.rkey, work.remote, length, target.pd);
    if (mr == nullptr || mr->rkey != work.rkey || (mr->access & needed) == 0 || (target.access & needed) == 0)
        return IBV_WC_REM_ACCESS_ERR;
    auto* remote = reinterpret_cast<std::byte*>(work.remote);
    for (const ibv_sge& piece : work.pieces) {
        auto* local = reinterpret_cast<std::byte*>(piece.addr);
        if (work.opcode == IBV_WR_RDMA_READ)
            std::memcpy(local, remote, piece.length);
        else
            std::memcpy(remote, local, piece.length);
        remote += piece.length;
    }
    return IBV_WC_SUCCESS;
}

void SoftVerbs::complete(Pair& pair, const Work& work, ibv_wc_status status) {
    if (lose_ > 0) {
        --lose_;
        return;
    }
    Queue& queue = *lookUp(queues_, pair.send_cq);
    ibv_wc done{};
    done.wr_id = work.id;
    done.status = status;
    done.qp_num = pair.qp_num;
    const int copies = repeat_ > 0 ? 2 : 1;
    repeat_ -= copies - 1;
    for (int i = 0; i < copies; ++i) {
        if (copies == 1 && queue.completions.size() >= static_cast<std::size_t>(queue.cqe))
            return violate("a completion queue overran");
        queue.completions.push_back(done);
    }
    if (!std::exchange(queue.armed, false)) return;
    Channel& channel = *lookUp(channels_, queue.channel);
    ++channel.events;
    ring(channel.fd);
}

void SoftVerbs::toError(Pair& pair) {
    pair.state = IBV_QPS_ERR;
    execute(pair);
}

}  // namespace troupe::verbs::testing
