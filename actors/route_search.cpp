#include "actors/route_search.h"

#include <utility>

#include "transports/probe_remark.h"

namespace troupe {

namespace {

/// What a probe answers when it could not find out: the peer stood still, or had no room, or this process had none.
bool isPassing(const Status& answer) {
    switch (answer.code()) {
        case Code::Timeout:
        case Code::ConnectionLost:
        case Code::ConnectionRefused:
        case Code::CapacityExceeded:
        case Code::ResourceExhausted: return true;
        default: return false;
    }
}

}  // namespace

bool sameReach(const SegmentDesc& a, const SegmentDesc& b) {
    return a.incarnation == b.incarnation && a.boot_id == b.boot_id && a.host_socket == b.host_socket &&
           a.transports == b.transports && a.tcp_data_port == b.tcp_data_port && a.lane_ports == b.lane_ports &&
           a.devices == b.devices;
}

RouteSearch::RouteSearch(Reactor& reactor, std::vector<InstalledTransport> best_first,
                         std::shared_ptr<const SegmentDesc> peer, std::function<void(Route)> done)
    : reactor_(reactor), transports_(std::move(best_first)), peer_(std::move(peer)), done_(std::move(done)) {}

void RouteSearch::start() {
    while (next_ < transports_.size()) {
        answer_.reset();
        asking_ = true;
        probe_ =
            transports_[next_].transport->probe(reactor_, *peer_, [this](const Status& answer) { onAnswer(answer); });
        asking_ = false;
        if (!answer_) return;
        take(*answer_, true);
    }
    // The callback may destroy this object.
    const auto done = std::move(done_);
    done(std::move(route_));
}

void RouteSearch::onAnswer(const Status& answer) {
    if (asking_) {
        answer_ = answer;
        return;
    }
    take(answer, false);
    start();
}

void RouteSearch::take(const Status& answer, bool at_once) {
    const InstalledTransport& installed = transports_[next_++];
    const std::string name = installed.transport->name();
    RouteExplanation& explanation = route_.explanation;
    const bool preferred = route_.workers.empty();
    if (answer) {
        route_.workers.insert(route_.workers.end(), installed.workers.begin(), installed.workers.end());
        route_.probed = route_.probed || !at_once;
        if (!preferred) {
            explanation.then.push_back({name, installed.nics});
            return;
        }
        explanation.transport = name;
        explanation.nics = installed.nics;
        const auto* const remarking = dynamic_cast<const ProbeRemark*>(probe_.get());
        const Status remark = remarking != nullptr && !at_once ? remarking->remark() : Status::ok();
        if (!remark) explanation.refused.push_back({name + " in part", remark});
        return;
    }
    const bool might = installed.transport->reaches(*peer_).isOk();
    if (might) route_.unsettled = route_.unsettled || isPassing(answer);
    // That a worse one would not do is no news, but for who asks.
    if (!preferred) {
        explanation.refused_next.push_back({name, answer});
        return;
    }
    if (might) route_.tried = name + ": " + answer.message();
    explanation.refused.push_back({name, answer});
}

}  // namespace troupe
