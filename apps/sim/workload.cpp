#include "apps/sim/workload.h"

#include <algorithm>
#include <utility>

namespace troupe::sim {

namespace {

constexpr std::uint32_t kTasksPerBatch = 16;
constexpr std::ptrdiff_t kMostBatches = 12;

// Beyond any bound of the engine's: messages on their way, loops that are slow, the grain of deadlines.
constexpr auto kSlack = 400 * kMillisecond;

// A peer that died is down after keepalive_timeout, an interval and a failed attempt to connect; see Simulation.
constexpr auto kPeerDownBound = 1000 * kMillisecond;

// More than a thread is interrupted for (sim_loop.cpp).
constexpr auto kBoardAhead = 5 * kMillisecond;

// Percent of acts, in seeds that have it.
constexpr std::uint64_t kUninstalls = 2;
constexpr std::uint64_t kInstallsAgain = 10;

// Percent of installs, and of the regions that are registered for such a one, that are refused.
constexpr std::uint64_t kRefusesRegions = 20;
constexpr unsigned kRefusals = 50;

}  // namespace

Workload::Workload(const Site& site, Process& process, int hosts, std::vector<std::vector<TimePoint>>& deaths)
    : site_(site),
      world_(*site.world),
      process_(process),
      hosts_(hosts),
      deaths_(deaths),
      segments_(static_cast<std::size_t>(hosts)),
      visited_(static_cast<std::size_t>(hosts), false) {
    segments_[static_cast<std::size_t>(process.seat.host)].id = kLocalSegmentID;
}

std::string Workload::nameOf(int host) const {
    if (site_.store) return fmt::format("segment-{}", static_cast<char>('A' + host));
    return Endpoint{hostAddress(host), kControlPort}.toString();
}

// --- what it does ------------------------------------------------------------------------------------------------

void Workload::act() {
    if (Segment& own = segments_[static_cast<std::size_t>(process_.seat.host)]; own.since == TimePoint{})
        own.since = world_.now();
    if (site_.changes != nullptr && changeTransports()) return;
    const std::uint64_t what = world_.random().below(100);
    if (what < 60) return leaving_ ? freeOne() : submitByChance();
    if (what < 70) return openOne(static_cast<int>(world_.random().below(static_cast<std::uint64_t>(hosts_))));
    if (what < 73) return closeOne(static_cast<int>(world_.random().below(static_cast<std::uint64_t>(hosts_))));
    if (what < 80) return cancelOne();
    if (what < 84) return process_.unregisterRegion(static_cast<unsigned>(world_.random().below(Ledger::kRegions)));
    if (what < 89) return process_.registerRegion(static_cast<unsigned>(world_.random().below(Ledger::kRegions)));
    if (what < 92) return probeOne();
    freeOne();
}

std::shared_ptr<Workload::Call> Workload::call(std::string what, Duration within) {
    auto made = std::make_shared<Call>();
    made->what = std::move(what);
    made->answer_by = world_.now() + within + kSlack;
    calls_.push_back(made);
    return made;
}

void Workload::openOne(int host) {
    Segment& segment = segments_[static_cast<std::size_t>(host)];
    if (segment.calling || segment.id != kInvalidSegmentID) return;
    segment.calling = true;
    process_.open(nameOf(host), [this, &segment, host, asked = call("openSegment", process_.config().open_timeout)](
                                    const Result<SegmentID>& opened) {
        if (std::exchange(asked->answered, true)) world_.fail("openSegment was answered twice");
        segment.calling = false;
        segment.last = opened.status();
        world_.say("{} opens {}: {}", process_.seat.label, static_cast<char>('A' + host), opened.status().toString());
        world_.count(opened ? "opened" : "open_failed");
        if (!opened) return;
        segment.id = *opened;
        segment.since = world_.now();
        process_.up[*opened] = true;
    });
}

void Workload::closeOne(int host) {
    Segment& segment = segments_[static_cast<std::size_t>(host)];
    if (segment.calling || segment.id == kInvalidSegmentID || segment.id == kLocalSegmentID) return;
    segment.calling = true;
    world_.say("{} closes {}", process_.seat.label, static_cast<char>('A' + host));
    process_.close(segment.id, [this, &segment, asked = call("closeSegment", {})](const Status& closed) {
        if (std::exchange(asked->answered, true)) world_.fail("closeSegment was answered twice");
        segment.calling = false;
        segment.id = kInvalidSegmentID;
        if (!closed) world_.fail("closeSegment: " + closed.toString());
    });
}

/// True when that was its act. Draws from numbers of its own, so that seeds without it are what they were.
bool Workload::changeTransports() {
    Random& random = *site_.changes;
    if (!process_.mayChangeTransports()) return false;
    for (std::size_t i = 0; i < process_.transports.size(); ++i) {
        if (process_.transports[i] || !random.chance(kInstallsAgain)) continue;
        installOne(i, random.chance(kRefusesRegions) ? kRefusals : 0);
        return true;
    }
    if (leaving_) {
        // Another thread may submit again as soon as the call has looked.
        if (process_.batches.anyRunning()) return false;
        uninstallOne(*std::exchange(leaving_, std::nullopt));
        return true;
    }
    if (!random.chance(kUninstalls)) return false;
    const auto which = static_cast<std::size_t>(random.below(process_.transports.size()));
    if (site_.stays[which] || !process_.transports[which] || process_.installedOften()) return false;
    // In the middle of its work, or once that is done.
    if (random.chance(30))
        uninstallOne(which);
    else
        leaving_ = which;
    return true;
}

void Workload::uninstallOne(std::size_t which) {
    const auto asked = call("uninstallTransport", process_.config().unregister_timeout);
    uninstalling_ = process_.controlLoop().now();
    process_.uninstall(which, [this, asked](const Status& done) {
        if (std::exchange(asked->answered, true)) world_.fail("uninstallTransport was answered twice");
        world_.count(done ? "uninstalled" : "uninstall_busy");
        if (isCutOff()) cut_off_ = world_.now();
        uninstalling_ = kForever;
        // Busy: with its own batches. Nobody else holds anything of a simulated Nic.
        if (!done && done.code() != Code::BatchBusy && done.code() != Code::Canceled)
            world_.fail("uninstallTransport: " + done.toString());
    });
}

/// What a Nic that leaves still has is not waited for any longer.
bool Workload::isCutOff() const {
    return uninstalling_ != kForever &&
           process_.controlLoop().now() >= uninstalling_ + process_.config().unregister_timeout;
}

void Workload::installOne(std::size_t which, unsigned refusals) {
    const auto asked = call("installTransport", {});
    process_.install(which, refusals, [this, asked](const Status& done) {
        if (std::exchange(asked->answered, true)) world_.fail("installTransport was answered twice");
        world_.count(done ? "installed_again" : "installs_refused");
        if (!done && done.code() != Code::ResourceExhausted && done.code() != Code::Canceled)
            world_.fail("installTransport: " + done.toString());
    });
}

void Workload::probeOne() {
    const Segment& segment = segments_[world_.random().below(static_cast<std::uint64_t>(hosts_))];
    if (segment.id == kInvalidSegmentID || segment.calling) return;
    process_.probe(segment.id, [this, asked = call("probePeerAliveByID", 100 * kMillisecond)](const Status&) {
        if (std::exchange(asked->answered, true)) world_.fail("probePeerAliveByID was answered twice");
    });
}

void Workload::submitByChance() {
    const int target = static_cast<int>(world_.random().below(static_cast<std::uint64_t>(hosts_)));
    const Segment& segment = segments_[static_cast<std::size_t>(target)];
    if (segment.id == kInvalidSegmentID) return openOne(target);
    // Sometimes to a batch that runs already.
    OpenBatch* into = nullptr;
    if (!batches_.empty() && world_.chance(15)) {
        OpenBatch& old = *batches_[world_.random().below(batches_.size())];
        if (old.running != 0 && old.tasks.size() + 4 <= kTasksPerBatch) into = &old;
    }
    const bool fresh = into == nullptr;
    if (fresh) into = newBatch();
    if (into == nullptr) return freeOne();
    const auto count = static_cast<unsigned>(1 + world_.random().below(fresh ? 10 : 4));
    const auto opcode = world_.chance(50) ? Opcode::Read : Opcode::Write;
    if (!submit(*into, target, segment.id, count, world_.chance(50), opcode) && fresh) free(batches_.size() - 1);
}

Workload::OpenBatch* Workload::newBatch() {
    const auto in_use =
        std::count_if(batches_.begin(), batches_.end(), [](const auto& each) { return each->unproven == 0; });
    if (in_use >= kMostBatches) return nullptr;
    auto made = std::make_unique<OpenBatch>();
    made->tracker = static_cast<std::uint32_t>(world_.random().below(process_.trackers()));
    const auto id = process_.batches.allocate(kTasksPerBatch, made->tracker);
    if (!id) {
        world_.fail(process_.seat.label + ": allocate: " + id.status().toString());
        return nullptr;
    }
    made->id = *id;
    made->batch = &*process_.batches.find(*id);
    made->batch->onDone([calls = made->done_calls](BatchID) { ++*calls; });
    batches_.push_back(std::move(made));
    return batches_.back().get();
}

/// As TransferEngine::submit: false when it would refuse.
bool Workload::submit(OpenBatch& into, int target, SegmentID segment, unsigned count, bool adjacent, Opcode opcode) {
    if (process_.board.reach(segment) != SegmentBoard::Reach::Open) return false;
    const std::uint64_t version = process_.regions.regions().version();
    const auto snapshot = process_.regions.regions().load();
    // Ranges first: adjacent tasks share two long ones.
    struct Wanted {
        std::uint64_t local;
        std::uint64_t remote;
        std::uint64_t length;
    };
    std::vector<Wanted> wanted;
    const int host = process_.seat.host;
    const auto find = [&](std::uint64_t length) -> std::optional<Wanted> {
        const auto local = site_.ledger->free(host, length, false);
        const auto remote = site_.ledger->free(target, length, opcode == Opcode::Read);
        if (!local || !remote) return std::nullopt;
        // On one host both come from the same memory.
        if (ByteRange{*local, length + Ledger::kUnit}.overlaps({*remote, length + Ledger::kUnit})) return std::nullopt;
        if (!snapshot->covers({*local, length}, false, opcode == Opcode::Read)) return std::nullopt;
        return Wanted{*local, *remote, length};
    };
    if (adjacent) {
        const std::uint64_t piece = Ledger::kUnit * (1 + world_.random().below(4));
        if (const auto all = find(piece * count))
            for (unsigned i = 0; i < count; ++i)
                wanted.push_back({all->local + i * piece, all->remote + i * piece, piece});
    } else {
        // One task at a time is claimed, so these are few and far between.
        const std::uint64_t length = world_.chance(3) ? 0 : world_.random().logUniform(1, 2000);
        if (const auto one = find(std::max<std::uint64_t>(length, 1)))
            wanted.push_back({one->local, one->remote, length});
    }
    if (wanted.empty()) return false;
    const std::int64_t first = into.batch->claim(static_cast<std::uint32_t>(wanted.size()));
    if (first < 0) return false;
    const TimePoint now = process_.controlLoop().now();
    const auto timeout = process_.config().transfer_timeout;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        Duration within = timeout;
        if (!calm_ && world_.chance(20)) within = world_.span({}, 30 * kMillisecond);
        TaskRecord record;
        record.key = site_.ledger->tasks().size() + 1;
        record.host = host;
        record.start = process_.start;
        record.batch = into.batch;
        record.index = static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(i);
        record.opcode = opcode;
        record.local = wanted[i].local;
        record.remote = wanted[i].remote;
        record.length = wanted[i].length;
        record.target = target;
        record.target_start = site_.ledger->latestStart(target);
        record.submitted = world_.now();
        record.deadline = world_.now() + within;
        record.peer_was_up = process_.up[segment];
        Task& task = into.batch->task(record.index);
        // As fillTask of engine_transfers.cpp.
        task.local = reinterpret_cast<std::byte*>(record.local);
        task.remote = record.remote;
        task.length = record.length;
        task.segment = segment;
        task.deadline = now + within;
        task.opcode = opcode;
        task.retries_left = static_cast<std::uint16_t>(world_.random().below(4));
        task.begin();
        into.tasks.push_back(&site_.ledger->add(std::move(record)));
        world_.say("{} submits {}", process_.seat.label, describe(*into.tasks.back()));
    }
    world_.count("tasks", wanted.size());
    into.running += wanted.size();
    running_ += wanted.size();
    ++into.submits;
    process_.submit(
        SubmitTasks{into.batch, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(wanted.size()), version},
        into.tracker);
    return true;
}

void Workload::cancelOne() {
    if (batches_.empty()) return;
    const OpenBatch& batch = *batches_[world_.random().below(batches_.size())];
    if (batch.running == 0) return;
    EndTasks request;
    request.batch = batch.id;
    if (world_.chance(50)) request.task = static_cast<std::uint32_t>(world_.random().below(batch.tasks.size()));
    request.cause = Status(Code::Canceled, "canceled by the caller");
    world_.say("{} cancels {}", process_.seat.label, batch.id & UINT32_MAX);
    process_.endTasks(request, batch.tracker);
}

void Workload::freeOne() {
    if (batches_.empty()) return;
    free(world_.random().below(batches_.size()));
}

bool Workload::free(std::size_t index) {
    OpenBatch& batch = *batches_[index];
    if (batch.running != 0 || batch.unproven != 0) return false;
    const Status freed = process_.batches.free(batch.id);
    if (!freed) world_.fail(process_.seat.label + ": free: " + freed.toString());
    batches_.erase(batches_.begin() + static_cast<std::ptrdiff_t>(index));
    return true;
}

// --- what it expects ---------------------------------------------------------------------------------------------

/// A process that was stopped may be late.
TimePoint Workload::allowance(TimePoint bound) const { return std::max(bound, process_.seat.stands) + kSlack; }

void Workload::observe() {
    for (const auto& batch : batches_) look(*batch);
    for (const auto& asked : calls_)
        if (!asked->answered && world_.now() > allowance(asked->answer_by))
            world_.fail(process_.seat.label + ": " + asked->what + " is not answered");
    std::erase_if(calls_, [](const auto& asked) { return asked->answered; });
}

void Workload::look(OpenBatch& batch) {
    for (TaskRecord* task : batch.tasks) {
        if (task->terminal()) {
            if (!task->last.quiesced && leftQuarantine(*task)) --batch.unproven;
            if (batch.batch->taskStatus(task->index).s != task->last.s)
                world_.fail(fmt::format("{} was {} and then {}", describe(*task), toString(task->last.s),
                                        toString(batch.batch->taskStatus(task->index).s)));
            continue;
        }
        const TransferStatus status = batch.batch->taskStatus(task->index);
        if (!isTerminal(status.s)) {
            checkTime(*task);
            continue;
        }
        task->last = status;
        world_.say("{} sees {}: {}{}", process_.seat.label, describe(*task), toString(status.s),
                   status.error.isOk() ? "" : ", " + status.error.toString());
        site_.ledger->ended(*task);
        world_.count(std::string("ended_") + toString(status.s));
        if (status.error.code() == Code::TransportMissing) expectUninstalled(*task);
        if (const Task& ended = batch.batch->task(task->index);
            ended.history && status.s == TransferStatusEnum::COMPLETED) {
            world_.count("completed_after_a_loss");
            if ((ended.workers & ~process_.workersOf(0)) != 0) world_.count("completed_by_the_next_transport");
        }
        --batch.running;
        --running_;
        batch.unproven += status.quiesced ? 0 : 1;
        if (batch.visit >= 0 && batch.running == 0) {
            // By the preferred transport.
            const bool good = std::all_of(batch.tasks.begin(), batch.tasks.end(), [&](const TaskRecord* each) {
                return each->last.s == TransferStatusEnum::COMPLETED &&
                       (batch.batch->task(each->index).workers & ~process_.workersOf(0)) == 0;
            });
            if (good && !visited_[static_cast<std::size_t>(batch.visit)]) {
                visited_[static_cast<std::size_t>(batch.visit)] = true;
                ++visits_done_;
            }
        }
    }
    if (batch.batch->done() != (batch.running == 0))
        world_.fail(fmt::format("{}: {} tasks of a batch run, and it says it is {}", process_.seat.label, batch.running,
                                batch.batch->done() ? "done" : "not done"));
    if (batch.submits == 1 && *batch.done_calls != (batch.running == 0 ? 1u : 0u))
        world_.fail(fmt::format("{}: the end of a batch was told {} times", process_.seat.label, *batch.done_calls));
}

/// It ended because no transport was left. While one stays at both ends, work goes on by that; but for what the Nic of
/// one that leaves still has when the time for it is over; for a WRITE that came back unfenced, which waits for the Nic
/// that lost it, and that may have left the route; and for what a process has with itself. That goes by one transport
/// at a time, and when it leaves, a tracker may hear of the next one later than a worker of the first.
void Workload::expectUninstalled(const TaskRecord& task) {
    world_.count("ended_without_a_transport");
    const bool one_stays = std::find(site_.stays.begin(), site_.stays.end(), true) != site_.stays.end();
    // Here the board of segments may be ahead of what trackers were sent with it (docs/simulator.md, last section).
    const TimePoint open_since = segments_[static_cast<std::size_t>(task.target)].since;
    if (one_stays && task.target != task.host && task.opcode == Opcode::Read &&
        task.submitted > open_since + kBoardAhead && task.submitted >= cut_off_ && !isCutOff())
        world_.fail(describe(task) +
                    " ended, although one transport stays at both ends: " + task.last.error.toString());
}

/// Of a task that ended without proof: whether its buffer is the application's again.
bool Workload::leftQuarantine(TaskRecord& task) {
    if (!process_.quarantine->heldIn({task.local, task.length}, process_.controlLoop().now())) return false;
    world_.say("{}: {} left quarantine", process_.seat.label, describe(task));
    world_.count("left_quarantine");
    task.last.quiesced = true;
    site_.ledger->localIsFree(task);
    return true;
}

bool Workload::believesUp(int host) const {
    const Segment& segment = segments_[static_cast<std::size_t>(host)];
    if (segment.id == kInvalidSegmentID || segment.id == kLocalSegmentID || segment.calling) return false;
    const auto found = process_.up.find(segment.id);
    return found != process_.up.end() && found->second;
}

void Workload::checkTime(const TaskRecord& task) {
    if (world_.now() > allowance(task.deadline))
        world_.fail(describe(task) + " has not ended, and its deadline is long past");
    // What was there when the peer went down ends with it, however patient its Nic is and wherever it was on its way.
    const auto down = process_.last_down.find(task.batch->task(task.index).segment);
    if (down != process_.last_down.end() && task.submitted < down->second.told_after &&
        world_.now() > allowance(down->second.heard))
        world_.fail(describe(task) + " has not ended, and its peer was said to be down");
    const TimePoint died = deaths_[static_cast<std::size_t>(task.target)][task.target_start];
    if (!task.peer_was_up || died < task.submitted || died == kForever || task.target == task.host) return;
    if (world_.now() <= allowance(died + kPeerDownBound)) return;
    // A peer that was down already when it died is not told to be down once more.
    for (const auto& [segment, when] : process_.last_down)
        if (when.heard >= task.submitted - kSlack && when.heard <= died &&
            static_cast<std::uint32_t>(segment) == static_cast<std::uint32_t>(task.batch->task(task.index).segment))
            return;
    world_.fail(describe(task) + " still waits for a peer that is long dead");
}

void Workload::gone() {
    for (const auto& batch : batches_) {
        for (TaskRecord* task : batch->tasks) {
            if (!isTerminal(task->status().s)) world_.fail(describe(*task) + " has not ended, and its engine has");
            site_.ledger->initiatorGone(*task);
        }
    }
    batches_.clear();
    calls_.clear();
}

// --- the end -----------------------------------------------------------------------------------------------------

void Workload::calmDown() {
    calm_ = true;
    leaving_.reset();
    for (const auto& transport : process_.transports)
        if (transport) transport->refusals = 0;
    for (SimNic* nic : process_.nics) {
        if (nic == nullptr) continue;
        nic->setDown(false);
        nic->behave();
    }
}

void Workload::mend() {
    for (std::size_t i = 0; i < process_.transports.size(); ++i)
        if (!process_.transports[i] && process_.mayChangeTransports()) installOne(i, 0);
    for (int host = 0; host < hosts_; ++host) openOne(host);
    for (unsigned region = 0; region < Ledger::kRegions; ++region) process_.registerRegion(region);
}

bool Workload::mended() const {
    for (const auto& transport : process_.transports)
        if (!transport) return false;
    if (!process_.mayChangeTransports()) return false;
    for (const Segment& segment : segments_)
        if (segment.id == kInvalidSegmentID || segment.calling) return false;
    for (unsigned region = 0; region < Ledger::kRegions; ++region)
        if (!site_.ledger->registered(process_.seat.host, region) || process_.regionBusy(region)) return false;
    return true;
}

void Workload::visitAll() {
    visits_wanted_ = hosts_;
    for (int host = 0; host < hosts_; ++host) {
        const auto at = static_cast<std::size_t>(host);
        const bool under_way = std::any_of(batches_.begin(), batches_.end(), [host](const auto& batch) {
            return batch->visit == host && batch->running != 0;
        });
        if (visited_[at] || under_way || segments_[at].id == kInvalidSegmentID) continue;
        freeAll();
        OpenBatch* const batch = newBatch();
        if (batch == nullptr) continue;
        batch->visit = host;
        const bool wrote = submit(*batch, host, segments_[at].id, 1 + static_cast<unsigned>(world_.random().below(6)),
                                  true, Opcode::Write);
        const bool read = submit(*batch, host, segments_[at].id, 2, true, Opcode::Read);
        if (!wrote && !read) free(batches_.size() - 1);
    }
}

std::string Workload::visits() const {
    std::string missing;
    for (int host = 0; host < hosts_; ++host)
        if (!visited_[static_cast<std::size_t>(host)])
            missing += fmt::format(" {} ({})", static_cast<char>('A' + host),
                                   segments_[static_cast<std::size_t>(host)].last.toString());
    return missing;
}

void Workload::freeAll() {
    for (std::size_t i = batches_.size(); i-- > 0;) free(i);
}

void Workload::closeAll() {
    for (int host = 0; host < hosts_; ++host) closeOne(host);
}

bool Workload::nothingOpen() const {
    return std::all_of(segments_.begin(), segments_.end(), [](const Segment& segment) {
        return !segment.calling && (segment.id == kInvalidSegmentID || segment.id == kLocalSegmentID);
    });
}

}  // namespace troupe::sim
