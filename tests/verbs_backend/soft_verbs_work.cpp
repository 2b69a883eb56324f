// SoftVerbs: queues and work.

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "tests/verbs_backend/soft_verbs.h"

namespace troupe::verbs::testing {

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
    if (const int error = fault("destroyChannel")) return error;
    for (const auto& [key, cq] : queues_)
        if (cq->channel == channel) return violate("destroyChannel with a completion queue"), EBUSY;
    channels_.erase(channel);
    return 0;
}

ibv_cq* SoftVerbs::createCq(ibv_context* context, int entries, ibv_comp_channel* channel) {
    const std::lock_guard lock(mutex_);
    if (fault("createCq") != 0) return nullptr;
    if (isDead(context)) {
        errno = EIO;
        return nullptr;
    }
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
    if (const int error = fault("destroyCq")) return error;
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
    if (fault("drainChannel") != 0) return 0;
    Channel& known = *lookUp(channels_, channel);
    std::uint64_t count = 0;
    static_cast<void>(!::read(known.fd, &count, sizeof count));
    return std::exchange(known.events, 0);
}

int SoftVerbs::pollCq(ibv_cq* cq, std::span<ibv_wc> completions) {
    const std::lock_guard lock(mutex_);
    Queue& queue = *lookUp(queues_, cq);
    if (queue.poll_fails || fault("pollCq") != 0) return -1;
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
    if (isDead(pd->context)) {
        errno = EIO;
        return nullptr;
    }
    if (lookUp(queues_, attributes.send_cq) == nullptr || lookUp(queues_, attributes.recv_cq) == nullptr)
        violate("createQp with a completion queue that is not there");
    const ibv_qp_cap& cap = attributes.cap;
    if (cap.max_send_wr > kMaxQpWr || cap.max_recv_wr > kMaxQpWr || cap.max_send_sge > kMaxSge ||
        cap.max_recv_sge > kMaxSge || cap.max_inline_data > 512) {
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
    if (const int error = fault(to_error ? "modifyQpToError" : "modifyQp", qp->context)) return error;
    if (isDead(qp->context)) return EIO;
    // From everywhere but there (qp_state_table of Linux).
    if (to_error && pair->state != IBV_QPS_RESET) return toError(*pair), 0;
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
        // Two P_Keys.
        const Hardware& own = *static_cast<const Context*>(pair->context)->hardware;
        if (attributes.pkey_index > 1 || attributes.port_num < 1 || attributes.port_num > own.ports.size())
            return EINVAL;
        pair->port = attributes.port_num;
        pair->pkey_index = attributes.pkey_index;
        pair->pkey = own.at(pair->port).pkeys[attributes.pkey_index];
        pair->access = static_cast<int>(attributes.qp_access_flags);
    } else if (attributes.qp_state == IBV_QPS_RTR) {
        if (const int error = checkRoute(*pair, attributes)) {
            // As the kernel does, which asks the neighbour and waits.
            std::this_thread::sleep_for(search_time_);
            return error;
        }
        Hardware& own = *static_cast<Context*>(pair->context)->hardware;
        own.last_route = attributes;
        pair->way = attributes.ah_attr;
        pair->lid = own.at(pair->port).lid;
        pair->is_global = attributes.ah_attr.is_global != 0;
        const ibv_gid_entry* const source = own.gidAt(pair->port, attributes.ah_attr.grh.sgid_index);
        if (pair->is_global && source != nullptr) pair->gid = *source;
        pair->remote = attributes.dest_qp_num;
        pair->mtu = attributes.path_mtu;
        pair->takes_from = attributes.rq_psn;
        pair->serves = attributes.max_dest_rd_atomic;
    } else {
        if (attributes.max_rd_atomic > static_cast<const Context*>(pair->context)->hardware->reads) return EINVAL;
        pair->reads = attributes.max_rd_atomic;
        pair->sends_from = attributes.sq_psn;
        static_cast<Context*>(pair->context)->hardware->last_ready = attributes;
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
    if (way.port_num != pair.port) return violate("a way through another port"), EINVAL;
    if (own.needs_grh && way.is_global == 0) return EINVAL;
    if (own.at(pair.port).lid != 0) {
        const auto hasLid = [&](const auto& hardware) {
            return std::any_of(hardware->ports.begin(), hardware->ports.end(),
                               [&](const Port& port) { return port.lid != 0 && port.lid == way.dlid; });
        };
        return std::any_of(hardware_.begin(), hardware_.end(), hasLid) ? 0 : EINVAL;
    }
    if (way.is_global == 0) return EINVAL;
    const ibv_gid_entry* const source = own.gidAt(pair.port, way.grh.sgid_index);
    if (source == nullptr) return EINVAL;
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
    if (lookUp(pairs_, qp) == nullptr) return violate("destroyQp twice"), EINVAL;
    if (const int error = fault("destroyQp", qp->context)) return error;
    pairs_.erase(qp);
    return 0;
}

// --- work ------------------------------------------------------------------------------------------------------------

int SoftVerbs::postSend(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** first_bad) {
    const std::lock_guard lock(mutex_);
    ++lists_;
    Pair* pair = lookUp(pairs_, qp);
    if (pair == nullptr) return violate("postSend to a destroyed queue pair"), *first_bad = list, EINVAL;
    for (ibv_send_wr* wr = list; wr != nullptr; wr = wr->next) {
        int error = fault("postSend");
        if (isDead(qp->context)) error = EIO;
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
        Work work;
        work.is_inline = (wr->send_flags & IBV_SEND_INLINE) != 0;
        if (error == 0 && work.is_inline) error = takeAlong(*wr, work.data);
        if (error != 0) return *first_bad = wr, execute(*pair), error;
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

/// The provider's library copies inline data into the work request by itself: from the addresses, whatever their keys
/// stand for.
int SoftVerbs::takeAlong(const ibv_send_wr& work, std::vector<std::byte>& data) {
    for (int i = 0; i < work.num_sge; ++i) {
        const ByteRange piece{work.sg_list[i].addr, work.sg_list[i].length};
        if (work.opcode == IBV_WR_RDMA_READ || !isReadable(piece)) {
            violate("inline data that the processor cannot read, or with a READ");
            return EFAULT;
        }
        const auto* begin = reinterpret_cast<const std::byte*>(piece.addr);
        data.insert(data.end(), begin, begin + piece.length);
    }
    ++inlined_;
    return 0;
}

void SoftVerbs::execute(Pair& pair) {
    if (pair.dead || isDead(pair.context)) return;
    while (!pair.waiting.empty() && (!held_ || pair.state == IBV_QPS_ERR)) {
        const Work work = std::move(pair.waiting.front());
        pair.waiting.pop_front();
        if (pair.state == IBV_QPS_ERR) {
            if (lingers_ && held_ && work.opcode == IBV_WR_RDMA_WRITE) putOnItsWay(pair, work);
            complete(pair, work, IBV_WC_WR_FLUSH_ERR);
            continue;
        }
        const ibv_wc_status status = run(pair, work);
        if (status != IBV_WC_SUCCESS) pair.state = IBV_QPS_ERR;
        if (status != IBV_WC_SUCCESS || work.signaled) complete(pair, work, status);
    }
}

/// What a port's numbers and addresses were when a pair was made ready is in its packets; where the port has others by
/// now, they do not get out, or nobody takes them.
ibv_wc_status SoftVerbs::checkWay(const Pair& pair, const Pair& target) const {
    const auto isStale = [](const Pair& end) {
        const Hardware& hardware = *static_cast<const Context*>(end.context)->hardware;
        const Port& port = hardware.at(end.port);
        const ibv_gid_entry* const now = hardware.gidAt(end.port, end.gid.gid_index);
        return port.lid != end.lid || port.pkeys[end.pkey_index] != end.pkey ||
               (end.is_global &&
                (now == nullptr || std::memcmp(now->gid.raw, end.gid.gid.raw, sizeof now->gid.raw) != 0));
    };
    if (isStale(pair)) return IBV_WC_LOC_QP_OP_ERR;
    // Packets with a global route header are dropped where none is due, and the other way round (IBTA 9.6.1.2).
    if (pair.is_global != target.is_global) return IBV_WC_RETRY_EXC_ERR;
    const auto isUp = [](const Pair& end) {
        const Hardware& hardware = *static_cast<const Context*>(end.context)->hardware;
        return hardware.at(end.port).up && !hardware.dead;
    };
    return isStale(target) || pair.pkey != target.pkey || !isUp(pair) || !isUp(target) ? IBV_WC_RETRY_EXC_ERR
                                                                                       : IBV_WC_SUCCESS;
}

/// Beside the one that is being carried out: a device sends those behind it without waiting for its answer, as far as
/// it may have them outstanding, and waits with the rest.
std::size_t SoftVerbs::readsUnderWay(const Pair& pair) {
    const auto behind = std::count_if(pair.waiting.begin(), pair.waiting.end(),
                                      [](const Work& each) { return each.opcode == IBV_WR_RDMA_READ; });
    return std::min(static_cast<std::size_t>(behind) + 1, static_cast<std::size_t>(pair.reads));
}

ibv_wc_status SoftVerbs::run(Pair& pair, const Work& work) {
    if (next_status_) return *std::exchange(next_status_, std::nullopt);
    std::uint64_t length = 0;
    std::vector<std::byte*> locals;
    std::vector<const Registration*> local_keys;
    for (const ibv_sge& piece : work.pieces) {
        length += piece.length;
        if (work.is_inline) continue;
        const Registration* mr = registration(piece.lkey, piece.addr, piece.length, pair.pd);
        if (mr == nullptr || (work.opcode == IBV_WR_RDMA_READ && (mr->access & IBV_ACCESS_LOCAL_WRITE) == 0))
            return IBV_WC_LOC_PROT_ERR;
        locals.push_back(mr->at(piece.addr));
        local_keys.push_back(mr);
    }
    if (work.opcode == IBV_WR_RDMA_READ && pair.reads == 0) {
        violate("a READ by a queue pair that may have none outstanding, which waits for ever");
        return IBV_WC_LOC_QP_OP_ERR;
    }
    const auto at = std::find_if(pairs_.begin(), pairs_.end(),
                                 [&](const auto& entry) { return entry.second->qp_num == pair.remote; });
    if (at == pairs_.end()) return IBV_WC_RETRY_EXC_ERR;
    Pair& target = *at->second;
    if (target.state != IBV_QPS_RTR && target.state != IBV_QPS_RTS) return IBV_WC_RETRY_EXC_ERR;
    if (const ibv_wc_status way = checkWay(pair, target); way != IBV_WC_SUCCESS) return way;
    if (static_cast<const Context*>(target.context)->hardware->loses_data) return IBV_WC_RETRY_EXC_ERR;
    // Packets of another number than the one that is due are dropped.
    if (target.takes_from != pair.sends_from || target.remote != pair.qp_num) return IBV_WC_RETRY_EXC_ERR;
    ++target.taken;
    // A device refuses packets larger than it was told, and is confused by smaller ones.
    if (target.mtu != pair.mtu) violate("a pair whose ends send packets of different sizes");
    // More than it has room for is an invalid request.
    if (work.opcode == IBV_WR_RDMA_READ && readsUnderWay(pair) > target.serves) return IBV_WC_REM_INV_REQ_ERR;
    const int needed = work.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
    const Registration* mr = registration(work.rkey, work.remote, length, target.pd);
    if (mr == nullptr || mr->rkey != work.rkey || (mr->access & needed) == 0 || (target.access & needed) == 0)
        return IBV_WC_REM_ACCESS_ERR;
    std::byte* remote = mr->at(work.remote);
    if (work.is_inline) {
        write(*mr, remote, work.data.data(), work.data.size());
        return IBV_WC_SUCCESS;
    }
    for (std::size_t i = 0; i < work.pieces.size(); ++i) {
        const std::size_t bytes = work.pieces[i].length;
        if (work.opcode == IBV_WR_RDMA_READ) {
            read(*mr);
            write(*local_keys[i], locals[i], remote, bytes);
        } else {
            read(*local_keys[i]);
            write(*mr, remote, locals[i], bytes);
        }
        remote += bytes;
    }
    return IBV_WC_SUCCESS;
}

void SoftVerbs::write(const Registration& to, std::byte* at, const std::byte* from, std::size_t bytes) {
    if (delays_ && to.device >= 0)
        late_.push_back({&to, at, std::vector<std::byte>(from, from + bytes)});
    else
        std::memmove(at, from, bytes);  // Both may be the same memory.
}

void SoftVerbs::read(const Registration& from) {
    if (from.device < 0) return;
    land([&](const LateWrite& each) { return each.to->device == from.device && each.to->context == from.context; });
}

template <class Which>
void SoftVerbs::land(Which&& which) {
    std::erase_if(late_, [&](const LateWrite& each) {
        if (!which(each)) return false;
        std::copy(each.data.begin(), each.data.end(), each.at);
        return true;
    });
}

void SoftVerbs::delayDeviceWrites() {
    const std::lock_guard lock(mutex_);
    delays_ = true;
}

void SoftVerbs::flushDeviceWrites(int device) {
    const std::lock_guard lock(mutex_);
    land([&](const LateWrite& each) { return each.to->device == device; });
}

void SoftVerbs::putOnItsWay(const Pair& pair, const Work& work) {
    Packet packet{pair.remote, work.remote, work.rkey, work.data};
    for (const ibv_sge& piece : work.pieces) {
        const Registration* mr = registration(piece.lkey, piece.addr, piece.length, pair.pd);
        if (work.is_inline || mr == nullptr) continue;
        const std::byte* const at = mr->at(piece.addr);
        packet.data.insert(packet.data.end(), at, at + piece.length);
    }
    fabric_.push_back(std::move(packet));
}

std::size_t SoftVerbs::deliver() {
    const std::lock_guard lock(mutex_);
    std::size_t applied = 0;
    for (const Packet& packet : std::exchange(fabric_, {})) {
        const auto at = std::find_if(pairs_.begin(), pairs_.end(),
                                     [&](const auto& entry) { return entry.second->qp_num == packet.to; });
        if (at == pairs_.end() || at->second->state == IBV_QPS_ERR) continue;
        const Registration* mr = registration(packet.rkey, packet.remote, packet.data.size(), at->second->pd);
        if (mr == nullptr) continue;
        std::copy(packet.data.begin(), packet.data.end(), mr->at(packet.remote));
        ++applied;
    }
    return applied;
}

void SoftVerbs::complete(Pair& pair, const Work& work, ibv_wc_status status) {
    if (lose_ > 0) {
        --lose_;
        return;
    }
    Queue& queue = *lookUp(queues_, pair.send_cq);
    if (queue.broken) return;
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
