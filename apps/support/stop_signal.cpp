#include "apps/support/stop_signal.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

namespace troupe::apps {

namespace {

sigset_t stopSignals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

}  // namespace

Result<StopSignal> StopSignal::install() {
    const sigset_t set = stopSignals();
    ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
    StopSignal signal;
    signal.fd_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signal.fd_) return {Code::ResourceExhausted, std::string("signalfd: ") + std::strerror(errno)};
    return signal;
}

bool StopSignal::requested() {
    if (requested_) return true;
    signalfd_siginfo info;
    if (::read(fd_.get(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return false;
    requested_ = true;
    const sigset_t set = stopSignals();
    ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
    return true;
}

}  // namespace troupe::apps
