#include "apps/faults/stage.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <future>
#include <iterator>
#include <thread>
#include <utility>

#include "apps/faults/injection.h"
#include "apps/support/transfer.h"

namespace troupe::apps::faults {

namespace {

constexpr std::chrono::seconds kStartBound{20};
/// To be well again after the last heal.
constexpr std::chrono::seconds kRecoveryBound{20};
constexpr std::chrono::hours kLongestRun{24};
/// To hear that a stopped target cannot be opened: twice the default of open_timeout.
constexpr std::chrono::seconds kOpenBound{10};
constexpr std::chrono::microseconds kPumpWait{500};
constexpr std::chrono::milliseconds kLookEvery{20};
constexpr std::chrono::milliseconds kUnregisterEvery{20};
/// Before the first fault: until operations complete on every way.
constexpr std::chrono::seconds kWarmBound{60};
/// An engine keeps a connection of a peer that died for a moment.
constexpr std::size_t kSparePerRound = 8;

std::size_t openDescriptors() {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator()));
}

double perSecond(std::uint64_t bytes, Duration time) {
    return time <= Duration::zero() ? 0 : static_cast<double>(bytes) / std::chrono::duration<double>(time).count();
}

double lostShare(double before, double during) { return before <= 0 ? 0 : 1 - during / before; }

}  // namespace

Stage::Stage(const Scenario& scenario, const Options& options, std::function<bool()> tick)
    : scenario_(scenario), options_(options), tick_(std::move(tick)) {}

Stage::~Stage() {
    // Traffic before the engine, the engine before its targets' network.
    for (Peer& peer : peers_) peer.traffic.reset();
    session_.reset();
    initiator_.reset();
    peers_.clear();
}

Result<Round> Stage::run() {
    if (const Status up = open(); !up) return up;
    const std::size_t descriptors = openDescriptors();
    // What was carried while the scene was set is not of the time before the fault.
    began_ = Clock::now();
    bytes_at_begin_ = peers_.front().traffic->tally().bytes;
    bystander_bytes_at_begin_ = bystanderBytes();
    for (const Step& step : scenario_.steps)
        if (const Status done = carryOut(step); !done) return done;
    const auto well = awaitRecovery();
    if (!well) return well.status();
    if (!*well) round_.broken = fmt::format("not well again after {} s", kRecoveryBound.count());
    finish();
    if (const std::size_t now = openDescriptors(); round_.broken.empty() && now > descriptors + kSparePerRound)
        round_.broken = fmt::format("{} descriptors became {}", descriptors, now);
    return round_;
}

Result<bool> Stage::awaitRecovery() {
    return pumpUntil([this] { return hasRecovered(); }, kRecoveryBound);
}

void Stage::beginAnother() {
    fault_at_.reset();
    healed_at_.reset();
    round_.recovered.reset();
}

Status Stage::settle() {
    for (Peer& peer : peers_) peer.rests = true;
    const auto idle = pumpUntil(
        [this] {
            return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.traffic->oldest(); });
        },
        scenario_.deadline + 2 * kDrainBound);
    return idle.status();  // What is still under way then counts as hung.
}

Tally Stage::tally() const {
    Tally sum;
    for (const Peer& peer : peers_) sum.add(peer.traffic->tally());
    return sum;
}

std::optional<Duration> Stage::recovery() const {
    if (round_.recovered) return round_.recovered;
    const auto& success = peers_.front().traffic->firstSuccess();
    if (!healed_at_ || !success) return std::nullopt;
    return *success - *healed_at_;
}

// --- the scene -------------------------------------------------------------------------------------------------------

Status Stage::open() {
    for (const Need need : scenario_.needs) {
        if (need == Need::Network) {
            auto network = Network::create();
            if (!network) return network.status();
            network_.emplace(std::move(*network));
        } else {
            auto redis = RedisProcess::start();
            if (!redis) return redis.status();
            redis_ = std::move(*redis);
        }
    }
    EngineArguments arguments = options_.engine;
    arguments.common.settings.insert(arguments.common.settings.begin(), scenario_.settings.begin(),
                                     scenario_.settings.end());
    if (redis_) arguments.metadata = redis_->uri();
    if (network_) arguments.host = network_->hereAddress();
    auto session = Session::start(completed(arguments));
    if (!session) return session.status();
    session_ = std::move(*session);

    const std::uint64_t bytes = Traffic::localBytes(options_.traffic);
    const auto memory = session_->addMemory(bytes * (1 + scenario_.bystanders), false, false);
    if (!memory) return memory.status();
    memory_ = *memory;
    for (unsigned i = 0; i <= scenario_.bystanders; ++i)
        if (const Status added = addPeer(i); !added) return added;
    const auto warm = pumpUntil(
        [this] {
            return std::all_of(peers_.begin(), peers_.end(),
                               [](const Peer& peer) { return peer.traffic->tally().completed > 0; });
        },
        kWarmBound);
    if (!warm) return warm.status();
    return *warm ? Status::ok() : Status(Code::Timeout, "nothing completed, and nothing was broken yet");
}

Status Stage::addPeer(unsigned number) {
    Target::Options target;
    target.transport = options_.engine.transport;
    target.settings = scenario_.settings;
    target.settings.insert(target.settings.end(), options_.engine.common.settings.begin(),
                           options_.engine.common.settings.end());
    if (redis_) {
        target.metadata = redis_->uri();
        target.name = fmt::format("target-{}", number);
    }
    if (network_) {
        target.network = &*network_;
        target.host = network_->thereAddress();
    }
    Peer peer;
    peer.target = std::make_unique<Target>(std::move(target));
    if (const Status launched = peer.target->launch(); !launched) return launched;
    if (const Status up = waitUp(*peer.target); !up) return up;
    Traffic::Options traffic = options_.traffic;
    traffic.deadline = scenario_.deadline;
    traffic.seed += number;
    const std::uint64_t bytes = Traffic::localBytes(traffic);
    peer.traffic = std::make_unique<Traffic>(session_->engine(), memory_.subspan(number * bytes, bytes), traffic);
    const auto segment = session_->engine().openSegment(peer.target->segment());
    if (!segment) return segment.status();
    peer.segment = *segment;
    if (const Status aimed = aim(peer); !aimed) return aimed;
    peers_.push_back(std::move(peer));
    return Status::ok();
}

Status Stage::aim(Peer& peer) {
    const std::uint64_t wanted = options_.traffic.block * peer.traffic->blocks();
    if (peer.target->memory().length < wanted)
        return {Code::InvalidArgument, fmt::format("blocks of {} bytes, {} at a time, need {} bytes at the target",
                                                   options_.traffic.block, options_.traffic.inflight, wanted)};
    peer.traffic->aim(peer.segment, peer.target->memory());
    return Status::ok();
}

Status Stage::waitUp(Target& target) {
    Status failed;
    const auto up = pumpUntil(
        [&] {
            const auto is_up = target.isUp();
            if (!is_up) failed = is_up.status();
            return !is_up || *is_up;
        },
        kStartBound);
    if (!up) return up.status();
    if (!failed) return failed;
    return *up ? Status::ok() : Status(Code::Timeout, "the target did not start in time");
}

// --- time ------------------------------------------------------------------------------------------------------------

Result<bool> Stage::pumpUntil(const std::function<bool()>& done, Duration bound) {
    const TimePoint limit = Clock::now() + bound;
    for (;;) {
        if (done()) return true;
        const TimePoint now = Clock::now();
        if (now >= limit) return false;
        if (!tick_()) return Status(Code::Canceled, "stopped");
        if (unregisters_ && now >= next_unregister_)
            if (const Status anew = registerAnew(); !anew) return anew;
        lookForRecord(now);
        std::optional<BatchID> oldest;
        for (Peer& peer : peers_) {
            if (peer.rests)
                peer.traffic->drain(now);
            else
                peer.traffic->step(now);
            if (!oldest) oldest = peer.traffic->oldest();
        }
        if (oldest)
            static_cast<void>(session_->engine().waitTransfer(*oldest, kPumpWait));
        else
            std::this_thread::sleep_for(kPumpWait);  // Everything is refused for now.
    }
}

Status Stage::pump(TimePoint until) {
    return pumpUntil([until] { return Clock::now() >= until; }, kLongestRun).status();
}

std::uint64_t Stage::bystanderBytes() const {
    std::uint64_t bytes = 0;
    for (std::size_t i = 1; i < peers_.size(); ++i) bytes += peers_[i].traffic->tally().bytes;
    return bytes;
}

Status Stage::carryOut(const Step& step) {
    if (step.kind == Step::Kind::Run) return pump(Clock::now() + step.time);
    if (step.kind == Step::Kind::Fault && !fault_at_) {
        // With as much under way as there can be.
        for (Peer& peer : peers_) peer.traffic->step(Clock::now());
        fault_at_ = Clock::now();
        bytes_at_fault_ = peers_.front().traffic->tally().bytes;
        bystander_bytes_at_fault_ = bystanderBytes();
        for (Peer& peer : peers_) peer.traffic->markFault(*fault_at_);
    }
    const std::uint64_t bytes = peers_.front().traffic->tally().bytes;
    const std::uint64_t bystander_bytes = bystanderBytes();
    if (const Status done = act(step); !done) return done.withContext(step.action + " " + step.argument);
    if (step.kind == Step::Kind::Heal) {
        healed_at_ = Clock::now();
        bytes_at_heal_ = bytes;
        bystander_bytes_at_heal_ = bystander_bytes;
        for (Peer& peer : peers_) peer.traffic->markHealed(*healed_at_);
    }
    return Status::ok();
}

/// With Redis, well means that the target's record is there again.
void Stage::lookForRecord(TimePoint now) {
    if (!redis_ || !healed_at_ || round_.recovered || now < next_look_) return;
    next_look_ = now + kLookEvery;
    // The default of redis.prefix.
    if (redis_->holds("mooncake/ram/" + peers_.front().target->segment()))
        round_.recovered = Clock::now() - *healed_at_;
}

bool Stage::hasRecovered() const {
    return !healed_at_ || (peers_.front().traffic->firstSuccess() && (!redis_ || round_.recovered));
}

void Stage::finish() {
    const Traffic& victim = *peers_.front().traffic;
    if (fault_at_ && healed_at_) {
        if (victim.firstFailure()) round_.detected = *victim.firstFailure() - *fault_at_;
        if (victim.allEnded()) round_.ended = *victim.allEnded() - *fault_at_;
        if (!redis_ && victim.firstSuccess()) round_.recovered = *victim.firstSuccess() - *healed_at_;
        const Duration before = *fault_at_ - began_;
        const Duration during = *healed_at_ - *fault_at_;
        round_.lost = lostShare(perSecond(bytes_at_fault_ - bytes_at_begin_, before),
                                perSecond(bytes_at_heal_ - bytes_at_fault_, during));
        round_.bystanders_lost = lostShare(perSecond(bystander_bytes_at_fault_ - bystander_bytes_at_begin_, before),
                                           perSecond(bystander_bytes_at_heal_ - bystander_bytes_at_fault_, during));
    }
    for (std::size_t i = 0; i < peers_.size(); ++i) {
        const Tally& tally = peers_[i].traffic->tally();
        round_.tally.add(tally);
        if (i > 0 && tally.failures() > 0 && round_.broken.empty())
            round_.broken = fmt::format("{} operations of a target that nothing happened to failed", tally.failures());
    }
    const Tally& tally = round_.tally;
    if (tally.wrong > 0) round_.broken = tally.first_wrong;
    if (tally.hung > 0 && round_.broken.empty())
        round_.broken =
            fmt::format("{} operations had not ended {} ms after their deadline", tally.hung, kDrainBound.count());
    if (scenario_.survives && tally.failures() > 0 && round_.broken.empty())
        round_.broken = fmt::format("{} operations failed", tally.failures());
}

// --- actions ---------------------------------------------------------------------------------------------------------

Status Stage::act(const Step& step) {
    Target& target = *peers_.front().target;
    const std::string& what = step.argument;
    const auto needs = [&](bool there, const char* what_is_needed) {
        return there ? Status::ok()
                     : Status(Code::InvalidArgument,
                              fmt::format("the scenario does not say that it needs {}", what_is_needed));
    };
    const auto refuse = [&] { return Status(Code::InvalidArgument, "not known"); };
    if (step.action == "kill") {
        target.kill();
        return Status::ok();
    }
    if (step.action == "start") return startTarget();
    if (step.action == "initiator") return actOnInitiator(what);
    if (step.action == "storm") return setStorm(what);
    if (step.action == "open") return what == "stopped" ? openStopped() : refuse();
    if (step.action == "inject") {
        const auto injector = session_->engine().faults();
        return injector ? inject(**injector, what) : injector.status();
    }
    if (step.action == "redis") {
        const Status has_redis = needs(redis_ != nullptr, "\"redis\"");
        return has_redis ? actOnRedis(what) : has_redis;
    }
    if (step.action == "peers") {
        unsigned count = 0;
        const auto [end, error] = std::from_chars(what.data(), what.data() + what.size(), count);
        if (error != std::errc() || end != what.data() + what.size()) return refuse();
        return useShortLivedPeers(count);
    }
    if (step.action == "stop" || step.action == "continue" || step.action == "files") {
        if (!target.runs()) return {Code::InvalidArgument, "the target does not run"};
        if (step.action == "files")
            return what == "few" || what == "many" ? target.setFewFiles(what == "few") : refuse();
        step.action == "stop" ? target.stop() : target.proceed();
        return Status::ok();
    }
    if (const Status has_network = needs(network_.has_value(), "\"network\""); !has_network) return has_network;
    const bool on_or_off = what == "on" || what == "off";
    if (step.action == "drop" && on_or_off) return network_->setDrop(what == "on");
    if (step.action == "reset" && on_or_off) return network_->setReset(what == "on");
    if (step.action == "link" && (what == "up" || what == "down")) return network_->setLink(what == "up");
    if (step.action == "loss") return network_->setLoss(what);
    return refuse();
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
        auto child =
            ChildProcess::start({ownProgramPath(), "verify", peer.target->segment(), "--transport",
                                 options_.engine.transport, "--metadata", redis_ ? redis_->uri() : std::string("p2p")},
                                {.stderr_path = "/dev/null", .environment = {}});
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
        Target::Options options;
        options.size = options_.traffic.block;
        options.transport = options_.engine.transport;
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
    Target::Options options;
    options.size = options_.traffic.block;
    options.transport = options_.engine.transport;
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
