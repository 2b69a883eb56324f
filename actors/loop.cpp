#include "actors/loop.h"

#include <caf/actor_system.hpp>
#include <caf/scheduler/abstract_coordinator.hpp>

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

#include "actors/hosted_actor.h"
#include "base/endpoint.h"

namespace troupe {

namespace {

// Which loop the thread is running now. Thread-local, because a loop is run by many threads in turn and every
// enqueue must tell its own turn from a foreign thread; comparing a pointer is the cheapest way.
thread_local const Loop* current_loop = nullptr;

constexpr std::size_t kMessagesPerResume = 64;

// How long the loop's thread stays away when it wakes while a caller drives; the driver resets the timer anyway.
constexpr auto kRecheckWhileDriven = std::chrono::milliseconds(1);

// Smallest spin that is still worth trying; below it the loop sleeps at once.
constexpr auto kSmallestSpin = std::chrono::microseconds(2);

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
    if (parked_.load(std::memory_order_seq_cst)) ring();
}

void Loop::ring() {
    if (!parked_.exchange(false, std::memory_order_seq_cst)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(bell_.get(), &one, sizeof one);
}

bool Loop::inboxEmpty() const {
    return inbox_.load(std::memory_order_seq_cst) == nullptr && !has_posted_.load(std::memory_order_seq_cst);
}

bool Loop::onTurn() const { return current_loop == this; }

// --- life --------------------------------------------------------------------------------------------------------

Loop::Loop(caf::actor_system& system, Options options)
    : host_unit_(&system, this), run_unit_(&system), options_(std::move(options)), spin_now_(options_.spin) {}

Loop::~Loop() { stop(); }

Status Loop::start() {
    epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    bell_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    grace_timer_ = UniqueFd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    if (!epoll_ || !bell_ || !grace_timer_)
        return errnoStatus(Code::ResourceExhausted, "create the descriptors of loop " + options_.name, errno);
    for (const int fd : {bell_.get(), grace_timer_.get()}) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = fd;
        if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
            return errnoStatus(Code::ResourceExhausted, "epoll_ctl in loop " + options_.name, errno);
    }
    // Signals belong to the host program: its own threads take them.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Status started;
    try {
        thread_ = std::thread([this] { threadMain(); });
        pthread_setname_np(thread_.native_handle(), options_.name.substr(0, 15).c_str());
    } catch (const std::system_error& e) {
        started = Status(Code::ResourceExhausted, "start the thread of loop " + options_.name + ": " + e.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return started;
}

void Loop::stop() {
    if (!thread_.joinable()) return;
    stopping_.store(true, std::memory_order_seq_cst);
    parked_.store(true, std::memory_order_seq_cst);
    ring();
    thread_.join();
}

// --- Reactor -----------------------------------------------------------------------------------------------------

void Loop::watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    const bool known = watches_.count(fd) != 0;
    watches_[fd] = Watch{events, std::make_shared<std::function<void(std::uint32_t)>>(std::move(ready))};
    ::epoll_ctl(epoll_.get(), known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event);
}

void Loop::unwatch(int fd) {
    if (watches_.erase(fd) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

Reactor::TimerId Loop::runAt(TimePoint when, std::function<void()> fire) {
    const TimerId id = next_timer_++;
    timers_.emplace(std::make_pair(when, id), std::move(fire));
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
    {
        const std::lock_guard lock(posted_mutex_);
        posted_.push_back(std::move(work));
    }
    has_posted_.store(true, std::memory_order_seq_cst);
    if (!onTurn() && parked_.load(std::memory_order_seq_cst)) ring();
}

// --- pollables ---------------------------------------------------------------------------------------------------

void Loop::addPollable(Pollable* pollable) {
    pollables_.push_back(pollable);
    if (pollable->waitFd() < 0) return;
    epoll_event event{};
    event.events = sleep_ == Sleep::Armed ? static_cast<std::uint32_t>(EPOLLIN) : 0u;
    event.data.fd = pollable->waitFd();
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, pollable->waitFd(), &event);
}

void Loop::removePollable(Pollable* pollable) {
    pollables_.erase(std::remove(pollables_.begin(), pollables_.end(), pollable), pollables_.end());
    if (pollable->waitFd() >= 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, pollable->waitFd(), nullptr);
}

void Loop::setPollableInterest(bool on) {
    if (on == (sleep_ == Sleep::Armed)) return;
    for (const Pollable* pollable : pollables_) {
        if (pollable->waitFd() < 0) continue;
        epoll_event event{};
        event.events = on ? static_cast<std::uint32_t>(EPOLLIN) : 0u;
        event.data.fd = pollable->waitFd();
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, pollable->waitFd(), &event);
    }
    sleep_ = on ? Sleep::Armed : Sleep::Standby;
}

bool Loop::armPollables() {
    bool quiet = true;
    for (Pollable* pollable : pollables_) quiet = pollable->arm() && quiet;
    return quiet;
}

// --- one iteration -----------------------------------------------------------------------------------------------

Loop::Progress Loop::iterate() {
    bool moved = runActors();
    if (has_posted_.load(std::memory_order_acquire)) moved = runPosted() || moved;
    if (!watches_.empty()) moved = dispatchReady(0) || moved;
    const TimePoint now = Clock::now();
    for (std::size_t i = 0; i < pollables_.size(); ++i) moved = pollables_[i]->poll(now) || moved;
    if (!timers_.empty() && timers_.begin()->first.first <= now) moved = fireTimers(now) || moved;
    // What the Nics completed is reported in the same iteration.
    if (!ready_.empty()) moved = runActors() || moved;
    return moved ? Progress::Moved : Progress::Quiet;
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
    std::vector<std::function<void()>> work;
    {
        const std::lock_guard lock(posted_mutex_);
        work.swap(posted_);
        has_posted_.store(false, std::memory_order_relaxed);
    }
    for (auto& item : work) item();
    return !work.empty();
}

bool Loop::fireTimers(TimePoint now) {
    bool fired = false;
    while (!timers_.empty() && timers_.begin()->first.first <= now) {
        auto node = timers_.extract(timers_.begin());
        timer_times_.erase(node.key().second);
        node.mapped()();
        fired = true;
    }
    return fired;
}

bool Loop::dispatchReady(int timeout_ms) {
    std::array<epoll_event, 64> events;
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
        const auto ready = found->second.ready;
        (*ready)(events[static_cast<std::size_t>(i)].events);
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
    parked_.store(true, std::memory_order_seq_cst);
    if (inboxEmpty() && ready_.empty() && armPollables() && !stopping_.load(std::memory_order_relaxed)) return true;
    parked_.store(false, std::memory_order_seq_cst);
    return false;
}

bool Loop::sleepStandby() {
    setPollableInterest(false);
    parked_.store(true, std::memory_order_seq_cst);
    if (inboxEmpty() && ready_.empty() && !stopping_.load(std::memory_order_relaxed)) {
        scheduleGrace(Clock::now());
        return true;
    }
    parked_.store(false, std::memory_order_seq_cst);
    return false;
}

void Loop::scheduleGrace(TimePoint now) {
    last_drive_ = now;
    // Pushing the timer on every drive would cost a system call each; the thread looks at last_drive_ when it fires.
    if (grace_ends_ > now && grace_ends_ <= now + options_.drive_grace) return;
    grace_ends_ = now + options_.drive_grace;
    itimerspec spec{};
    const auto nanoseconds = std::max<std::int64_t>(options_.drive_grace / std::chrono::nanoseconds(1), 1);
    spec.it_value.tv_sec = nanoseconds / 1'000'000'000;
    spec.it_value.tv_nsec = nanoseconds % 1'000'000'000;
    ::timerfd_settime(grace_timer_.get(), 0, &spec, nullptr);
}

void Loop::runUntilQuiet() {
    TimePoint quiet_since{};
    while (!stopping_.load(std::memory_order_relaxed)) {
        const bool moved = iterate() == Progress::Moved;
        // A caller waits and would run the loop itself: let it, even when busy.
        if (wanted_.load(std::memory_order_relaxed) != 0 && sleepStandby()) return;
        if (moved) {
            if (quiet_since != TimePoint{}) spin_now_ = std::min(options_.spin, std::max<Duration>(2 * spin_now_, kSmallestSpin));
            quiet_since = {};
            continue;
        }
        const TimePoint now = Clock::now();
        if (quiet_since == TimePoint{}) quiet_since = now;
        if (now - quiet_since < spin_now_) {
            cpuRelax();
            continue;
        }
        if (sleepArmed()) {
            spin_now_ = spin_now_ <= kSmallestSpin ? Duration::zero() : spin_now_ / 2;
            return;
        }
    }
}

void Loop::threadMain() {
    while (!stopping_.load(std::memory_order_seq_cst)) {
        turn_.lock();
        current_loop = this;
        runUntilQuiet();
        current_loop = nullptr;
        thread_wakes_ = nextWake();
        const TimePoint slept = Clock::now();
        const int timeout = timeoutFor(thread_wakes_);
        turn_.unlock();

        // Sleeps until there is something to do that no caller is doing.
        for (bool awake = false; !awake && !stopping_.load(std::memory_order_seq_cst);) {
            pollfd ready{epoll_.get(), POLLIN, 0};
            const int count = ::poll(&ready, 1, timeout);
            if (!turn_.try_lock()) {
                // A caller runs the loop and looks after what woke us. Come back later should it not re-arm anything.
                std::uint64_t value = 0;
                [[maybe_unused]] auto got = ::read(bell_.get(), &value, sizeof value);
                got = ::read(grace_timer_.get(), &value, sizeof value);
                itimerspec spec{};
                spec.it_value.tv_nsec = std::chrono::nanoseconds(kRecheckWhileDriven).count();
                ::timerfd_settime(grace_timer_.get(), 0, &spec, nullptr);
                continue;
            }
            const TimePoint now = Clock::now();
            std::uint64_t value = 0;
            const bool rung = ::read(bell_.get(), &value, sizeof value) > 0;
            const bool grace = ::read(grace_timer_.get(), &value, sizeof value) > 0;
            grace_ends_ = {};
            if (grace && !rung && sleep_ == Sleep::Standby && now < last_drive_ + options_.drive_grace &&
                sleepers.load(std::memory_order_seq_cst) == 0 && inboxEmpty() && nextWake() > now) {
                const TimePoint driven = last_drive_;
                scheduleGrace(now);
                last_drive_ = driven;
            } else {
                if (sleep_ == Sleep::Standby && grace) driver_expected_ = false;
                awake = true;
                parked_.store(false, std::memory_order_seq_cst);
                // A short sleep means that a little more spinning would have been cheaper.
                if (count > 0 && now - slept < options_.spin)
                    spin_now_ = std::min(options_.spin, std::max<Duration>(2 * spin_now_, kSmallestSpin));
            }
            turn_.unlock();
        }
    }
    // Actors that were told to end in the last iteration still have descriptors and memory to give back.
    constexpr int kLastRuns = 1000;
    turn_.lock();
    current_loop = this;
    for (int i = 0; i < kLastRuns; ++i) {
        const bool ran = runActors();
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
    current_loop = this;
    parked_.store(false, std::memory_order_seq_cst);
    return true;
}

void Loop::releaseTurnAfterDriving() {
    constexpr int kTries = 4;
    bool asleep = false;
    for (int i = 0; i < kTries && !asleep; ++i) {
        // Others sleep until the loop moves them on: its own thread must watch the Nics, not a driver that may come.
        const bool standby = driver_expected_ && sleepers.load(std::memory_order_seq_cst) == 0;
        asleep = standby ? sleepStandby() : sleepArmed();
        if (!asleep) iterate();
    }
    const bool wake_thread = !asleep || nextWake() < thread_wakes_;
    current_loop = nullptr;
    turn_.unlock();
    if (wake_thread) {
        parked_.store(true, std::memory_order_seq_cst);
        ring();
    }
}

void Loop::help() {
    if (!options_.drivable || onTurn() || !tryTakeTurn()) return;
    driver_expected_ = true;
    iterate();
    releaseTurnAfterDriving();
}

}  // namespace troupe
