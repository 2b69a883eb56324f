#include "actors/remote_faults.h"

#include <algorithm>
#include <utility>

namespace troupe {

RemoteFaults::RemoteFaults(Reactor& reactor, bool allowed, Logger log)
    : reactor_(reactor), faults_(reactor.faults()), allowed_(allowed), log_(std::move(log)) {}

RemoteFaults::~RemoteFaults() {
    for (auto& [connection, party] : parties_) mendAll(connection, party, "this engine ends");
}

Result<std::string> RemoteFaults::answer(const Asker& asker, const std::string& from, const std::string& question) {
    const std::string name = from + " (incarnation " + asker.incarnation.toString() + ")";
    if (!allowed_ || faults_ == nullptr) {
        refusals_.say(log_, reactor_.now(), "faults.remote is off: " + name + " may not break this engine");
        return {Code::AccessDenied,
                "this engine may not be broken by others; start it with faults.enabled and faults.remote"};
    }
    const auto request = FaultRequest::decode(question);
    if (!request) return request.status();
    Party& party = parties_[asker.connection];
    party.name = name;
    const auto done = carryOut(asker.connection, party, *request);
    if (!done) return done.status();
    return done->encode();
}

Result<FaultAnswer> RemoteFaults::carryOut(std::uint64_t connection, Party& party, const FaultRequest& request) {
    FaultAnswer answer;
    switch (request.kind) {
        case FaultRequest::Kind::Add: {
            const auto rule = faults_->add(request.rule, connection);
            if (!rule) return rule.status();
            noteSet(connection, party, request, *rule, request.rule.lasts);
            answer.id = *rule;
            return answer;
        }
        case FaultRequest::Kind::Remove: {
            const auto found = std::find_if(party.faults.begin(), party.faults.end(),
                                            [&](const auto& each) { return each.second.rule == request.id; });
            if (found == party.faults.end()) return checkOwn(party, request.id);
            static_cast<void>(faults_->remove(request.id));  // NotFound: its time was over a moment ago.
            noteMended(party, found->second, "it was asked for");
            party.faults.erase(found);
            return answer;
        }
        case FaultRequest::Kind::Count: {
            if (const Status own = checkOwn(party, request.id); !own) return own;
            const auto count = faults_->count(request.id);
            if (!count) return count.status();
            answer.seen = count->seen;
            answer.fired = count->fired;
            return answer;
        }
        case FaultRequest::Kind::DropPath: {
            if (const Status dropped = faults_->dropPath(request.where, request.time, connection); !dropped)
                return dropped;
            noteSet(connection, party, request, std::nullopt, request.time);
            return answer;
        }
        case FaultRequest::Kind::FreezeLoop: {
            if (request.loop != FaultInjector::kControlLoop)
                if (const Status frozen = faults_->freezeLoop(request.loop, request.time, connection); !frozen)
                    return frozen;
            noteSet(connection, party, request, std::nullopt, request.time);
            if (request.loop == FaultInjector::kControlLoop) freezeControlLoop(connection, party.last, request.time);
            return answer;
        }
        case FaultRequest::Kind::Clear: mendAll(connection, party, "it was asked for"); return answer;
    }
    return {Code::ProtocolError, "no such request"};
}

/// Nothing is sent while this loop stands still, so the answer is: what it is sent by is posted before this turn ends,
/// and what is posted by what was posted comes after it.
void RemoteFaults::freezeControlLoop(std::uint64_t connection, std::uint64_t number, std::chrono::microseconds time) {
    reactor_.post([this, alive = std::weak_ptr(alive_), connection, number, time] {
        if (alive.expired()) return;
        const auto of = parties_.find(connection);
        if (of == parties_.end() || of->second.faults.count(number) == 0) return;  // Mended already.
        if (const Status frozen = faults_->freezeLoop(FaultInjector::kControlLoop, time, connection); !frozen)
            log_->warn("faults.remote: the control loop was not frozen: {}", frozen.toString());
    });
}

/// NotFound: it is nobody's, or somebody else's.
Status RemoteFaults::checkOwn(const Party& party, FaultInjector::RuleId rule) const {
    const bool own = std::any_of(party.faults.begin(), party.faults.end(),
                                 [&](const auto& each) { return each.second.rule == rule; });
    return own ? Status::ok()
               : Status(Code::NotFound, "no fault rule " + std::to_string(rule) + " was set over this connection");
}

void RemoteFaults::noteSet(std::uint64_t connection, Party& party, const FaultRequest& request,
                           std::optional<FaultInjector::RuleId> rule, std::chrono::microseconds time) {
    const std::uint64_t number = ++party.last;
    Fault& fault = party.faults[number];
    fault.text = request.describe();
    fault.rule = rule;
    // The injector ends it by its own clock; this is for the log, and to forget it.
    fault.timer = reactor_.runAt(saturatedAdd(reactor_.now(), time), [this, connection, number] {
        const auto of = parties_.find(connection);
        if (of == parties_.end()) return;
        const auto over = of->second.faults.extract(number);
        if (over.empty()) return;
        if (over.mapped().rule) static_cast<void>(faults_->remove(*over.mapped().rule));  // It may have ended already.
        over.mapped().timer = 0;
        noteMended(of->second, over.mapped(), "its time is over");
    });
    log_->warn("faults.remote: {} breaks this engine: {}", party.name, fault.text);
}

void RemoteFaults::noteMended(const Party& party, const Fault& fault, const std::string& why) {
    reactor_.cancelTimer(fault.timer);
    log_->warn("faults.remote: mended, {}: what {} broke: {}", why, party.name, fault.text);
}

void RemoteFaults::mendAll(std::uint64_t connection, Party& party, const std::string& why) {
    faults_->clear(connection);
    for (const auto& [number, fault] : std::exchange(party.faults, {})) noteMended(party, fault, why);
}

void RemoteFaults::askerLeft(std::uint64_t connection) {
    const auto found = parties_.find(connection);
    if (found == parties_.end()) return;
    mendAll(connection, found->second, "the connection ended that it was asked for over");
    parties_.erase(found);
}

}  // namespace troupe
