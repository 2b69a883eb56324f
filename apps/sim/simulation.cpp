#include "apps/sim/simulation.h"

#include <algorithm>
#include <utility>

namespace troupe::sim {

namespace {

constexpr auto kLongestAct = 3 * kMillisecond;

// Percent of the seeds in which transports are uninstalled and installed again.
constexpr std::uint64_t kChangesTransports = 25;

/// Between two looks whether all is well again.
constexpr Duration kLook = 5 * kMillisecond;

// How long applications go on with a peer that has fallen silent, so that their windows are full of what never ends.
constexpr auto kLongestUnaware = 100 * kMillisecond;
// Until everybody was told: keepalive_timeout, an interval, a failed attempt to connect, and a pause of the process.
constexpr auto kNoticed = 2000 * kMillisecond;
// And until what waited for it has ended: more than what Workload allows.
constexpr auto kEnded = 450 * kMillisecond;

int drawHosts(Random& random) { return static_cast<int>(2 + random.below(kMaxHosts - 1)); }

}  // namespace

Outcome simulate(caf::actor_system& system, std::uint64_t seed, bool tracing) {
    Simulation simulation(system, seed, tracing);
    return simulation.run();
}

Simulation::Simulation(caf::actor_system& system, std::uint64_t seed, bool tracing)
    : world_(seed, tracing),
      network_(world_),
      ledger_(world_, kMaxHosts),
      hosts_(static_cast<std::size_t>(drawHosts(world_.random()))),
      deaths_(hosts_.size(), std::vector<TimePoint>(1, kForever)),
      changes_(~seed),
      seed_(seed) {
    site_.system = &system;
    site_.world = &world_;
    site_.network = &network_;
    site_.ledger = &ledger_;
    drawSetting();
    world_.after_step = [this](SimLoop& loop) {
        Host& host = hosts_[static_cast<std::size_t>(loop.seat().host)];
        if (host.process) host.process->checkCredit(loop);
        if (host.workload) host.workload->observe();
    };
}

Simulation::~Simulation() {
    world_.after_step = nullptr;
    for (std::size_t i = 0; i < hosts_.size(); ++i)
        if (hosts_[i].process) endProcess(static_cast<int>(i), true);
}

void Simulation::drawSetting() {
    Random& random = world_.random();
    Config& config = site_.config;
    // Times are short, so that much happens in little; their proportions are those of the defaults.
    config.keepalive_interval = std::chrono::milliseconds(50);
    config.keepalive_timeout = std::chrono::milliseconds(150);
    config.connect_timeout = std::chrono::milliseconds(200);
    config.handshake_timeout = std::chrono::milliseconds(150);
    config.open_timeout = std::chrono::milliseconds(500);
    config.transfer_timeout = std::chrono::milliseconds(2000);
    config.unregister_timeout = std::chrono::milliseconds(300);
    config.lease_ttl = std::chrono::seconds(1 + random.below(3));
    site_.data_loops = static_cast<unsigned>(1 + random.below(3));
    if (random.chance(50)) site_.store = std::make_shared<InprocDirectory>();
    const unsigned transports = random.chance(50) ? 2 : 1;
    for (unsigned i = 0; i < transports * site_.data_loops; ++i) site_.characters.push_back(drawCharacter());
    // A few kinds of faults at a time: all of them at once leave nothing standing on which a defect would show.
    const std::uint64_t kinds = random.below(6);
    for (std::uint64_t i = 0; i < kinds; ++i)
        faults_.push_back(static_cast<Fault>(random.below(static_cast<std::uint64_t>(kFaults))));
    between_faults_ = world_.span(5 * kMillisecond, 150 * kMillisecond);
    setting_ = fmt::format("{} engines of {} data loops and {} transports, {}, faults:", hosts_.size(),
                           site_.data_loops, transports, site_.store ? "a store" : "p2p");
    for (const Fault fault : faults_) setting_ += fmt::format(" {}", nameOf(fault));
    if (changes_.chance(kChangesTransports)) {
        site_.changes = &changes_;
        site_.stays.resize(transports);
        if (transports > 1 && changes_.chance(50)) site_.stays[changes_.below(transports)] = true;
        for (unsigned i = 0; i < transports; ++i)
            if (!site_.stays[i]) setting_ += fmt::format("; transport {} comes and goes", i);
    }
    world_.say("{}", setting_);
}

NicCharacter Simulation::drawCharacter() {
    Random& random = world_.random();
    NicCharacter character;
    character.slice_bytes = 128u << random.below(4);
    character.merge_bytes = random.chance(70) ? character.slice_bytes : 0;
    character.window_bytes = character.slice_bytes * (1 + random.below(8));
    character.window_requests = static_cast<std::uint32_t>(1 + random.below(16));
    character.patience = world_.span(kMillisecond, 10 * kMillisecond);
    character.attempts = random.chance(30) ? 0 : static_cast<unsigned>(2 + random.below(5));
    if (random.chance(30)) character.lost_completions = static_cast<unsigned>(1 + random.below(30));
    if (random.chance(30)) character.late = static_cast<unsigned>(random.below(60));
    if (random.chance(50)) character.never = static_cast<unsigned>(random.below(40));
    character.fences_all = random.chance(50);
    return character;
}

// --- processes ---------------------------------------------------------------------------------------------------

void Simulation::startProcess(int at) {
    Host& host = hosts_[static_cast<std::size_t>(at)];
    if (host.process) return;
    ++host.starts;
    deaths_[static_cast<std::size_t>(at)].push_back(kForever);
    host.process = std::make_unique<Process>(site_, at, host.starts);
    host.workload = std::make_unique<Workload>(site_, *host.process, static_cast<int>(hosts_.size()), deaths_);
    if (calm_) host.workload->calmDown();
    scheduleAct(at, host.starts);
}

void Simulation::endProcess(int at, bool power) {
    Host& host = hosts_[static_cast<std::size_t>(at)];
    if (!host.process) return;
    deaths_[static_cast<std::size_t>(at)][host.starts] = world_.now();
    host.process->kill(power);
    host.workload->gone();
    host.workload.reset();
    host.process.reset();
}

void Simulation::scheduleAct(int at, unsigned start) {
    world_.after(world_.span({}, kLongestAct), [this, at, start] {
        Host& host = hosts_[static_cast<std::size_t>(at)];
        if (calm_ || !host.process || host.starts != start) return;
        // An application that is stopped with its process does nothing, either.
        if (!quiet_ && host.process->seat.stands <= world_.now() && host.process->ready()) host.workload->act();
        scheduleAct(at, start);
    });
}

// --- a run -------------------------------------------------------------------------------------------------------

Outcome Simulation::run() {
    const TimePoint began = world_.now();
    for (std::size_t i = 0; i < hosts_.size(); ++i) startProcess(static_cast<int>(i));
    scheduleFault();
    world_.run(world_.now() + world_.span(200 * kMillisecond, 1000 * kMillisecond), {});
    if (world_.chance(30)) silence();
    heal();
    proveThatAllIsWell();
    endInOrder();

    Outcome outcome;
    outcome.seed = seed_;
    outcome.violation = world_.violation();
    outcome.fingerprint = world_.fingerprint();
    outcome.virtual_seconds = std::chrono::duration<double>(world_.now() - began).count();
    outcome.steps = world_.steps();
    outcome.counts = world_.counts();
    outcome.setting = setting_;
    outcome.trace.assign(world_.lines().begin(), world_.lines().end());
    return outcome;
}

/// One host is silent for good, and then nobody does anything: whoever has it open is told, and what waits for it ends,
/// although nothing else would end it.
void Simulation::silence() {
    const int at = anyHost();
    if (world_.failed() || !hosts_[static_cast<std::size_t>(at)].process) return;
    const bool dies = world_.chance(50);
    world_.say("{} is silent from here on", static_cast<char>('A' + at));
    world_.count(dies ? "silent_deaths" : "silent_hosts");
    if (dies)
        endProcess(at, false);
    else
        network_.cutOff(at);
    world_.run(world_.now() + world_.span({}, kLongestUnaware), {});
    quiet_ = true;
    mustReach("a silent peer is not noticed", kNoticed, [&] {
        for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
            const auto& workload = hosts_[static_cast<std::size_t>(host)].workload;
            for (int other = 0; workload && other < static_cast<int>(hosts_.size()); ++other)
                if ((host == at || other == at) && workload->believesUp(other)) return false;
        }
        return true;
    });
    if (!world_.failed()) world_.run(world_.now() + kEnded, {});
    for (const Host& host : hosts_)
        if (host.workload) host.workload->observe();
    quiet_ = false;
}

void Simulation::heal() {
    world_.say("everything heals");
    calm_ = true;
    network_.heal();
    if (site_.store) {
        site_.store->setDelay({});
        site_.store->setOutage(false);
    }
    for (std::size_t i = 0; i < hosts_.size(); ++i) {
        startProcess(static_cast<int>(i));
        hosts_[i].process->seat.slowness = 1;
        hosts_[i].process->seat.stands = std::min(hosts_[i].process->seat.stands, world_.now());
        hosts_[i].workload->calmDown();
    }
}

void Simulation::mustReach(const std::string& what, Duration bound, const std::function<bool()>& reached) {
    const TimePoint limit = world_.now() + bound;
    bool there = reached();
    // Asked by the clock, not by the steps: engines that have nothing to do make none, and asking may give them
    // something.
    while (!there && !world_.failed() && world_.now() < limit) {
        world_.run(std::min(limit, world_.now() + kLook), {});
        there = reached();
    }
    if (!there) world_.fail(what);
}

void Simulation::proveThatAllIsWell() {
    const auto all = [this](const std::function<bool(Workload&)>& holds) {
        return std::all_of(hosts_.begin(), hosts_.end(), [&](const Host& host) { return holds(*host.workload); });
    };
    mustReach("tasks have not ended", std::chrono::seconds(10),
              [&] { return all([](Workload& each) { return each.process().ready() && each.idle(); }); });
    if (world_.failed()) return;
    // Peers that could not be found are found again, once and for all.
    mustReach("not every peer can be opened, or memory registered, though nothing is wrong any more",
              std::chrono::seconds(20), [&] {
                  return all([](Workload& each) {
                      each.mend();
                      return each.mended();
                  });
              });
    if (world_.failed()) return;
    // A peer may have been restarted a moment ago, so one round may fail, or go by the next transport.
    mustReach("a path does not work, or the preferred transport is not used again, though nothing is wrong any more",
              std::chrono::seconds(20), [&] {
                  return all([](Workload& each) {
                      each.mend();
                      each.visitAll();
                      return each.visitedAll();
                  });
              });
    mustReach("tasks have not ended", std::chrono::seconds(5),
              [&] { return all([](Workload& each) { return each.idle(); }); });
    if (world_.failed()) return;
    ledger_.compareAll();
    for (const Host& host : hosts_) host.process->checkNothingLeft();
    if (site_.store && site_.store->names().size() != hosts_.size())
        mustReach("a live engine is not in the store", std::chrono::seconds(5),
                  [&] { return site_.store->names().size() == hosts_.size(); });
}

void Simulation::endInOrder() {
    if (world_.failed()) return;
    for (const Host& host : hosts_) host.workload->closeAll();
    mustReach("segments are not closed", std::chrono::seconds(1), [&] {
        return std::all_of(hosts_.begin(), hosts_.end(), [](const Host& host) { return host.workload->nothingOpen(); });
    });
    std::string open;
    mustReach("control connections are left, and no segment is open", std::chrono::seconds(1), [&] {
        open = network_.openEnds();
        return open.empty();
    });
    if (!open.empty()) world_.say("{}", open);
    mustReach("Nics have paths to peers, and no segment is open", std::chrono::seconds(1), [&] {
        return std::all_of(hosts_.begin(), hosts_.end(), [](const Host& host) { return !host.process->hasPaths(); });
    });
    for (const Host& host : hosts_) {
        host.workload->freeAll();
        host.process->shutDown();
    }
    mustReach("engines do not end", std::chrono::seconds(3), [&] {
        return std::all_of(hosts_.begin(), hosts_.end(), [](const Host& host) { return host.process->ended(); });
    });
    if (world_.failed()) return;
    for (const Host& host : hosts_)
        if (!host.process->quarantine->empty()) world_.fail("the Nics have ended, and memory is in quarantine");
    open = network_.openEnds();
    if (!open.empty()) world_.fail("control connections are left after all engines ended: " + open);
    if (site_.store && !site_.store->names().empty())
        world_.fail("the store has records of engines that ended in order");
}

}  // namespace troupe::sim
