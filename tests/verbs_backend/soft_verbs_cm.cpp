// SoftVerbs: connections.

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/verbs_backend/soft_verbs.h"

namespace troupe::verbs::testing {

namespace {

CmEvent event(CmEvent::Kind kind, CmId id, const char* name, int status = 0) {
    CmEvent result;
    result.kind = kind;
    result.id = id;
    result.name = name;
    result.status = status;
    return result;
}

}  // namespace

void SoftVerbs::put(CmChannel channel, CmEvent what) {
    const auto found = event_channels_.find(channel);
    if (found == event_channels_.end()) return;
    found->second->events.push_back(std::move(what));
    ring(found->second->fd.get());
}

void SoftVerbs::answerConnect(const std::string& name, int status) {
    const std::lock_guard lock(mutex_);
    next_answer_ = event(CmEvent::Kind::Failed, 0, name.c_str(), status);
}

void SoftVerbs::tapRejects(std::function<void(std::vector<std::byte>&)> tap) {
    const std::lock_guard lock(mutex_);
    on_reject_ = std::move(tap);
}

void SoftVerbs::announceRemoval(const std::string& device) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, id] : ids_)
        if (id.state == CmState::Connected && id.own.hardware != nullptr && id.own.hardware->name == device)
            put(id.channel, event(CmEvent::Kind::Failed, key, "RDMA_CM_EVENT_DEVICE_REMOVAL"));
}

CmChannel SoftVerbs::cmOpen() {
    const std::lock_guard lock(mutex_);
    if (fault("cmOpen") != 0) return 0;
    auto channel = std::make_unique<EventChannel>();
    channel->fd = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    const CmChannel key = next_cm_++;
    event_channels_[key] = std::move(channel);
    return key;
}

int SoftVerbs::cmDescriptor(CmChannel channel) {
    const std::lock_guard lock(mutex_);
    return event_channels_.at(channel)->fd.get();
}

void SoftVerbs::cmClose(CmChannel channel) {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, id] : ids_)
        if (id.channel == channel) violate("cmClose with an id");
    event_channels_.erase(channel);
}

CmId SoftVerbs::cmCreate(CmChannel channel) {
    const std::lock_guard lock(mutex_);
    if (fault("cmCreate") != 0) return 0;
    const CmId key = next_cm_++;
    ids_[key].channel = channel;
    return key;
}

/// Whether a connection message arrives; the port that it leaves by may lose its hearing over it.
bool SoftVerbs::sendMessage(const Place& from, const Place& to) {
    if (from.hardware == nullptr || to.hardware == nullptr) return false;
    Port& source = from.hardware->at(from.gid.port_num);
    if (!source.up && deafens_) source.deaf = true;
    const Port& there = to.hardware->at(to.gid.port_num);
    return source.up && there.up && !there.deaf && !from.hardware->dead && !to.hardware->dead;
}

/// What the other end sees of it.
void SoftVerbs::endConnection(Id& id) {
    const bool connected = id.state == CmState::Connected || id.state == CmState::Accepted;
    const bool asked = id.state == CmState::Requested;
    const bool pending = id.state == CmState::Pending;
    id.state = CmState::Ended;
    const auto other = ids_.find(id.other);
    if (other == ids_.end() || other->second.state == CmState::Ended || goodbyes_are_lost_) return;
    if ((pending || connected || asked) && !sendMessage(id.own, id.remote)) return;
    if (pending) put(other->second.channel, event(CmEvent::Kind::Rejected, other->first, "rejected", 28));
    if (connected || asked)
        put(other->second.channel, event(CmEvent::Kind::Disconnected, other->first, "disconnected"));
    if (connected) other->second.state = CmState::Ended;
}

void SoftVerbs::cmDestroy(CmId key) {
    const std::lock_guard lock(mutex_);
    const auto found = ids_.find(key);
    if (found == ids_.end()) return violate("cmDestroy twice");
    if (fault("cmDestroy") != 0) return;
    endConnection(found->second);
    if (const auto channel = event_channels_.find(found->second.channel); channel != event_channels_.end())
        std::erase_if(channel->second->events, [key](const CmEvent& waiting) { return waiting.id == key; });
    ids_.erase(key);
}

int SoftVerbs::cmListen(CmId key, const SocketAddress& address, int, std::uint16_t& port) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmListen")) return error;
    const auto is_taken = [this](std::uint16_t wanted) {
        return std::any_of(ids_.begin(), ids_.end(), [wanted](const auto& entry) {
            return entry.second.state == CmState::Listening && entry.second.port == wanted;
        });
    };
    std::uint16_t chosen = address.port();
    // As the kernel says of one that is taken on all addresses.
    if (chosen != 0 && is_taken(chosen)) return EADDRNOTAVAIL;
    while (chosen == 0 || is_taken(chosen)) chosen = next_port_++;
    Id& id = ids_.at(key);
    id.state = CmState::Listening;
    id.port = port = chosen;
    return 0;
}

int SoftVerbs::cmResolveAddress(CmId key, const SocketAddress& from, const SocketAddress& to, int) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmResolveAddress")) return error;
    Id& id = ids_.at(key);
    const Place own = find(from);
    // Bound to an address that is not there.
    if (own.hardware == nullptr) return EADDRNOTAVAIL;
    if (find(to).hardware == nullptr || !own.hardware->at(own.gid.port_num).up || own.hardware->dead) {
        put(id.channel, event(CmEvent::Kind::Failed, key, "RDMA_CM_EVENT_ADDR_ERROR", -EHOSTUNREACH));
        return 0;
    }
    id.own = own;
    id.to = to;
    id.state = CmState::Addressed;
    put(id.channel, event(CmEvent::Kind::AddressResolved, key, "address resolved"));
    return 0;
}

int SoftVerbs::cmResolveRoute(CmId key, int) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmResolveRoute")) return error;
    Id& id = ids_.at(key);
    if (id.state != CmState::Addressed) return violate("cmResolveRoute before the address"), EINVAL;
    id.state = CmState::Routed;
    put(id.channel, event(CmEvent::Kind::RouteResolved, key, "route resolved"));
    return 0;
}

int SoftVerbs::cmConnect(CmId key, const CmParameters& parameters) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmConnect")) return error;
    Id& id = ids_.at(key);
    if (id.state != CmState::Routed || parameters.private_data.size() > 56)
        return violate("cmConnect before the route, or with too much private data"), EINVAL;
    // As librdmacm does.
    const int most = id.own.hardware->reads;
    if (parameters.responder_resources > most || parameters.initiator_depth > most) return EINVAL;
    const Place there = find(id.to);
    if (there.hardware->cut_off) return ENETUNREACH;
    id.responder_resources = parameters.responder_resources;
    id.initiator_depth = parameters.initiator_depth;
    id.state = CmState::Requested;
    const auto listener = std::find_if(ids_.begin(), ids_.end(), [&](const auto& entry) {
        return entry.second.state == CmState::Listening && entry.second.port == id.to.port();
    });
    ++there.hardware->requests;
    if (next_answer_) {
        next_answer_->id = key;
        put(id.channel, *std::exchange(next_answer_, std::nullopt));
        return 0;
    }
    if (!sendMessage(id.own, there)) return 0;  // Nobody answers.
    if (there.hardware->has_no_way_back) {
        put(id.channel, event(CmEvent::Kind::Rejected, key, "rejected", 28));
        return 0;
    }
    if (listener == ids_.end()) {
        if (!sendMessage(there, id.own)) return 0;
        put(id.channel, event(CmEvent::Kind::Rejected, key, "rejected", 8));
        return 0;
    }
    const CmId other = next_cm_++;
    Id& request = ids_[other];
    request.channel = listener->second.channel;
    request.state = CmState::Pending;
    request.own = there;
    request.other = key;
    request.remote_qp = parameters.qp_number;
    request.remote = ids_.at(key).own;
    request.responder_resources = parameters.initiator_depth;
    request.initiator_depth = parameters.responder_resources;
    ids_.at(key).other = other;
    ids_.at(key).remote = there;
    CmEvent asked = event(CmEvent::Kind::ConnectRequest, other, "connect request");
    asked.listener = listener->first;
    asked.private_data.assign(parameters.private_data.begin(), parameters.private_data.end());
    asked.private_data.resize(56);
    asked.responder_resources = parameters.initiator_depth;
    asked.initiator_depth = parameters.responder_resources;
    put(request.channel, std::move(asked));
    return 0;
}

int SoftVerbs::cmAccept(CmId key, const CmParameters& parameters) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmAccept")) return error;
    Id& id = ids_.at(key);
    if (id.state != CmState::Pending || parameters.private_data.size() > kMostAccepted)
        return violate("cmAccept of what was not asked, or with too much private data"), EINVAL;
    const int most = id.own.hardware->reads;
    if (parameters.responder_resources > most || parameters.initiator_depth > most) return EINVAL;
    const auto other = ids_.find(id.other);
    if (other == ids_.end()) return ECONNRESET;
    id.state = CmState::Accepted;
    id.responder_resources = parameters.responder_resources;
    id.initiator_depth = parameters.initiator_depth;
    other->second.remote_qp = parameters.qp_number;
    if (!sendMessage(id.own, id.remote)) return 0;
    CmEvent answer = event(CmEvent::Kind::ConnectResponse, id.other, "connect response");
    answer.private_data.assign(parameters.private_data.begin(), parameters.private_data.end());
    answer.private_data.resize(kMostAccepted);
    other->second.responder_resources = answer.responder_resources = parameters.initiator_depth;
    other->second.initiator_depth = answer.initiator_depth = parameters.responder_resources;
    put(other->second.channel, std::move(answer));
    return 0;
}

int SoftVerbs::cmReject(CmId key, std::span<const std::byte> private_data) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmReject")) return error;
    if (private_data.size() > kMostRejected) return violate("cmReject with too much private data"), EINVAL;
    Id& id = ids_.at(key);
    id.state = CmState::Ended;
    const auto other = ids_.find(id.other);
    if (other == ids_.end() || !sendMessage(id.own, id.remote)) return 0;
    CmEvent answer = event(CmEvent::Kind::Rejected, id.other, "rejected", 28);
    answer.private_data.assign(private_data.begin(), private_data.end());
    if (on_reject_) on_reject_(answer.private_data);
    put(other->second.channel, std::move(answer));
    return 0;
}

int SoftVerbs::cmEstablish(CmId key) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmEstablish")) return error;
    Id& id = ids_.at(key);
    id.state = CmState::Connected;
    const auto other = ids_.find(id.other);
    if (other == ids_.end()) return ECONNRESET;
    if (!sendMessage(id.own, id.remote)) return 0;
    other->second.state = CmState::Connected;
    put(other->second.channel, event(CmEvent::Kind::Established, id.other, "established"));
    return 0;
}

int SoftVerbs::cmDisconnect(CmId key) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmDisconnect")) return error;
    endConnection(ids_.at(key));
    return 0;
}

int SoftVerbs::cmQpAttributes(CmId key, ibv_qp_attr& attributes, int& mask) {
    const std::lock_guard lock(mutex_);
    if (const int error = fault("cmQpAttributes")) return error;
    const Id& id = ids_.at(key);
    mask = IBV_QP_STATE;
    if (attributes.qp_state == IBV_QPS_INIT) {
        attributes.port_num = static_cast<std::uint8_t>(id.own.gid.port_num);
        mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    } else if (attributes.qp_state == IBV_QPS_RTR) {
        if (id.remote_qp == 0) return violate("cmQpAttributes to RTR before the peer's number is known"), EINVAL;
        attributes.dest_qp_num = id.remote_qp;
        attributes.path_mtu = id.own.hardware->mtu;
        attributes.max_dest_rd_atomic = id.responder_resources;
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.port_num = static_cast<std::uint8_t>(id.own.gid.port_num);
        attributes.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(id.own.gid.gid_index);
        attributes.ah_attr.grh.dgid = id.remote.gid.gid;
        mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                IBV_QP_MIN_RNR_TIMER;
    } else {
        attributes.max_rd_atomic = id.initiator_depth;
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    }
    return 0;
}

std::string SoftVerbs::cmDevice(CmId key) {
    const std::lock_guard lock(mutex_);
    const Hardware* hardware = ids_.at(key).own.hardware;
    return hardware != nullptr ? hardware->name : "";
}

std::uint8_t SoftVerbs::cmPort(CmId key) {
    const std::lock_guard lock(mutex_);
    return static_cast<std::uint8_t>(ids_.at(key).own.gid.port_num);
}

bool SoftVerbs::cmNextEvent(CmChannel channel, CmEvent& next) {
    const std::lock_guard lock(mutex_);
    EventChannel& known = *event_channels_.at(channel);
    if (known.events.empty()) {
        std::uint64_t count = 0;
        static_cast<void>(!::read(known.fd.get(), &count, sizeof count));
        return false;
    }
    next = std::move(known.events.front());
    known.events.pop_front();
    return true;
}

}  // namespace troupe::verbs::testing
