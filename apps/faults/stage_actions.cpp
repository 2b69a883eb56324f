// Stage: what a step of a scenario does, and to whom.

#include <fmt/format.h>
#include <signal.h>

#include <charconv>
#include <future>
#include <utility>

#include "apps/faults/injection.h"
#include "apps/faults/stage.h"
#include "apps/support/transfer.h"

namespace troupe::apps::faults {

namespace {

/// To hear that a stopped target cannot be opened: twice the default of open_timeout.
constexpr std::chrono::seconds kOpenBound{10};
constexpr std::chrono::milliseconds kUnregisterEvery{20};
/// For a link to come back, and its ports with it.
constexpr std::chrono::seconds kLinkBound{60};

Status needed(Need need) {
    return {Code::InvalidArgument, fmt::format("the scenario does not say that it needs \"{}\"", nameOf(need))};
}

}  // namespace

Status Stage::act(const Step& step) {
    const std::string& what = step.argument;
    const auto refuse = [&] { return Status(Code::InvalidArgument, "not known"); };
    if (step.action == "storm") return setStorm(what);
    if (step.action == "inject") {
        const auto injector = session_->engine().faults();
        return injector ? inject(**injector, what) : injector.status();
    }
    if (step.action == "remote") return actOnTargetsEngine(what);
    if (!options_.at.empty()) return playsAnywhere(scenario_);
    Target& target = *peers_.front().target;
    if (step.action == "kill") return killTarget();
    if (step.action == "start") return startTarget();
    if (step.action == "initiator") return actOnInitiator(what);
    if (step.action == "open") return what == "stopped" ? openStopped() : refuse();
    if (step.action == "redis") return redis_ ? actOnRedis(what) : needed(Need::Redis);
    if (step.action == "peers") {
        unsigned count = 0;
        const auto [end, error] = std::from_chars(what.data(), what.data() + what.size(), count);
        if (error != std::errc() || end != what.data() + what.size()) return refuse();
        return useShortLivedPeers(count);
    }
    if (step.action == "stop" || step.action == "continue" || step.action == "files" || step.action == "memory") {
        if (!target.runs()) return {Code::InvalidArgument, "the target does not run"};
        if (step.action == "files")
            return what == "few" || what == "many" ? target.setFewFiles(what == "few") : refuse();
        if (step.action == "memory")
            return what == "few" || what == "many" ? target.setFewMemory(what == "few") : refuse();
        step.action == "stop" ? target.stop() : target.proceed();
        return Status::ok();
    }
    return actOnLinks(step);
}

Status Stage::actOnLinks(const Step& step) {
    const std::string& what = step.argument;
    const bool up_or_down = what == "up" || what == "down";
    const bool on_or_off = what == "on" || what == "off";
    if (step.action == "rail" || step.action == "device") {
        if (!rails_) return needed(Need::Rails);
        if (step.action == "rail" && up_or_down)
            return meanwhile([this, up = what == "up"] { return rails_->setBusiestLink(up); });
        if (step.action == "device" && what == "delete") return rails_->deleteBusiestDevice();
    } else if (rails_) {
        if (step.action == "link" && up_or_down) return rails_->setLinks(what == "up");
        if (step.action == "loss") return rails_->setLoss(what);
        if (on_or_off) return {Code::Unsupported, "what goes by RDMA passes no packet filter"};
    } else {
        if (!network_) return needed(Need::Network);
        if (step.action == "link" && up_or_down) return network_->setLink(what == "up");
        if (step.action == "loss") return network_->setLoss(what);
        if (step.action == "drop" && on_or_off) return network_->setDrop(what == "on");
        if (step.action == "reset" && on_or_off) return network_->setReset(what == "on");
    }
    return {Code::InvalidArgument, "not known"};
}

/// Does something while the traffic goes on, so that something is under way in the moment in which it works: the
/// program that takes a link down needs longer to start, and a process to die, than what is under way needs to arrive.
Status Stage::meanwhile(const std::function<Status()>& what) {
    auto doing = std::async(std::launch::async, what);
    const auto done =
        pumpUntil([&] { return doing.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }, kLinkBound);
    const Status outcome = doing.get();
    return done ? outcome : done.status();
}

Status Stage::killTarget() {
    return meanwhile([this] {
        peers_.front().target->kill();
        return Status::ok();
    });
}

/// Starts the target if it does not run, and aims at its memory; also at that of a target that another process wrote.
Status Stage::startTarget() {
    Peer& victim = peers_.front();
    if (!victim.target->runs()) {
        // What it serves before it is aimed at anew comes from its new memory.
        victim.traffic->forget();
        if (const Status launched = victim.target->launch(); !launched) return launched;
        if (const Status up = waitUp(*victim.target); !up) return up;
        if (const Status aimed = aim(victim); !aimed) return aimed;
    }
    for (Peer& peer : peers_) {
        if (!std::exchange(peer.rests, false)) continue;
        if (const Status aimed = aim(peer); !aimed) return aimed;
    }
    return Status::ok();
}

Status Stage::actOnInitiator(const std::string& what) {
    if (what == "start") {
        if (peers_.size() < 2) return {Code::InvalidArgument, "it works on a bystander, and the scenario has none"};
        // It writes all the memory of the last target, so that nobody else may.
        Peer& peer = peers_.back();
        peer.rests = true;
        const auto idle = pumpUntil([&] { return !peer.traffic->oldest(); }, kStartBound);
        if (!idle) return idle.status();
        std::vector<std::string> command = {ownProgramPath(),
                                            "verify",
                                            peer.target->segment(),
                                            "--transport",
                                            options_.engine.transport,
                                            "--metadata",
                                            redis_ ? redis_->uri() : std::string("p2p")};
        if (rails_) command.insert(command.end(), {"--set", rails_->settingHere()});
        auto child = ChildProcess::start(command, {.stderr_path = "/dev/null", .environment = {}});
        if (!child) return child.status();
        initiator_.emplace(std::move(*child));
        return Status::ok();
    }
    if (what != "kill" || !initiator_) return {Code::InvalidArgument, "it is start, and then kill"};
    initiator_->signal(SIGKILL);
    const auto ended = initiator_->wait(kStartBound);
    initiator_.reset();
    if (!ended) return ended.status();
    return *ended == 128 + SIGKILL ? Status::ok()
                                   : Status(Code::Internal, fmt::format("it had ended by itself, with {}", *ended));
}

Status Stage::useShortLivedPeers(unsigned count) {
    TransferEngine& engine = session_->engine();
    const auto scratch = session_->addMemory(options_.traffic.block, false, false);
    if (!scratch) return scratch.status();
    for (unsigned i = 0; i < count; ++i) {
        Target::Options options = targetOptions();
        options.size = options_.traffic.block;
        Target target(options);
        if (const Status launched = target.launch(); !launched) return launched;
        if (const Status up = waitUp(target); !up) return up;
        const auto segment = engine.openSegment(target.segment());
        if (!segment) return segment.status().withContext("open");
        TransferRequest request;
        request.opcode = TransferRequest::WRITE;
        request.source = scratch->data();
        request.target_id = *segment;
        request.target_offset = target.memory().addr;
        request.length = options_.traffic.block;
        if (const Status done = transferAll(engine, {request}); !done) return done.withContext("its only write");
        target.kill();
        if (const Status closed = engine.closeSegment(*segment); !closed) return closed;
    }
    return engine.unregisterLocalMemory(scratch->data());
}

/// It fails, in time; meanwhile the traffic goes on.
Status Stage::openStopped() {
    Target::Options options = targetOptions();
    options.size = options_.traffic.block;
    Target target(options);
    if (const Status launched = target.launch(); !launched) return launched;
    if (const Status up = waitUp(target); !up) return up;
    target.stopWholly();
    const TimePoint began = Clock::now();
    auto opening = std::async(std::launch::async, [&] {
        const auto segment = session_->engine().openSegment(target.segment());
        return std::make_pair(segment.status(), Clock::now());
    });
    const auto done =
        pumpUntil([&] { return opening.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }, kOpenBound);
    // What stands still for ever would keep this from its end as well: with the target gone it does not.
    if (!done || !*done) target.kill();
    const auto [opened, when] = opening.get();
    if (!done) return done.status();
    if (!*done) round_.broken = fmt::format("the open of a stopped target took longer than {} s", kOpenBound.count());
    if (opened) round_.broken = "a stopped target was opened";
    round_.opened = when - began;
    return Status::ok();
}

/// The traffic goes on while it answers.
Status Stage::actOnTargetsEngine(const std::string& what) {
    // A target that was started anew is another one, and whole.
    if (!fault_line_ || !fault_line_->isOpen())
        if (const Status opened = openFaultLine(); !opened) return opened;
    if (what == "corrupt-bytes") peers_.front().traffic->expectDamage();
    return meanwhile([&] { return fault_line_->inject(what); });
}

Status Stage::openFaultLine() {
    fault_line_.reset();
    const auto config = loadConfig(options_.engine.common);
    if (!config) return config.status();
    const auto desc = session_->engine().getSegmentDescByID(peers_.front().segment);
    if (!desc) return desc.status();
    auto line = FaultLine::open(config->config(), **desc);
    if (!line) return line.status();
    fault_line_ = std::move(*line);
    return Status::ok();
}

Status Stage::setStorm(const std::string& what) {
    if (what != "deadline" && what != "cancel" && what != "unregister" && what != "off")
        return {Code::InvalidArgument, "it is deadline, cancel, unregister or off"};
    unregisters_ = what == "unregister";
    peers_.front().traffic->setStorm(what == "deadline" ? Traffic::Storm::Deadlines
                                     : what == "cancel" ? Traffic::Storm::Cancels
                                                        : Traffic::Storm::None);
    return Status::ok();
}

Status Stage::registerAnew() {
    next_unregister_ = Clock::now() + kUnregisterEvery;
    TransferEngine& engine = session_->engine();
    // Once it returned nothing touches the memory; then it may be registered again.
    if (const Status done = engine.unregisterLocalMemory(memory_.data()); !done) return done.withContext("unregister");
    return engine.registerLocalMemory(memory_.data(), memory_.size(), "*", false);
}

Status Stage::actOnRedis(const std::string& what) {
    if (what == "kill") {
        redis_->kill();
        return Status::ok();
    }
    if (what == "start") return redis_->launch();
    if (what == "stop" || what == "continue") {
        what == "stop" ? redis_->stop() : redis_->proceed();
        return Status::ok();
    }
    if (what == "forget") return redis_->forget();
    if (what == "readonly" || what == "writable") return redis_->setReadOnly(what == "readonly");
    if (what == "slow") return redis_->sleepFor(2);
    return {Code::InvalidArgument, "it is kill, start, stop, continue, forget, readonly, writable or slow"};
}

}  // namespace troupe::apps::faults
