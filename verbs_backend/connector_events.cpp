// Connector: asynchronous events of devices, their ports and queues.
//
// A device tells of an event once, and of what is posted on a pair that it concerns there may be no completion at all.
// So whatever depends on what is gone ends at once, with the event as its cause, and what takes its place is made when
// there is work.

#include <algorithm>

#include "verbs_backend/connector.h"

namespace troupe::verbs {

void Connector::handleAsync(std::size_t index) {
    ibv_context* const context = own_[index].device->context();
    VerbsApi::AsyncEvent event;
    while (api_->nextAsyncEvent(context, event)) {
        log_->debug("rdma: device {}: {}", own_[index].device->device_name, event.name);
        switch (event.type) {
            case IBV_EVENT_PORT_ERR:
                for (const std::size_t port : portsOf(context, event.port))
                    portLost(port, {Code::ConnectionLost, own_[port].device->describe() + " went down"});
                break;
            case IBV_EVENT_PORT_ACTIVE:
                for (const std::size_t port : portsOf(context, event.port)) portActive(port);
                break;
            case IBV_EVENT_DEVICE_FATAL:
                for (const std::size_t port : portsOf(context, 0))
                    putOut(port, {Code::ConnectionLost, own_[port].device->describe() + " failed (device fatal)"});
                break;
            case IBV_EVENT_GID_CHANGE:
            case IBV_EVENT_LID_CHANGE:
            case IBV_EVENT_PKEY_CHANGE:
            // A new subnet manager may have given out new numbers, and not every driver says so by itself.
            case IBV_EVENT_SM_CHANGE:
            case IBV_EVENT_CLIENT_REREGISTER:
                for (const std::size_t port : portsOf(context, event.port)) lookAtPort(port);
                break;
            case IBV_EVENT_CQ_ERR:
                for (const std::size_t port : portsOf(context, 0))
                    renewQueue(port, event.cq, {Code::ConnectionLost, "its completion queue failed (CQ error)"});
                break;
            case IBV_EVENT_QP_FATAL:
            case IBV_EVENT_QP_REQ_ERR:
            case IBV_EVENT_QP_ACCESS_ERR: pairFailed(event.qp, event.name); break;
            default: break;
        }
    }
}

/// The own ports of a device that an event is about; `port` 0: all of them.
std::vector<std::size_t> Connector::portsOf(const ibv_context* context, std::uint32_t port) const {
    std::vector<std::size_t> ports;
    for (std::size_t i = 0; i < own_.size(); ++i)
        if (own_[i].device->context() == context && (port == 0 || own_[i].device->port == port)) ports.push_back(i);
    return ports;
}

void Connector::portLost(std::size_t index, const Status& cause) {
    Own& own = own_[index];
    if (!own.out) return;
    log_->warn("rdma: {}", cause.message());
    own.port_down = true;
    own.quiet_until = kForever;
    own.look_at = Clock::now() + kLookPause;
    tellPort(index, PairEvent::Kind::PortDown, cause);
    // What peers have here stays: the port may come back before they notice, and they lose nothing then.
    endInitiated(index, cause, [](const auto&) { return true; });
}

void Connector::portActive(std::size_t index) {
    Own& own = own_[index];
    if (!own.out) return;
    log_->info("rdma: {} is active again", own.device->describe());
    own.port_down = false;
    own.quiet_until = Clock::now() + kSettle;
    own.look_at = kForever;
    // It may have come up with other numbers and addresses.
    lookAtPort(index);
    tellPort(index, PairEvent::Kind::PortUp, {});
}

/// The event that a port is active again may have been lost, or have come before the one that it is down.
void Connector::lookAtLostPorts(TimePoint now) {
    for (std::size_t i = 0; i < own_.size(); ++i) {
        if (now < own_[i].look_at) continue;
        if (askPort(own_[i]).value_or(false))
            portActive(i);
        else
            own_[i].look_at = now + kLookPause;
    }
}

/// Reads a port anew, and ends what goes by something that it no longer has.
void Connector::lookAtPort(std::size_t index) {
    Own& own = own_[index];
    if (!own.out) return;
    const std::string name = own.device->describe();
    const auto before = own.device->view();
    if (const Status read = own.device->look(); !read) {
        log_->warn("rdma: {}: it changed, but could not be read: {}", name, read.message());
        return;
    }
    const auto now = own.device->view();
    const bool other_lid = own.device->infiniband && before->attributes.lid != now->attributes.lid;
    const bool other_pkey = before->pkey != 0 && now->pkey != 0 && before->pkey != now->pkey;
    const bool renumbered = other_lid || other_pkey;
    const bool same_gids =
        std::equal(before->table.begin(), before->table.end(), now->table.begin(), now->table.end(), sameGid);
    if (!renumbered && same_gids) return;
    log_->info("rdma: {} changed: it is {} now", name, own.device->describe());
    if (renumbered) {
        // They are in every packet.
        const std::string what =
            other_lid ? "the LID changed from " + std::to_string(before->attributes.lid) + " to " +
                            std::to_string(now->attributes.lid)
                      : "the P_Key of index " + std::to_string(own.device->settings.pkey_index) + " changed";
        endPairs(index, {Code::ConnectionLost, name + ": " + what}, [](const auto&) { return true; });
    } else {
        endPairs(index, {Code::ConnectionLost, name + ": its GID was removed"},
                 [&](const auto& gid) { return gid && !now->has(*gid); });
    }
    tellPort(index, PairEvent::Kind::PortChanged, {});
    if ((other_lid || !sameGid(before->gid, now->gid)) && described_anew_) described_anew_();
}

void Connector::queueLost(std::size_t device, std::shared_ptr<const CompletionQueue> queue, const Status& cause) {
    command([this, device, queue = std::move(queue), cause] { renewQueue(device, queue->get(), cause); });
}

void Connector::release(std::shared_ptr<const CompletionQueue> queue) {
    command([queue = std::move(queue)]() mutable { queue.reset(); });
}

/// What was on its way has no completion to come any more. That the pairs are destroyed is what proves its end.
void Connector::renewQueue(std::size_t index, const ibv_cq* failed, const Status& why) {
    Own& own = own_[index];
    if (!own.out || own.device->queue()->get() != failed) return;
    const Status cause = why.withContext(own.device->describe());
    log_->error("rdma: {}", cause.message());
    tellPort(index, PairEvent::Kind::QueueLost, cause);
    // First, as what is given up may be tried in another way at once.
    if (const Status made = own.device->renewQueue(); !made)
        return putOut(index, {Code::ConnectionLost, cause.message() + "; another one: " + made.message()});
    endPairs(index, cause, [](const auto&) { return true; });
    tellQueue(index);
}

/// Nothing brings a device back that has failed but opening it anew.
void Connector::putOut(std::size_t index, const Status& cause) {
    Own& own = own_[index];
    if (!own.out) return;
    own.out = cause.withContext("out of use until rdma is installed anew");
    own.look_at = kForever;
    // No event of its port is listened to any more, and what is left of its connections is to be let go of.
    own.quiet_until = {};
    log_->error("rdma: {}", own.out.message());
    own.device->putOut();
    tellPort(index, PairEvent::Kind::QueueLost, own.out);
    tellPort(index, PairEvent::Kind::PortDown, own.out);
    endPairs(index, own.out, [](const auto&) { return true; });
    if (described_anew_) described_anew_();
}

/// Ends what this engine made through a port and of whose own GID `which` says so.
void Connector::endInitiated(std::size_t index, const Status& cause, const WhichGid& which) {
    std::vector<std::uint32_t> concerned;
    for (const auto& [number, pair] : pairs_)
        if (takesDevice(pair) && pair.order.candidates[pair.candidate].own == index && which(pair.gid))
            concerned.push_back(number);
    for (const std::uint32_t number : concerned) {
        const auto found = pairs_.find(number);
        if (found == pairs_.end()) continue;
        Pair& pair = found->second;
        // What is being made there has an answer now, rather than when its time is over.
        if (pair.step == Step::Up)
            breakNow(pair, cause);
        else if (pair.step != Step::Broken)
            giveUpCandidate(pair, cause);
    }
}

/// And what peers have there.
void Connector::endPairs(std::size_t index, const Status& cause, const WhichGid& which) {
    endInitiated(index, cause, which);
    std::vector<CmId> concerned;
    for (const auto& [id, served] : served_)
        if (served.device == index && which(served.gid)) concerned.push_back(id);
    for (const CmId id : concerned) endServed(id, cause.message().c_str());
}

/// Tells a port's own Nic.
void Connector::tellPort(std::size_t index, PairEvent::Kind kind, const Status& cause) {
    PairEvent told;
    told.kind = kind;
    told.status = cause;
    if (const auto& mailbox = own_[index].mailbox) mailbox->put(std::move(told));
}

void Connector::tellQueue(std::size_t index) {
    PairEvent told;
    told.kind = PairEvent::Kind::QueueMade;
    told.queue = own_[index].device->queue();
    if (const auto& mailbox = own_[index].mailbox) mailbox->put(std::move(told));
}

void Connector::pairFailed(const ibv_qp* qp, const std::string& name) {
    for (auto& [number, pair] : pairs_)
        if (pair.qp != nullptr && pair.qp == qp)
            breakNow(pair, {Code::ConnectionLost, via(pair).device->describe() + ": " + name});
    const auto served =
        std::find_if(served_.begin(), served_.end(), [&](const auto& entry) { return entry.second.qp == qp; });
    if (served != served_.end()) endServed(served->first, name.c_str());
}

}  // namespace troupe::verbs
