#include "apps/support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <sstream>
#include <thread>
#include <utility>

#include "base/clock.h"

extern char** environ;

namespace troupe::apps {

namespace {

constexpr std::chrono::milliseconds kEndBound{3000};  ///< For a child to end by itself before it is killed.
constexpr std::chrono::milliseconds kWaitStep{5};

struct Pipe {
    UniqueFd reader;
    UniqueFd writer;
};

Result<Pipe> makePipe() {
    std::array<int, 2> fds{};
    if (::pipe2(fds.data(), O_CLOEXEC) != 0)
        return {Code::ResourceExhausted, std::string("pipe2: ") + std::strerror(errno)};
    return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> result;
    result.reserve(strings.size() + 1);
    for (auto& text : strings) result.push_back(text.data());
    result.push_back(nullptr);
    return result;
}

/// Ours, with `added` in the place of variables of the same name.
std::vector<std::string> mergedEnvironment(const std::vector<std::string>& added) {
    std::vector<std::string> merged = added;
    for (char** variable = environ; *variable != nullptr; ++variable) {
        const std::string entry = *variable;
        const std::string name = entry.substr(0, entry.find('=') + 1);
        const bool replaced = std::any_of(added.begin(), added.end(), [&](const std::string& each) {
            return each.compare(0, name.size(), name) == 0;
        });
        if (!replaced) merged.push_back(entry);
    }
    return merged;
}

/// What the child gets, all of it made before it is there.
struct Launch {
    std::string program;
    std::vector<char*> arguments;
    std::vector<char*> environment;
    int input = -1;
    int output = -1;
};

/// posix_spawn's attribute and action objects, destroyed together.
class SpawnSetup {
  public:
    SpawnSetup() {
        posix_spawn_file_actions_init(&actions);
        posix_spawnattr_init(&attributes);
    }
    SpawnSetup(const SpawnSetup&) = delete;
    SpawnSetup& operator=(const SpawnSetup&) = delete;
    ~SpawnSetup() {
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
    }

    posix_spawn_file_actions_t actions{};
    posix_spawnattr_t attributes{};
};

/// 0, or the errno of what did not succeed.
int spawn(const Launch& launch, const ChildProcess::Options& options, pid_t& pid) {
    SpawnSetup setup;
    posix_spawn_file_actions_adddup2(&setup.actions, launch.input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&setup.actions, launch.output, STDOUT_FILENO);
    if (!options.stderr_path.empty())
        posix_spawn_file_actions_addopen(&setup.actions, STDERR_FILENO, options.stderr_path.c_str(),
                                         O_WRONLY | O_CREAT | O_TRUNC, 0600);
    else if (options.merge_stderr)
        posix_spawn_file_actions_adddup2(&setup.actions, launch.output, STDERR_FILENO);
    // The parent may have blocked signals for its StopSignal; the child starts with none blocked.
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&setup.attributes, &none);
    posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETSIGMASK);
    return ::posix_spawn(&pid, launch.program.c_str(), &setup.actions, &setup.attributes, launch.arguments.data(),
                         launch.environment.data());
}

/// The same for one that dies with this thread, which posix_spawn cannot be told. The child of a threaded process may
/// only make system calls.
int forkAndExecute(const Launch& launch, const ChildProcess::Options& options, pid_t& pid) {
    // Nobody hears of an execve that fails.
    if (::access(launch.program.c_str(), X_OK) != 0) return errno;
    pid = ::fork();
    if (pid < 0) return errno;
    if (pid > 0) return 0;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(launch.input, STDIN_FILENO);
    ::dup2(launch.output, STDOUT_FILENO);
    if (!options.stderr_path.empty()) {
        const int file = ::open(options.stderr_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (file >= 0) ::dup2(file, STDERR_FILENO);
    } else if (options.merge_stderr) {
        ::dup2(launch.output, STDERR_FILENO);
    }
    ::execve(launch.program.c_str(), launch.arguments.data(), launch.environment.data());
    ::_exit(127);
}

}  // namespace

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& arguments, const Options& options) {
    auto input = makePipe();
    if (!input) return input.status();
    auto output = makePipe();
    if (!output) return output.status();
    std::vector<std::string> argument_copies = arguments;
    std::vector<std::string> environment = mergedEnvironment(options.environment);
    const std::string& name = arguments.at(0);
    const Launch launch{name.find('/') == std::string::npos ? findProgram(name) : name, pointers(argument_copies),
                        pointers(environment), input->reader.get(), output->writer.get()};
    if (launch.program.empty()) return {Code::NotFound, name + " is not installed"};
    ChildProcess child;
    const int error =
        options.dies_with_us ? forkAndExecute(launch, options, child.pid_) : spawn(launch, options, child.pid_);
    if (error != 0) {
        child.pid_ = -1;
        return {error == ENOENT ? Code::NotFound : Code::ResourceExhausted,
                "cannot start " + name + ": " + std::strerror(error)};
    }
    child.input_ = std::move(input->writer);
    child.output_ = std::move(output->reader);
    return child;
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      exit_code_(other.exit_code_),
      input_(std::move(other.input_)),
      output_(std::move(other.output_)),
      buffer_(std::move(other.buffer_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
    if (this == &other) return *this;
    end();
    pid_ = std::exchange(other.pid_, -1);
    exit_code_ = other.exit_code_;
    input_ = std::move(other.input_);
    output_ = std::move(other.output_);
    buffer_ = std::move(other.buffer_);
    return *this;
}

ChildProcess::~ChildProcess() { end(); }

double ChildProcess::cpuSeconds() const {
    clockid_t clock{};
    timespec used{};
    if (pid_ < 0 || ::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

void ChildProcess::end() {
    if (pid_ < 0) return;
    closeInput();
    signal(SIGTERM);
    if (wait(kEndBound)) return;
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

Result<bool> ChildProcess::readMore(std::chrono::milliseconds timeout) {
    pollfd entry{output_.get(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(timeout.count(), 0)));
    if (ready < 0 && errno == EINTR) return true;
    if (ready <= 0) return {Code::Timeout, "the child process " + std::to_string(pid_) + " said nothing in time"};
    std::array<char, 4096> bytes;  // NOLINT(cppcoreguidelines-pro-type-member-init): read fills it.
    const ssize_t count = ::read(output_.get(), bytes.data(), bytes.size());
    if (count > 0) buffer_.append(bytes.data(), static_cast<std::size_t>(count));
    return count > 0;
}

Result<std::string> ChildProcess::readLine(std::chrono::milliseconds timeout) {
    const TimePoint deadline = Clock::now() + timeout;
    for (;;) {
        if (const auto end = buffer_.find('\n'); end != std::string::npos) {
            std::string line = buffer_.substr(0, end);
            buffer_.erase(0, end + 1);
            return line;
        }
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
        const auto more = readMore(left);
        if (!more) return more.status();
        if (!*more) return {Code::ConnectionLost, "the child process ended before it answered"};
    }
}

Result<std::string> ChildProcess::readAll(std::chrono::milliseconds timeout) {
    const TimePoint deadline = Clock::now() + timeout;
    for (;;) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
        const auto more = readMore(left);
        if (!more) return more.status();
        if (!*more) return std::exchange(buffer_, {});
    }
}

Status ChildProcess::writeLine(const std::string& line) {
    const std::string text = line + "\n";
    for (std::size_t done = 0; done < text.size();) {
        const ssize_t count = ::write(input_.get(), text.data() + done, text.size() - done);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return {Code::ConnectionLost, "the child reads no more"};
        done += static_cast<std::size_t>(count);
    }
    return Status::ok();
}

void ChildProcess::signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
}

Result<int> ChildProcess::wait(std::chrono::milliseconds timeout) {
    const TimePoint deadline = Clock::now() + timeout;
    while (pid_ > 0) {
        int status = 0;
        const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
        if (ended == pid_) {
            exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            pid_ = -1;
            break;
        }
        if (ended < 0 && errno != EINTR) return {Code::Internal, std::string("waitpid: ") + std::strerror(errno)};
        if (Clock::now() >= deadline)
            return {Code::Timeout, "the child process " + std::to_string(pid_) + " did not end in time"};
        std::this_thread::sleep_for(kWaitStep);  // waitpid has no timeout.
    }
    return exit_code_;
}

std::string findProgram(const std::string& program) {
    const char* path = std::getenv("PATH");
    std::istringstream folders(path != nullptr ? path : "/usr/bin:/bin");
    for (std::string folder; std::getline(folders, folder, ':');) {
        // The working folder, as an empty one is by tradition, is not where a program should come from.
        if (folder.empty()) continue;
        const std::string candidate = folder + "/" + program;
        std::error_code error;
        if (std::filesystem::is_regular_file(candidate, error) && ::access(candidate.c_str(), X_OK) == 0)
            return candidate;
    }
    return {};
}

std::string ownProgramPath() {
    std::error_code error;
    return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

}  // namespace troupe::apps
