#include "actors/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <caf/actor_system.hpp>
#include <caf/logger.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>

#include "actors/hosted_actor.h"
#include "base/endpoint.h"
#include "base/quiet_thread.h"

namespace troupe {

namespace {

// Which loop the thread is running now. Thread-local, because a loop is run by many threads in turn and every
// enqueue must tell its own turn from a foreign thread; comparing a pointer is the cheapest way.
thread_local const Loop* current_loop = nullptr;

constexpr std::size_t kMessagesPerResume = 64;

// Rounds of actors in one iteration: enough for a chain submit -> train -> post, and for its report; a longer
// chain goes on in the next iteration, after the Nics had their turn.
constexpr int kRounds = 4;

// How far a long drive puts the grace timer off.
constexpr auto kHoldOff = std::chrono::milliseconds(20);

// The grace grows with the time that drivers have come without a gap: an eighth of that, at most so much. What a Nic
// has to say waits for that long once, when they stop coming, so it costs the other users of the loop a ninth at worst;
// and a timer that is pushed every 50 us costs a driver more than a request.
constexpr int kGraceShare = 8;
constexpr auto kLongestGrace = std::chrono::milliseconds(2);

// Sleep of the loop's thread after it woke for a timer while a caller drove: until it has the turn it cannot know when
// the next timer is due.
constexpr std::chrono::duration<int, std::milli> kRecheck{2};

void setTimer(int timer, Duration span) {
    itimerspec spec{};
    const auto nanoseconds = std::max<std::int64_t>(std::chrono::nanoseconds(span).count(), 1);
    spec.it_value.tv_sec = nanoseconds / 1'000'000'000;
    spec.it_value.tv_nsec = nanoseconds % 1'000'000'000;
    ::timerfd_settime(timer, 0, &spec, nullptr);
}

void ringBell(int bell) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(bell, &one, sizeof one);
}

/// Creating or spawning through an actor system makes its logger the thread's, and CAF then takes a lock and looks the
/// thread up in a table for every actor that is resumed here. Away with it meanwhile; and what an actor spawns in a
/// caller's thread leaves none there, for an actor system does not end as long as a thread has its logger.
class WithoutLogger {
  public:
    explicit WithoutLogger(caf::actor_system& system)
        : logger_(&system.logger()), restored_(caf::logger::current_logger() == logger_ ? &system : nullptr) {
        if (restored_ != nullptr) caf::logger::set_current_actor_system(nullptr);
    }
    ~WithoutLogger() {
        if (restored_ != nullptr || caf::logger::current_logger() == logger_)
            caf::logger::set_current_actor_system(restored_);
    }
    WithoutLogger(const WithoutLogger&) = delete;
    WithoutLogger& operator=(const WithoutLogger&) = delete;

  private:
    const caf::logger* logger_;
    caf::actor_system* restored_;  ///< Whose logger was the thread's.
};

}  // namespace

// --- execution units ---------------------------------------------------------------------------------------------

void Loop::HostUnit::exec_later(caf::resumable* actor) {
    loop_->makeReady(static_cast<HostedActor*>(static_cast<caf::scheduled_actor*>(actor)));
}

void Loop::RunUnit::exec_later(caf::resumable* actor) { system().scheduler().enqueue(actor); }

void Loop::makeReady(HostedActor* actor) {
    if (onTurn()) {
        ready_.push_back(actor);
        return;
    }
    actor->next_in_inbox_ = inbox_.load(std::memory_order_relaxed);
    while (!inbox_.compare_exchange_weak(actor->next_in_inbox_, actor, std::memory_order_seq_cst)) {
    }
    if (parked_.load(std::memory_order_seq_cst) != Sleep::Awake) ring();
}

void Loop::runAfterMessages(HostedActor* actor) {
    if (std::exchange(actor->after_due_, true)) return;
    caf::intrusive_ptr_add_ref(actor->ctrl());
    after_due_.push_back(actor);
}

void Loop::finishMessages() {
    // None of them makes another one due.
    for (HostedActor* actor : after_due_) {
        actor->finishMessages();
        caf::intrusive_ptr_release(actor->ctrl());
    }
    after_due_.clear();
}

void Loop::ring() {
    const Sleep parked = parked_.exchange(Sleep::Awake, std::memory_order_seq_cst);
    if (parked == Sleep::Awake) return;
    ringBell(parked == Sleep::Driver ? driver_bell_.get() : bell_.get());
}

bool Loop::inboxEmpty() const {
    return inbox_.load(std::memory_order_seq_cst) == nullptr && !has_posted_.load(std::memory_order_seq_cst);
}

bool Loop::onTurn() const { return current_loop == this; }

bool Loop::onSomeTurn() { return current_loop != nullptr; }

// --- life --------------------------------------------------------------------------------------------------------

Loop::Loop(caf::actor_system& system, Options options)
    : host_unit_(&system, this), run_unit_(&system), options_(std::move(options)), spin_(options_.spin) {}

Loop::~Loop() { stop(); }

Status Loop::start() {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    bell_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    grace_timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    driver_epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    driver_bell_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!epoll_ || !bell_ || !grace_timer_ || !driver_epoll_ || !driver_bell_)
        return errnoStatus(Code::ResourceExhausted, "create the descriptors of loop " + options_.name, errno);
    const std::pair<int, int> always[] = {
        {epoll_.get(), bell_.get()}, {epoll_.get(), grace_timer_.get()}, {driver_epoll_.get(), driver_bell_.get()}};
    for (const auto& [set, fd] : always) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd;
        if (::epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0)
            return errnoStatus(Code::ResourceExhausted, "epoll_ctl in loop " + options_.name, errno);
    }
    auto thread = startQuietThread(options_.name.substr(0, 15).c_str(), [this] { threadMain(); });
    if (!thread) return thread.status();
    thread_ = std::move(*thread);
    return Status::ok();
}

void Loop::stop() {
    if (!thread_.joinable()) return;
    stopping_.store(true, std::memory_order_seq_cst);
    for (const int bell : {bell_.get(), driver_bell_.get()}) ringBell(bell);
    thread_.join();
}

// --- Reactor -----------------------------------------------------------------------------------------------------

void Loop::watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    const bool known = watches_.count(fd) != 0;
    watches_[fd] = std::make_shared<const Watch>(Watch{owner(), std::move(ready)});
    ::epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
}

void Loop::unwatch(int fd) {
    if (watches_.erase(fd) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Reactor::TimerId Loop::runAt(TimePoint when, std::function<void()> fire) {
    const TimerId id = next_timer_++;
    timers_.emplace(std::make_pair(when, id), Callback{owner(), std::move(fire)});
    timer_times_.emplace(id, when);
    return id;
}

void Loop::cancelTimer(TimerId timer) {
    const auto found = timer_times_.find(timer);
    if (found == timer_times_.end()) return;
    timers_.erase({found->second, timer});
    timer_times_.erase(found);
}

void Loop::post(std::function<void()> work) {
    // Who acts is known on the turn only.
    postFor(onTurn() ? owner() : nullptr, std::move(work));
}

void Loop::postFor(caf::weak_actor_ptr owner, std::function<void()> work) {
    {
        const std::lock_guard lock(posted_mutex_);
        posted_.push_back({std::move(owner), std::move(work)});
    }
    has_posted_.store(true, std::memory_order_seq_cst);
    if (!onTurn() && parked_.load(std::memory_order_seq_cst) != Sleep::Awake) ring();
}

// --- whose work it is --------------------------------------------------------------------------------------------

caf::weak_actor_ptr Loop::owner() const { return acting_ != nullptr ? acting_->ctrl() : nullptr; }

// --- pollables ---------------------------------------------------------------------------------------------------

void Loop::addPollable(Pollable* pollable) {
    pollables_.push_back(pollable);
    if (pollable->waitFd() < 0) return;
    epoll_event event{};
    event.events = interest_on_ ? static_cast<std::uint32_t>(EPOLLIN) : 0u;
    event.data.fd = pollable->waitFd();
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pollable->waitFd(), &event);
    event.events = EPOLLIN;
    ::epoll_ctl(driver_epoll_.get(), EPOLL_CTL_ADD, pollable->waitFd(), &event);
}

void Loop::removePollable(Pollable* pollable) {
    pollables_.erase(std::remove(pollables_.begin(), pollables_.end(), pollable), pollables_.end());
    if (pollable->waitFd() < 0) return;
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pollable->waitFd(), nullptr);
    ::epoll_ctl(driver_epoll_.get(), EPOLL_CTL_DEL, pollable->waitFd(), nullptr);
}

void Loop::setPollableInterest(bool on) {
    if (on == interest_on_) return;
    for (const Pollable* pollable : pollables_) {
        if (pollable->waitFd() < 0) continue;
        epoll_event event{};
        event.events = on ? static_cast<std::uint32_t>(EPOLLIN) : 0u;
        event.data.fd = pollable->waitFd();
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, pollable->waitFd(), &event);
    }
    interest_on_ = on;
}

bool Loop::armPollables() {
    bool quiet = true;
    for (Pollable* pollable : pollables_) quiet = pollable->arm() && quiet;
    return quiet;
}

// --- one iteration -----------------------------------------------------------------------------------------------

Loop::Progress Loop::iterate(TimePoint now) {
    iterated_at_ = now;
    bool moved = runReady();
    if (has_posted_.load(std::memory_order_acquire)) moved = runPosted() || moved;
    if (!watches_.empty()) moved = dispatchReady(0) || moved;
    for (std::size_t i = 0; i < pollables_.size(); ++i) moved = pollables_[i]->poll(now) || moved;
    if (!timers_.empty() && timers_.begin()->first.first <= now) moved = fireTimers(now) || moved;
    // What the Nics completed is reported in the same iteration.
    if (!ready_.empty()) moved = runReady() || moved;
    return moved ? Progress::Moved : Progress::Quiet;
}

bool Loop::runOnce(TimePoint now, const std::function<void()>& first) {
    if (!tryTakeTurn()) return false;
    iterated_at_ = now;
    if (first) first();
    const bool moved = iterate(now) == Progress::Moved;
    giveTurnBack();
    return moved;
}

bool Loop::holdBack(HostedActor&, caf::mailbox_element_ptr&) { return false; }

bool Loop::runReady() {
    bool moved = !after_due_.empty();
    if (moved) finishMessages();
    for (int round = 0; round < kRounds && runActors(); ++round) moved = true;
    return moved;
}

bool Loop::runActors() {
    if (inbox_.load(std::memory_order_relaxed) != nullptr) {
        // The inbox is a stack: the first to become ready comes last.
        HostedActor* newest = inbox_.exchange(nullptr, std::memory_order_acquire);
        const auto first = static_cast<std::ptrdiff_t>(ready_.size());
        for (HostedActor* actor = newest; actor != nullptr; actor = actor->next_in_inbox_) ready_.push_back(actor);
        std::reverse(ready_.begin() + first, ready_.end());
    }
    if (ready_.empty()) return false;
    running_.swap(ready_);
    const WithoutLogger without(system());
    for (HostedActor* actor : running_) {
        if (actor->resume(&run_unit_, kMessagesPerResume) == caf::resumable::resume_later)
            ready_.push_back(actor);
        else
            caf::intrusive_ptr_release(actor->ctrl());
    }
    running_.clear();
    return true;
}

bool Loop::runPosted() {
    std::vector<Callback> work;
    {
        const std::lock_guard lock(posted_mutex_);
        work.swap(posted_);
        has_posted_.store(false, std::memory_order_relaxed);
    }
    for (const Callback& item : work) run(item);
    return !work.empty();
}

bool Loop::fireTimers(TimePoint now) {
    bool fired = false;
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
        auto node = timers_.extract(timers_.begin());
        timer_times_.erase(node.key().second);
        run(node.mapped());
        fired = true;
    }
    return fired;
}

bool Loop::dispatchReady(int timeout_ms) {
    std::array<epoll_event, 64> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    bool moved = false;
    for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        if (fd == bell_.get() || fd == grace_timer_.get()) {
            std::uint64_t value = 0;
            [[maybe_unused]] const auto got = ::read(fd, &value, sizeof value);
            continue;
        }
        const auto found = watches_.find(fd);
        if (found == watches_.end()) continue;
        // Held while it runs: the callback may unwatch or replace itself.
        const auto watch = found->second;
        run(*watch, events[static_cast<std::size_t>(i)].events);
        moved = true;
    }
    return moved;
}

// --- sleeping ----------------------------------------------------------------------------------------------------

TimePoint Loop::nextWake() const {
    TimePoint wake = timers_.empty() ? kForever : timers_.begin()->first.first;
    for (const Pollable* pollable : pollables_) wake = std::min(wake, pollable->nextDeadline());
    return wake;
}

int Loop::timeoutFor(TimePoint wake) const {
    if (wake == kForever) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

bool Loop::sleepArmed() {
    setPollableInterest(true);
    parked_.store(Sleep::Armed, std::memory_order_seq_cst);
    if (inboxEmpty() && ready_.empty() && after_due_.empty() && armPollables() &&
        !stopping_.load(std::memory_order_relaxed))
        return true;
    parked_.store(Sleep::Awake, std::memory_order_seq_cst);
    return false;
}

bool Loop::sleepStandby() {
    // The true time, not the iteration's: a timer that fired meanwhile must be seen to be gone.
    return after_due_.empty() && sleepStandby(Clock::now());
}

bool Loop::sleepStandby(TimePoint now) {
    setPollableInterest(false);
    parked_.store(Sleep::Standby, std::memory_order_seq_cst);
    // A thread that goes to sleep counts itself first and then looks at parked_; so here it is the other way round.
    if (inboxEmpty() && ready_.empty() && sleepers.load(std::memory_order_seq_cst) == 0 &&
        !stopping_.load(std::memory_order_relaxed)) {
        scheduleGrace(now);
        return true;
    }
    parked_.store(Sleep::Awake, std::memory_order_seq_cst);
    return false;
}

void Loop::scheduleGrace(TimePoint now) {
    last_drive_ = now;
    if (driven_since_ == TimePoint{}) driven_since_ = now;
    grace_ = std::max(options_.drive_grace, std::min<Duration>((now - driven_since_) / kGraceShare, kLongestGrace));
    armGrace(now);
}

void Loop::armGrace(TimePoint now) {
    // Pushed only when half of it is gone: a system call for every drive would cost more than the drive, and a timer
    // that fires while drivers keep coming wakes a thread onto a core that is busy.
    if (grace_ends_ > now + grace_ / 2 && grace_ends_ <= now + grace_) return;
    setGraceTimer(now, grace_);
}

void Loop::holdOffThread() {
    // A short drive is over before the timer fires. One that comes near it puts it off for long, and pays for setting
    // it again in the end.
    if (iterated_at_ > grace_ends_ - grace_ / 4) setGraceTimer(iterated_at_, kHoldOff);
}

void Loop::setGraceTimer(TimePoint now, Duration span) {
    grace_ends_ = now + span;
    setTimer(grace_timer_.get(), span);
}

void Loop::sleepAsDriver(TimePoint deadline) {
    parked_.store(Sleep::Driver, std::memory_order_seq_cst);
    if (inboxEmpty() && ready_.empty() && after_due_.empty() && armPollables()) {
        const TimePoint start = Clock::now();
        std::array<epoll_event, 4> events{};
        const int count = ::epoll_wait(driver_epoll_.get(), events.data(), static_cast<int>(events.size()),
                                       timeoutFor(std::min(deadline, nextWake())));
        for (int i = 0; i < count; ++i) {
            if (events[static_cast<std::size_t>(i)].data.fd != driver_bell_.get()) continue;
            std::uint64_t value = 0;
            [[maybe_unused]] const auto got = ::read(driver_bell_.get(), &value, sizeof value);
        }
        spin_.slept(count > 0, Clock::now() - start);
    }
    parked_.store(Sleep::Awake, std::memory_order_seq_cst);
}

void Loop::runUntilQuiet() {
    spin_.restart();
    while (!stopping_.load(std::memory_order_relaxed)) {
        const bool moved = iterate() == Progress::Moved;
        // A caller waits and would run the loop itself: let it, even when busy.
        if (wanted_.load(std::memory_order_relaxed) != 0 && sleepStandby()) return;
        if (moved)
            spin_.restart();
        else if (spin_.goesOn(Clock::now()))
            cpuRelax();
        else if (sleepArmed())
            return;
    }
}

/// Off the turn: sleeps in epoll. Descriptors that are watched stay ready for dispatchReady, which is on the turn.
Loop::Woken Loop::waitForEvents(int timeout_ms) {
    std::array<epoll_event, 8> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    Woken woken;
    woken.any = count > 0;
    for (int i = 0; i < count; ++i) {
        const int fd = events[static_cast<std::size_t>(i)].data.fd;
        if (fd != bell_.get() && fd != grace_timer_.get()) {
            woken.nic = true;
            continue;
        }
        std::uint64_t value = 0;
        [[maybe_unused]] const auto got = ::read(fd, &value, sizeof value);
        (fd == bell_.get() ? woken.rung : woken.grace) = true;
    }
    return woken;
}

void Loop::threadMain() {
    while (!stopping_.load(std::memory_order_seq_cst)) {
        turn_.lock();
        current_loop = this;
        runUntilQuiet();
        current_loop = nullptr;
        thread_wakes_ = nextWake();
        const TimePoint slept = Clock::now();
        int timeout = timeoutFor(thread_wakes_);
        turn_.unlock();

        // Sleeps until there is something to do that no caller is doing.
        for (bool awake = false; !awake && !stopping_.load(std::memory_order_seq_cst);) {
            const Woken woken = waitForEvents(timeout);
            if (!turn_.try_lock()) {
                // A caller runs the loop, and when it lets go it sets the timer, arms the Nics or rings. But it may
                // have done so already and been preempted before it let go: what woke us must not be lost. A bell or a
                // Nic would not come again, so wait for the turn; for the timers, look again soon.
                if (!woken.nic && !woken.rung) {
                    if (woken.grace) setTimer(grace_timer_.get(), kRecheck);
                    if (!woken.any) timeout = kRecheck.count();
                    continue;
                }
                turn_.lock();
            }
            const TimePoint now = Clock::now();
            if (woken.grace) grace_ends_ = {};
            if (woken.grace && !woken.rung && !interest_on_ && now < last_drive_ + grace_ &&
                sleepers.load(std::memory_order_seq_cst) == 0 && inboxEmpty() && after_due_.empty() &&
                nextWake() > now) {
                armGrace(now);
            } else {
                if (!interest_on_ && woken.grace) {
                    // Nobody came back in time: no more waiting for drivers.
                    driver_expected_ = false;
                    waits_follow_.store(false, std::memory_order_relaxed);
                }
                awake = true;
                driven_since_ = {};
                parked_.store(Sleep::Awake, std::memory_order_seq_cst);
                spin_.slept(woken.any, now - slept);
            }
            turn_.unlock();
        }
    }
    // Actors that were told to end in the last iteration still have descriptors and memory to give back.
    constexpr int kLastRuns = 1000;
    turn_.lock();
    current_loop = this;
    for (int i = 0; i < kLastRuns; ++i) {
        const bool ran = runReady();
        if (!runPosted() && !ran) break;
    }
    current_loop = nullptr;
    turn_.unlock();
}

// --- callers that drive ------------------------------------------------------------------------------------------

bool Loop::tryTakeTurn() {
    if (!turn_.try_lock()) return false;
    if (stopping_.load(std::memory_order_relaxed)) {
        turn_.unlock();
        return false;
    }
    driver_was_on_ = std::exchange(current_loop, this);
    parked_.store(Sleep::Awake, std::memory_order_seq_cst);
    return true;
}

void Loop::giveTurnBack() {
    current_loop = driver_was_on_;
    turn_.unlock();
}

void Loop::releaseTurnAfterDriving() {
    constexpr int kTries = 4;
    bool asleep = false;
    for (int i = 0; i < kTries && !asleep; ++i) {
        // Others sleep until the loop moves them on: its own thread must watch the Nics, not a driver that may come.
        const bool standby = (driver_expected_ || waits_follow_.load(std::memory_order_relaxed)) &&
                             sleepers.load(std::memory_order_seq_cst) == 0;
        asleep = standby ? sleepStandby() : sleepArmed();
        if (!asleep) iterate();
    }
    const bool wake_thread = !asleep || nextWake() < thread_wakes_;
    giveTurnBack();
    // Straight to the thread: another driver may be asleep by now, and parked_ is its own.
    if (wake_thread) ringBell(bell_.get());
}

void Loop::wakeFromStandby() {
    if (parked_.load(std::memory_order_seq_cst) == Sleep::Standby) ring();
}

void Loop::help() {
    if (!options_.drivable || onTurn() || !tryTakeTurn()) return;
    driver_expected_ = true;
    iterate();
    releaseTurnAfterDriving();
}

}  // namespace troupe
