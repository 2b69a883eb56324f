#include "apps/sim/process.h"

#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include <caf/actor_cast.hpp>
#include <caf/behavior.hpp>
#include <caf/exit_reason.hpp>
#include <caf/send.hpp>

#include "actors/batch_tracker.h"
#include "actors/nic_worker.h"
#include "base/incarnation.h"

namespace troupe::sim {

namespace {

// As in engine_life.cpp.
constexpr auto kDrainBound = std::chrono::seconds(2);

// How often a name may be refused that nobody alive has, for a clock that jumped or a store that was away in the
// middle. A lease that has to end by itself takes many more.
constexpr unsigned kMostRefused = 6;

/// What the engine says goes into the trace; a critical message is a violation.
class TraceSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
  public:
    TraceSink(World& world, std::string label) : world_(world), label_(std::move(label)) {}

  protected:
    void sink_it_(const spdlog::details::log_msg& message) override {
        const std::string text(message.payload.data(), message.payload.size());
        world_.say("{} log: {}", label_, text);
        if (message.level >= spdlog::level::critical) world_.fail(label_ + ": " + text);
    }
    void flush_() override {}

  private:
    World& world_;
    const std::string label_;
};

/// A subscriber of the application's.
class Ear final : public HostedActor {
  public:
    Ear(caf::actor_config& config, Loop& loop, std::function<void(const PeerEvent&)> heard, Logger log)
        : HostedActor(config, loop, std::move(log)), heard_(std::move(heard)) {}

  protected:
    caf::behavior make_behavior() override {
        return {[this](const PeerEvent& event) { heard_(event); }};
    }

  private:
    std::function<void(const PeerEvent&)> heard_;
};

const TrackerLogic& mindOf(const caf::actor& tracker) { return caf::actor_cast<BatchTracker*>(tracker)->logic(); }

Incarnation drawIncarnation(World& world) {
    Incarnation drawn;
    for (auto& byte : drawn.bytes) byte = static_cast<std::uint8_t>(world.random().next());
    return drawn;
}

}  // namespace

Process::Process(const Site& site, int host, unsigned its_start)
    : start(its_start), site_(site), removing_(Ledger::kRegions, false) {
    World& world = *site.world;
    seat.host = host;
    seat.label = fmt::format("{}{}", static_cast<char>('A' + host), start);
    seat.ahead = world.span({}, 500 * kMillisecond);
    log_ = std::make_shared<spdlog::logger>("sim", std::make_shared<TraceSink>(world, seat.label));
    log_->set_level(world.tracing() ? spdlog::level::debug : spdlog::level::critical);
    quarantine = std::make_unique<Quarantine>(regions, log_);
    incarnation = drawIncarnation(world);
    const Endpoint control{hostAddress(host), kControlPort};
    name = site.store ? fmt::format("segment-{}", static_cast<char>('A' + host)) : control.toString();
    world.say("{} starts", seat.label);

    control_loop_ = std::make_unique<SimLoop>(*site.system, world, *site.network, seat, "ctl");
    for (unsigned i = 0; i < site.data_loops; ++i)
        data_loops_.push_back(std::make_unique<SimLoop>(*site.system, world, *site.network, seat, "data"));
    site.ledger->processStarted(host, start);
    site.network->setPower(host, true);

    Supervisor::Plan plan;
    plan.control_loop = control_loop_.get();
    for (const auto& loop : data_loops_) plan.data_loops.push_back(loop.get());
    plan.local.name = name;
    plan.local.incarnation = incarnation;
    // Of one machine, as far as anybody asks: whether an address is another machine's too only the real one could say.
    plan.local.boot_id = readBootId();
    plan.local.control = control;
    if (site.store) {
        auto store = std::make_unique<SimStore>(site.store, *control_loop_);
        store_ = store->link();
        static_cast<void>(store->start(*control_loop_));
        plan.store = std::move(store);
    }
    plan.listener = site.network->listen(*control_loop_);
    plan.regions = &regions;
    plan.batches = &batches;
    plan.board = &board;
    plan.quarantine = quarantine.get();
    plan.settings = &site.config;
    plan.on_ended = [this](const Status&) { ended_ = true; };
    plan.on_data_plane_gone = [this](const Status& why) { batches.endAll(why); };
    plan.on_fatal = [this](const Status& why) { site_.world->fail(seat.label + ": " + why.toString()); };
    supervisor_ = spawnHosted<Supervisor>(*control_loop_, std::move(plan), log_);
    root_ = static_cast<Supervisor*>(caf::actor_cast<caf::abstract_actor*>(supervisor_));
    directory_ = root_->directory();
    trackers_ = root_->trackers();

    const auto heard = [this](const PeerEvent& event) {
        if (event.state == PeerState::Connecting) return site_.world->count("heard_connecting");
        if (event.state == PeerState::Suspect) {
            // Up or down follows.
            site_.world->count("heard_suspect");
            if (!up[event.segment])
                site_.world->fail(seat.label + " hears that " + event.name + ", which is down, is suspect");
            return;
        }
        site_.world->say("{} hears that {} is {}", seat.label, event.name,
                         event.state == PeerState::Up ? "up" : "down: " + event.cause.toString());
        up[event.segment] = event.state == PeerState::Up;
        if (event.state == PeerState::Down)
            last_down[event.segment] = {control_loop_->steppedBefore(), site_.world->now()};
    };
    ear_ = spawnHosted<Ear>(*control_loop_, heard, log_);
    caf::anon_send(directory_, SubscribePeers{ear_});

    const std::size_t count = site.characters.size() / site.data_loops;
    installs_.resize(count);
    workers_of_.resize(count);
    for (std::size_t i = 0; i < count; ++i) transports.push_back(makeTransport(i));
    for (unsigned i = 0; i < Ledger::kRegions; ++i) registerRegion(i);
    for (std::size_t i = 0; i < transports.size(); ++i)
        handOver(i, transports[i], [this](const Status& done) { installed_ += done.isOk() ? 1 : 0; });
    claimName();
}

/// As an application that calls init again until it succeeds: the name may still be a predecessor's.
void Process::claimName() {
    publish([this](const Status& taken) {
        if (taken || taken.code() == Code::Canceled) return;
        if (taken.code() == Code::AlreadyExists && ++refused_ > kMostRefused)
            return site_.world->fail(seat.label + " does not get its dead predecessor's name: " + taken.toString());
        control_loop_->runAt(control_loop_->now() + 100 * kMillisecond, [this] {
            if (directory_) claimName();
        });
    });
}

Process::~Process() {
    if (!ended_) kill(true);
    die();
    runToTheEnd();
    ear_ = nullptr;
    supervisor_ = nullptr;
    directory_ = nullptr;
    trackers_.clear();
}

// --- transports --------------------------------------------------------------------------------------------------

std::shared_ptr<SimTransport> Process::makeTransport(std::size_t which) {
    const auto first = static_cast<unsigned>(which) * site_.data_loops;
    const auto from = site_.characters.begin() + first;
    auto made = std::make_shared<SimTransport>(
        SimTransport::Place{site_.world, site_.network, site_.ledger, &seat, which == 0 ? "sim" : "spare", first,
                            installs_[which]++, std::vector<NicCharacter>(from, from + site_.data_loops), &nics});
    static_cast<void>(
        made->install({site_.config, regions, incarnation, hostAddress(seat.host), site_.data_loops, log_}));
    return made;
}

/// To the Supervisor, which gives each Nic the next number.
void Process::handOver(std::size_t which, std::shared_ptr<SimTransport> transport, std::function<void(Status)> reply) {
    workers_of_[which] = 0;
    for (unsigned i = 0; i < site_.data_loops; ++i) workers_of_[which] |= std::uint64_t{1} << workers_++;
    caf::anon_send(supervisor_, InstallTransport{std::move(transport), static_cast<int>(which), std::move(reply)});
}

bool Process::mayChangeTransports() const {
    return !changing_ && std::none_of(removing_.begin(), removing_.end(), [](bool removing) { return removing; });
}

void Process::uninstall(std::size_t which, std::function<void(Status)> reply) {
    if (batches.anyRunning()) return reply(Status(Code::BatchBusy, "batches are running"));
    changing_ = true;
    site_.world->say("{} uninstalls {}", seat.label, transports[which]->name());
    caf::anon_send(supervisor_, UninstallTransport{transports[which]->name(),
                                                   [this, which, answer = std::move(reply)](const Status& done) {
                                                       changing_ = false;
                                                       if (done) expectGone(which);
                                                       answer(done);
                                                   }});
}

/// The engine says that it is not there any more.
void Process::expectGone(std::size_t which) {
    SimTransport& transport = *transports[which];
    site_.world->say("{} uninstalled {}", seat.label, transport.name());
    const std::size_t first = which * site_.data_loops;
    for (std::size_t i = first; i < first + site_.data_loops; ++i)
        if (nics[i] != nullptr)
            site_.world->fail(
                fmt::format("{}: {} lives, and its transport was uninstalled", seat.label, nics[i]->name()));
    for (std::uint32_t i = 0; i < root_->workers().size(); ++i)
        if ((workers_of_[which] >> i & 1) != 0 && root_->workers()[i])
            site_.world->fail(fmt::format("{}: worker {} is there, and its transport was uninstalled", seat.label, i));
    for (const Region& region : regions.regions().load()->all()) static_cast<void>(transport.unregisterMemory(region));
    transports[which].reset();
}

void Process::install(std::size_t which, unsigned refusals, std::function<void(Status)> reply) {
    changing_ = true;
    const auto transport = makeTransport(which);
    transport->refusals = refusals;
    site_.world->say("{} installs {} again", seat.label, transport->name());
    for (const Region& region : regions.regions().load()->all()) {
        if (const Status taken = transport->registerMemory(region); taken) continue;
        changing_ = false;
        site_.world->say("{} does not install {}: a region is refused", seat.label, transport->name());
        return reply(Status(Code::ResourceExhausted, "a region could not be registered"));
    }
    transport->refusals = 0;
    handOver(which, transport, [this, which, transport, answer = std::move(reply)](const Status& done) {
        changing_ = false;
        if (done) transports[which] = transport;
        answer(done);
    });
}

// --- what an application calls -----------------------------------------------------------------------------------

void Process::registerRegion(unsigned index) {
    if (changing_ || removing_[index] || site_.ledger->registered(seat.host, index)) return;
    Region wanted;
    wanted.range = Ledger::region(seat.host, index);
    const auto region = regions.reserve(wanted);
    if (!region) return site_.world->fail(seat.label + ": reserve: " + region.status().toString());
    for (std::size_t i = 0; i < transports.size(); ++i) {
        if (!transports[i] || transports[i]->registerMemory(*region)) continue;
        while (i-- > 0)
            if (transports[i]) static_cast<void>(transports[i]->unregisterMemory(*region));
        return regions.remove(region->id);
    }
    site_.ledger->setRegistered(seat.host, index, true);
    regions.commit(region->id);
    caf::anon_send(directory_, PublishLocal{});
}

void Process::unregisterRegion(unsigned index) {
    if (changing_ || removing_[index] || !site_.ledger->registered(seat.host, index)) return;
    const auto region = regions.beginRemoval(Ledger::region(seat.host, index).addr);
    if (!region) return site_.world->fail(seat.label + ": beginRemoval: " + region.status().toString());
    removing_[index] = true;
    site_.world->say("{} unregisters region {}", seat.label, index);
    const auto answered = [this, index, region = *region](const Result<std::vector<BatchID>>& users) {
        removing_[index] = false;
        if (!users || !users->empty()) {
            site_.world->count("unregister_busy");
            if (!quarantine->heldIn(region.range, control_loop_->now())) site_.world->count("unregister_quarantined");
            return regions.cancelRemoval(region.id);
        }
        for (const SimNic* nic : nics)
            if (nic != nullptr && nic->lateIn(region.range))
                site_.world->fail(fmt::format("{}: region {} was unregistered, and {} may still write there",
                                              seat.label, index, nic->name()));
        site_.world->count("unregistered");
        site_.world->say("{} unregistered region {}", seat.label, index);
        for (const auto& [key, task] : site_.ledger->tasks()) {
            const bool mine = task->host == seat.host && task->start == start && !task->terminal();
            if (mine && region.range.overlaps({task->local, task->length}) && !isTerminal(task->status().s))
                site_.world->fail(describe(*task) + " runs, and the region of its buffer was unregistered");
        }
        for (const auto& transport : transports)
            if (transport) static_cast<void>(transport->unregisterMemory(region));
        regions.remove(region.id);
        site_.ledger->setRegistered(seat.host, index, false);
        caf::anon_send(directory_, PublishLocal{});
    };
    caf::anon_send(supervisor_, QuiesceRanges{region->range, regions.regions().version(),
                                              control_loop_->now() + site_.config.unregister_timeout, answered});
}

void Process::open(const std::string& segment, std::function<void(Result<SegmentID>)> reply) {
    caf::anon_send(directory_,
                   OpenSegment{segment, control_loop_->now() + site_.config.open_timeout, std::move(reply)});
}

void Process::close(SegmentID segment, std::function<void(Status)> reply) {
    caf::anon_send(directory_, CloseSegment{segment, std::move(reply)});
}

void Process::probe(SegmentID segment, std::function<void(Status)> reply) {
    caf::anon_send(directory_, ProbePeer{segment, control_loop_->now() + 100 * kMillisecond, std::move(reply)});
}

void Process::publish(std::function<void(Status)> reply) { caf::anon_send(directory_, PublishLocal{std::move(reply)}); }

/// As Loop::deliver: by a caller that takes the turn, or through the mailbox.
template <class Message>
void Process::hand(std::uint32_t tracker, Message message) {
    auto& to = *caf::actor_cast<BatchTracker*>(trackers_[tracker]);
    SimLoop& loop = *data_loops_[tracker];
    // Nobody but the loop's own thread runs it while that is in the middle of a step.
    if (loop.taken() || site_.world->chance(50)) return tell(to, message);
    loop.step([&] { tell(to, message); });
}

void Process::submit(const SubmitTasks& tasks, std::uint32_t tracker) { hand(tracker, tasks); }

void Process::endTasks(const EndTasks& request, std::uint32_t tracker) { hand(tracker, request); }

void Process::shutDown() {
    site_.world->say("{} shuts down", seat.label);
    caf::anon_send_exit(ear_, caf::exit_reason::user_shutdown);
    caf::anon_send(supervisor_, Shutdown{control_loop_->now() + kDrainBound});
}

// --- the simulation's side ---------------------------------------------------------------------------------------

void Process::stopFor(Duration span) { seat.stands = std::max(seat.stands, site_.world->now() + span); }

void Process::kill(bool power) {
    if (std::exchange(killed_, true)) return;
    site_.world->say("{} dies{}", seat.label, power ? "" : ", and its host loses power");
    site_.network->setPower(seat.host, power);
    site_.network->processGone(seat.host);
    site_.ledger->processGone(seat.host);
    if (store_) store_->reset();
    if (ended_) return;
    die();
    caf::anon_send_exit(ear_, caf::exit_reason::user_shutdown);
    caf::anon_send(supervisor_, Shutdown{control_loop_->now() + kDrainBound});
    const TimePoint bound = control_loop_->now() + 2 * kDrainBound;
    for (;;) {
        runToTheEnd();
        if (ended_) return;
        TimePoint next = control_loop_->nextDue();
        for (const auto& loop : data_loops_) next = std::min(next, loop->nextDue());
        if (next > bound) return site_.world->fail(seat.label + " does not end: its actors wait for nothing");
        seat.ahead = std::max(seat.ahead, next - site_.world->now());
    }
}

/// What its loops send to each other arrives at once from here on.
void Process::die() {
    seat.dies = true;
    control_loop_->receiveAll();
    for (const auto& loop : data_loops_) loop->receiveAll();
}

/// All that can run without time passing.
void Process::runToTheEnd() {
    constexpr int kMostSteps = 100'000;
    for (int i = 0; i < kMostSteps; ++i) {
        bool ran = false;
        for (const auto& loop : data_loops_) {
            if (!loop->busy()) continue;
            loop->step();
            ran = true;
        }
        if (control_loop_->busy()) {
            control_loop_->step();
            ran = true;
        }
        if (!ran) return;
    }
    site_.world->fail(seat.label + " runs for ever without time passing");
}

void Process::checkNothingLeft() {
    for (const SimNic* nic : nics)
        if (nic != nullptr && !nic->idle()) site_.world->fail(seat.label + " " + nic->name() + " holds requests");
    // A peer that was restarted, or listens elsewhere now, is reached by another path, and that before it is gone.
    for (const SimNic* nic : nics) {
        if (nic == nullptr) continue;
        std::vector<int> hosts = nic->paths();
        std::sort(hosts.begin(), hosts.end());
        if (const auto twice = std::adjacent_find(hosts.begin(), hosts.end()); twice != hosts.end())
            site_.world->fail(
                fmt::format("{} {} has two paths to {}", seat.label, nic->name(), static_cast<char>('A' + *twice)));
    }
    for (const auto& loop : data_loops_) checkCredit(*loop);
    for (const caf::actor& tracker : trackers_)
        if (!mindOf(tracker).idle()) site_.world->fail(seat.label + ": a tracker has tasks, and there are none");
    for (const caf::actor& worker : root_->workers())
        if (worker && !caf::actor_cast<NicWorker*>(worker)->logic().idle())
            site_.world->fail(seat.label + ": a worker has flights or waits, and there is no task");
    checkQuarantine();
}

bool Process::hasPaths() const {
    return std::any_of(nics.begin(), nics.end(), [this](const SimNic* nic) {
        if (nic == nullptr) return false;
        const std::vector<int> hosts = nic->paths();
        return std::any_of(hosts.begin(), hosts.end(), [this](int host) { return host != seat.host; });
    });
}

void Process::checkCredit(const SimLoop& loop) {
    if (ended_) return;
    for (std::size_t i = 0; i < trackers_.size(); ++i) {
        if (data_loops_[i].get() != &loop) continue;
        const TrackerLogic& mind = mindOf(trackers_[i]);
        const TrackerLogic::Load load = mind.load();
        if (!load.within_windows) site_.world->fail(seat.label + ": a path carries more than its window");
        if (mind.idle() && (load.flights != 0 || load.bytes != 0 || load.waiting != 0))
            site_.world->fail(
                fmt::format("{}: tracker {} has no task, and {} flights of {} bytes are out, work for {} peers waits",
                            seat.label, i, load.flights, load.bytes, load.waiting));
    }
}

void Process::checkQuarantine() {
    std::map<std::string, std::uint64_t> bytes;
    for (const QuarantineEntry& entry : quarantine->list().entries) bytes[entry.nic] += entry.range.length;
    for (const SimNic* nic : nics) {
        if (nic == nullptr) continue;
        if (bytes[nic->name()] != nic->lateBytes())
            site_.world->fail(fmt::format("{} {}: {} bytes are in quarantine, and {} should be", seat.label,
                                          nic->name(), bytes[nic->name()], nic->lateBytes()));
        bytes.erase(nic->name());
    }
    for (const auto& [nic, left] : bytes)
        site_.world->fail(fmt::format("{}: {} bytes of {}, which has ended, are in quarantine", seat.label, left, nic));
}

}  // namespace troupe::sim
