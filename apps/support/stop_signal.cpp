#include "apps/support/stop_signal.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <thread>

#include "base/quiet_thread.h"
#include "base/unique_fd.h"

namespace troupe::apps {

namespace {

/// What comes so soon after the first is the same request: timeout(1) and others send their signal to a process and
/// then to its group, and nobody presses Ctrl-C twice in this time, milliseconds.
constexpr int kSameRequest = 100;

sigset_t stopSignals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    return set;
}

void ring(int bell) {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(bell, &one, sizeof one));
}

}  // namespace

/// A thread of its own takes the signals, for the others may be long in a call (a name that is resolved, an engine that
/// starts, a file that is written) and could not look. Handlers would do too, but interrupt the calls of whoever runs
/// them.
class StopSignal::Watch {
  public:
    Watch() = default;
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;
    ~Watch() {
        if (!thread_.joinable()) return;
        ring(end_.get());
        thread_.join();
    }

    Status start() {
        const sigset_t set = stopSignals();
        ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
        signals_ = UniqueFd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
        end_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
        requested_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC));
        if (!signals_ || !end_ || !requested_fd_)
            return {Code::ResourceExhausted, std::string("signalfd or eventfd: ") + std::strerror(errno)};
        auto thread = startQuietThread("troupe-signals", [this] { run(); });
        if (!thread) return thread.status();
        thread_ = std::move(thread).value();
        return Status::ok();
    }

    bool requested() const { return requested_.load(); }
    int fd() const { return requested_fd_.get(); }

  private:
    void run() {
        if (nextSignal() == 0) return;
        requested_.store(true);
        ring(requested_fd_.get());
        pollfd end{end_.get(), POLLIN, 0};
        if (::poll(&end, 1, kSameRequest) > 0) return;
        while (take() != 0) {
        }
        if (const int again = nextSignal(); again != 0) dieOf(again);
    }

    /// A signal that has come, or 0.
    int take() const {
        signalfd_siginfo info{};
        return ::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)
                   ? static_cast<int>(info.ssi_signo)
                   : 0;
    }

    /// Waits for one; 0: there is no more need of it.
    int nextSignal() const {
        for (;;) {
            pollfd entries[] = {{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}};
            if (::poll(entries, 2, -1) < 0 && errno != EINTR) return 0;
            if (entries[1].revents != 0) return 0;
            if (const int signal = take(); signal != 0) return signal;
        }
    }

    /// By the signal itself, so that a shell sees what ended the process.
    static void dieOf(int signal) {
        std::signal(signal, SIG_DFL);
        const sigset_t set = stopSignals();
        ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
        ::raise(signal);
    }

    UniqueFd signals_;
    UniqueFd end_;           ///< Readable: the thread is to end.
    UniqueFd requested_fd_;  ///< Readable: a signal has come.
    std::atomic<bool> requested_{false};
    std::thread thread_;
};

Result<StopSignal> StopSignal::install() {
    auto watch = std::make_unique<Watch>();
    if (const Status started = watch->start(); !started) return started;
    return StopSignal(std::move(watch));
}

StopSignal::StopSignal(std::unique_ptr<Watch> watch) : watch_(std::move(watch)) {}
StopSignal::StopSignal(StopSignal&&) noexcept = default;
StopSignal::~StopSignal() = default;

bool StopSignal::requested() const { return watch_->requested(); }
int StopSignal::fd() const { return watch_->fd(); }

}  // namespace troupe::apps
