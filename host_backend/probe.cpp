#include "host_backend/probe.h"

#include <sys/epoll.h>

#include <chrono>
#include <utility>

namespace troupe::host {

namespace {

/// Between two looks at a listener whose queue is full.
constexpr std::chrono::milliseconds kBusyPause{2};

}  // namespace

Probe::Probe(Reactor& reactor, GreetingPlan plan, Duration longest, std::function<void(Status)> done)
    : reactor_(reactor), greeting_(std::move(plan)), longest_(longest), done_(std::move(done)) {}

Probe::~Probe() { stopWaiting(); }

void Probe::stopWaiting() {
    reactor_.cancelTimer(timer_);
    timer_ = 0;
    if (watched_ >= 0) reactor_.unwatch(watched_);
    watched_ = -1;
}

void Probe::start() {
    deadline_ = saturatedAdd(reactor_.now(), longest_);
    attempt();
}

void Probe::attempt() {
    const auto late = [this] {
        finish(Status(Code::Timeout, "it did not answer on its host socket within host.probe_timeout"));
    };
    timer_ = 0;
    if (reactor_.now() >= deadline_) return late();
    const auto started = greeting_.start();
    if (!started) return finish(started.status());
    if (!*started) {
        timer_ = reactor_.runAt(reactor_.now() + kBusyPause, [this] { attempt(); });
        return;
    }
    timer_ = reactor_.runAt(deadline_, late);
    watched_ = greeting_.fd();
    reactor_.watch(watched_, EPOLLIN, [this](std::uint32_t) { ready(); });
}

void Probe::ready() {
    const auto done = greeting_.advance();
    if (!done) return finish(done.status());
    if (*done) finish(Status::ok());
}

void Probe::finish(const Status& outcome) {
    stopWaiting();
    // The callback may destroy this object.
    const auto done = std::move(done_);
    const Status result = outcome;
    done(result);
}

}  // namespace troupe::host
