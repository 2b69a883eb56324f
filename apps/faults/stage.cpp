#include "apps/faults/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "apps/support/units.h"

namespace troupe::apps::faults {

namespace {

/// To be well again after the last heal.
constexpr std::chrono::seconds kRecoveryBound{20};
constexpr std::chrono::hours kLongestRun{24};
constexpr std::chrono::microseconds kPumpWait{500};
constexpr std::chrono::milliseconds kLookEvery{20};
/// Before the first fault: until operations complete on every way.
constexpr std::chrono::seconds kWarmBound{60};
/// For a machine that is busy: until what has not ended in time is seen to have not.
constexpr std::chrono::seconds kSettleSlack{2};

double perSecond(std::uint64_t bytes, Duration time) {
    return time <= Duration::zero() ? 0 : static_cast<double>(bytes) / std::chrono::duration<double>(time).count();
}

/// Codes with which a machine refuses what it does not have, or not to this user. Engines have them, too.
bool isRefusal(const Status& status) {
    return status.code() == Code::AccessDenied || status.code() == Code::NotFound || status.code() == Code::Unsupported;
}

/// The machine alone carries it out; no engine is asked.
bool isOfMachine(const Step& step) {
    static constexpr std::array kActions = {"drop", "reset", "link", "loss", "rail", "device", "files", "memory"};
    return std::find(kActions.begin(), kActions.end(), step.action) != kActions.end();
}

double lostShare(double before, double during) { return before <= 0 ? 0 : 1 - during / before; }

}  // namespace

Stage::Stage(const Scenario& scenario, const Options& options, std::function<bool()> tick)
    : scenario_(scenario), options_(options), tick_(std::move(tick)) {}

Stage::~Stage() {
    // Traffic before the engine, the engine before its targets' network.
    for (Peer& peer : peers_) peer.traffic.reset();
    fault_line_.reset();
    session_.reset();
    initiator_.reset();
    peers_.clear();
}

Result<Round> Stage::run() {
    if (const Status up = open(); !up) return up;
    if (const Status noted = noteResources(); !noted) return noted;
    // What was carried while the scene was set is not of the time before the fault.
    began_ = Clock::now();
    bytes_at_begin_ = peers_.front().traffic->tally().bytes;
    bystander_bytes_at_begin_ = bystanderBytes();
    for (const Step& step : scenario_.steps)
        if (const Status done = carryOut(step); !done) return done;
    const auto well = awaitRecovery();
    if (!well) return well.status();
    if (!*well) round_.broken = fmt::format("not well again after {} s", kRecoveryBound.count());
    // What is under way at the end of the steps may be what never ends.
    if (const Status settled = settle(); !settled) return settled;
    finish();
    compareResources();
    return round_;
}

Result<bool> Stage::awaitRecovery() {
    return pumpUntil([this] { return hasRecovered(); }, kRecoveryBound);
}

void Stage::beginAnother() {
    fault_at_.reset();
    healed_at_.reset();
    round_.recovered.reset();
    has_broken_ = false;
}

Status Stage::settle() {
    for (Peer& peer : peers_) peer.rests = true;
    const auto idle = pumpUntil(
        [this] {
            return std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) { return !peer.traffic->oldest(); });
        },
        trafficOptions().longest() + kSettleSlack);
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

Status Stage::meetNeeds() {
    const bool by_rdma = options_.engine.transport == "rdma";
    Status no_rails;
    if (by_rdma) {
        auto rails = Rails::find();
        no_rails = rails.status();
        if (rails) rails_.emplace(std::move(*rails));
    }
    for (const Need need : scenario_.needs) {
        if (need == Need::Redis) {
            auto redis = RedisProcess::start();
            if (!redis) return redis.status();
            redis_ = std::move(*redis);
        } else if (by_rdma) {
            if (!no_rails) return no_rails;
            if (need == Need::Rails && rails_->count() < 2) return {Code::Unsupported, "there is one rail only"};
        } else if (need == Need::Rails) {
            return {Code::Unsupported, "it is about RDMA: --transport rdma"};
        } else {
            auto network = Network::create();
            if (!network) return network.status();
            network_.emplace(std::move(*network));
        }
    }
    return Status::ok();
}

Status Stage::open() {
    if (const Status met = meetNeeds(); !met) {
        machine_lacks_ = isRefusal(met);
        return met;
    }
    EngineArguments arguments = options_.engine;
    std::vector<std::string>& settings = arguments.common.settings;
    settings.insert(settings.begin(), scenario_.settings.begin(), scenario_.settings.end());
    if (rails_) settings.insert(settings.begin(), rails_->settingHere());
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
    // Before anything is broken it is known whether that may be.
    if (breaksTargetsEngine(scenario_))
        if (const Status agreed = openFaultLine(); !agreed) return agreed;
    const auto warm = pumpUntil(
        [this] {
            return std::all_of(peers_.begin(), peers_.end(),
                               [](const Peer& peer) { return peer.traffic->tally().completed > 0; });
        },
        kWarmBound);
    if (!warm) return warm.status();
    return *warm ? Status::ok() : Status(Code::Timeout, "nothing completed, and nothing was broken yet");
}

/// Of every target, whoever it is for.
Target::Options Stage::targetOptions() const {
    Target::Options target;
    target.transport = options_.engine.transport;
    if (rails_) target.settings.push_back(rails_->settingThere());
    return target;
}

Status Stage::launchTarget(Peer& peer, unsigned number) {
    Target::Options target = targetOptions();
    for (const auto* settings : {&scenario_.settings, &options_.engine.common.settings})
        target.settings.insert(target.settings.end(), settings->begin(), settings->end());
    if (breaksTargetsEngine(scenario_))
        target.settings.insert(target.settings.end(), {"faults.enabled=true", "faults.remote=true"});
    if (redis_) {
        target.metadata = redis_->uri();
        target.name = fmt::format("target-{}", number);
    }
    if (network_) {
        target.network = &*network_;
        target.host = network_->thereAddress();
    }
    peer.target = std::make_unique<Target>(std::move(target));
    if (const Status launched = peer.target->launch(); !launched) return launched;
    return waitUp(*peer.target);
}

Status Stage::addPeer(unsigned number) {
    Peer peer;
    if (options_.at.empty())
        if (const Status launched = launchTarget(peer, number); !launched) return launched;
    Traffic::Options traffic = trafficOptions();
    traffic.seed += number;
    const std::uint64_t bytes = Traffic::localBytes(traffic);
    peer.traffic = std::make_unique<Traffic>(session_->engine(), memory_.subspan(number * bytes, bytes), traffic);
    if (rails_) peer.traffic->lookForMoves();
    if (peer.target) {
        const auto segment = session_->engine().openSegment(peer.target->segment());
        if (!segment) return segment.status();
        peer.segment = *segment;
    } else {
        const auto opened = session_->openTarget(options_.at);
        if (!opened) return opened.status();
        peer.segment = opened->segment;
        peer.memory = opened->range;
    }
    if (const Status aimed = aim(peer); !aimed) return aimed;
    peers_.push_back(std::move(peer));
    return Status::ok();
}

Traffic::Options Stage::trafficOptions() const {
    Traffic::Options traffic = options_.traffic;
    traffic.deadline = scenario_.deadline;
    traffic.ends_within = scenario_.ends_within;
    const std::string& transport = options_.engine.transport;
    if (transport == "rdma" || transport == "auto") traffic.drain = kDrainBoundOfRdma;
    return traffic;
}

Status Stage::aim(Peer& peer) {
    const std::uint64_t wanted = options_.traffic.block * peer.traffic->blocks();
    if (peer.target) peer.memory = peer.target->memory();
    if (peer.memory.length < wanted)
        return {Code::InvalidArgument, fmt::format("blocks of {} bytes, {} at a time, need {} bytes at the target",
                                                   options_.traffic.block, options_.traffic.inflight, wanted)};
    peer.traffic->aim(peer.segment, peer.memory);
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
        // The victim, which is the first, is waited for only when nobody else has anything under way: what is on its
        // way to a dead peer would hold up the operations of all.
        std::optional<BatchID> oldest;
        for (auto peer = peers_.rbegin(); peer != peers_.rend(); ++peer) {
            if (peer->rests)
                peer->traffic->drain(now);
            else
                peer->traffic->step(now);
            if (!oldest) oldest = peer->traffic->oldest();
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

/// What bystanders have while nothing is sent to the victim: where all share the same processors, the others have more
/// when it is gone, and that more is no merit of the engine's.
Status Stage::runControl(Duration time) {
    if (fault_at_) return {Code::InvalidArgument, "a control comes before the first fault"};
    peers_.front().rests = true;
    const TimePoint began = Clock::now();
    const std::uint64_t bytes = bystanderBytes();
    if (const Status ran = pump(began + time); !ran) return ran;
    control_ = perSecond(bystanderBytes() - bytes, Clock::now() - began);
    peers_.front().rests = false;
    // What was carried until now is not of the time before the fault.
    began_ = Clock::now();
    bytes_at_begin_ = peers_.front().traffic->tally().bytes;
    bystander_bytes_at_begin_ = bystanderBytes();
    return Status::ok();
}

Status Stage::noteResources() {
    const auto own = ownResources();
    if (!own) return own.status();
    resources_ = *own;
    for (std::size_t i = 1; i < peers_.size(); ++i) {
        const auto of_target = resourcesOf(peers_[i].target->pid());
        if (!of_target) return of_target.status();
        peers_[i].resources = *of_target;
    }
    return Status::ok();
}

void Stage::compareResources() {
    const auto compare = [&](const std::string& whose, const Resources& before, const Resources& after) {
        if (!round_.broken.empty()) return;
        if (after.descriptors > before.descriptors + kDescriptorSlack)
            round_.broken = fmt::format("{} descriptors of {} became {}", before.descriptors, whose, after.descriptors);
        else if (after.memory > before.memory + kMemorySlack)
            round_.broken = fmt::format("{} of memory of {} became {}", formatBytes(before.memory), whose,
                                        formatBytes(after.memory));
    };
    if (const auto own = ownResources()) {
        round_.memory_grown = static_cast<std::int64_t>(own->memory) - static_cast<std::int64_t>(resources_.memory);
        round_.descriptors_grown =
            static_cast<std::int64_t>(own->descriptors) - static_cast<std::int64_t>(resources_.descriptors);
        compare("this process", resources_, *own);
    }
    for (const Peer& peer : peers_) {
        if (!peer.resources) continue;
        if (const auto now = resourcesOf(peer.target->pid()))
            compare("a target that nothing happened to", *peer.resources, *now);
    }
}

std::uint64_t Stage::bystanderBytes() const {
    std::uint64_t bytes = 0;
    for (std::size_t i = 1; i < peers_.size(); ++i) bytes += peers_[i].traffic->tally().bytes;
    return bytes;
}

/// Times, and what is carried while the fault lasts, count from now.
void Stage::noteFault() {
    fault_at_ = Clock::now();
    bytes_at_fault_ = peers_.front().traffic->tally().bytes;
    bystander_bytes_at_fault_ = bystanderBytes();
}

Status Stage::carryOut(const Step& step) {
    if (step.kind == Step::Kind::Run) return pump(Clock::now() + step.time);
    if (step.kind == Step::Kind::Control) return runControl(step.time);
    const bool first_fault = step.kind == Step::Kind::Fault && !fault_at_;
    if (first_fault) {
        // With as much under way as there can be.
        for (Peer& peer : peers_) peer.traffic->step(Clock::now());
        noteFault();
        for (Peer& peer : peers_) peer.traffic->markFault(*fault_at_);
    }
    const TimePoint began = Clock::now();
    const std::uint64_t bytes = peers_.front().traffic->tally().bytes;
    const std::uint64_t bystander_bytes = bystanderBytes();
    if (const Status done = act(step); !done) {
        // A module of the kernel, say, is missing from the begin on, whatever else was broken before.
        machine_lacks_ = isOfMachine(step) && isRefusal(done) && (!has_broken_ || done.code() == Code::Unsupported);
        return done.withContext(step.argument.empty() ? step.action : step.action + " " + step.argument);
    }
    has_broken_ = has_broken_ || step.kind == Step::Kind::Fault;
    if (first_fault && step.action == "rail") {
        // Until the program that takes the link down has ended all goes on as before.
        noteFault();
        for (Peer& peer : peers_) peer.traffic->faultWorks(*fault_at_);
    }
    if (step.kind == Step::Kind::Heal) {
        healed_at_ = Clock::now();
        // A process that is started takes its share of the processors, and that is not of the fault's time.
        lasted_until_ = began;
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
        // A link may be down a moment before the program that took it down has ended, from where times count.
        if (victim.firstFailure()) round_.detected = std::max(Duration::zero(), *victim.firstFailure() - *fault_at_);
        if (victim.allEnded()) round_.ended = *victim.allEnded() - *fault_at_;
        round_.moved = victim.firstMove();
        if (!redis_ && victim.firstSuccess()) round_.recovered = *victim.firstSuccess() - *healed_at_;
        const Duration before = *fault_at_ - began_;
        const Duration during = lasted_until_ - *fault_at_;
        round_.lost = lostShare(perSecond(bytes_at_fault_ - bytes_at_begin_, before),
                                perSecond(bytes_at_heal_ - bytes_at_fault_, during));
        round_.bystanders_lost =
            lostShare(control_.value_or(perSecond(bystander_bytes_at_fault_ - bystander_bytes_at_begin_, before)),
                      perSecond(bystander_bytes_at_heal_ - bystander_bytes_at_fault_, during));
    }
    std::size_t under_way = 0;
    bool some_never_ended = false;
    for (std::size_t i = 0; i < peers_.size(); ++i) {
        const Tally& tally = peers_[i].traffic->tally();
        round_.tally.add(tally);
        under_way += peers_[i].traffic->running();
        some_never_ended = some_never_ended || (fault_at_ && !peers_[i].traffic->allEnded());
        if (i > 0 && tally.failures() > 0 && round_.broken.empty())
            round_.broken = fmt::format("{} operations of a target that nothing happened to failed", tally.failures());
    }
    const Tally& tally = round_.tally;
    if (tally.wrong > 0) round_.broken = tally.first_wrong;
    // Whatever else broke: what hangs is often why.
    if (tally.wrong == 0 && tally.hung > 0)
        round_.broken = fmt::format("{} had not ended {} ms after {} submit", counted(tally.hung, "operation"),
                                    trafficOptions().longest().count(), tally.hung == 1 ? "its" : "their");
    if (tally.wrong == 0 && tally.hung == 0 && under_way > 0)
        round_.broken = fmt::format("{} still under way at the end", counted(under_way, "operation"));
    if (some_never_ended && round_.broken.empty())
        round_.broken = "it is not known when what was under way at the fault ended";
    if (scenario_.survives && tally.failures() > 0 && round_.broken.empty())
        round_.broken = fmt::format("{} operations failed", tally.failures());
}

}  // namespace troupe::apps::faults
