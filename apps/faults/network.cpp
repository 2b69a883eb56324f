#include "apps/faults/network.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "apps/support/child_process.h"

namespace troupe::apps::faults {

namespace {

constexpr const char* kIp = "/sbin/ip";
constexpr const char* kTc = "/sbin/tc";
constexpr const char* kIptables = "/usr/sbin/iptables";
constexpr std::chrono::seconds kPatience{20};

}  // namespace

Result<std::string> outputOf(const std::vector<std::string>& arguments) {
    std::string line;
    for (const std::string& argument : arguments) line += (line.empty() ? "" : " ") + argument;
    auto child = ChildProcess::start(arguments, {.stderr_path = "/dev/null", .environment = {}});
    if (!child) return child.status();
    child->closeInput();
    auto output = child->readAll(kPatience);
    if (!output) return output.status().withContext(line);
    const auto code = child->wait(kPatience);
    if (!code) return code.status().withContext(line);
    if (*code != 0) return {Code::Internal, fmt::format("`{}` ended with {}", line, *code)};
    return output;
}

Status runProgram(const std::vector<std::string>& arguments) { return outputOf(arguments).status(); }

Status noNetem(const std::string& percentage) {
    return {Code::Unsupported, "`tc qdisc ... netem loss " + percentage +
                                   "` failed: the kernel has no sch_netem (modprobe sch_netem), or that is no "
                                   "percentage"};
}

Result<Network> Network::create() {
    if (::geteuid() != 0)
        return {Code::AccessDenied, "a network namespace needs root; run it as root, or leave this scenario out"};
    Network network;
    // Several of them may live beside each other, one a process.
    const auto number = static_cast<unsigned>(::getpid());
    network.name_ = fmt::format("troupe-{}", number);
    network.outer_ = fmt::format("tro{}", number % 1'000'000);
    network.inner_ = fmt::format("tri{}", number % 1'000'000);
    // 198.18.0.0/15 is for tests of networks (RFC 2544).
    network.here_ = fmt::format("198.18.{}.{}", number / 64 % 256, number % 64 * 4 + 1);
    network.there_ = fmt::format("198.18.{}.{}", number / 64 % 256, number % 64 * 4 + 2);
    if (const Status up = network.setUp(); !up) return up;
    return network;
}

Status Network::setUp() {
    const std::vector<std::vector<std::string>> commands = {
        {kIp, "netns", "add", name_},
        {kIp, "link", "add", outer_, "type", "veth", "peer", "name", inner_, "netns", name_},
        {kIp, "address", "add", here_ + "/30", "dev", outer_},
        {kIp, "link", "set", outer_, "up"},
        {kIp, "-n", name_, "address", "add", there_ + "/30", "dev", inner_},
        {kIp, "-n", name_, "link", "set", inner_, "up"},
        {kIp, "-n", name_, "link", "set", "lo", "up"},
    };
    for (const auto& command : commands)
        if (const Status done = runProgram(command); !done) return done;
    return Status::ok();
}

Network::Network(Network&& other) noexcept
    : name_(std::exchange(other.name_, {})),
      outer_(std::move(other.outer_)),
      inner_(std::move(other.inner_)),
      here_(std::move(other.here_)),
      there_(std::move(other.there_)) {}

Network::~Network() {
    if (name_.empty()) return;
    static_cast<void>(runProgram({kIp, "link", "delete", outer_}));
    static_cast<void>(runProgram({kIp, "netns", "delete", name_}));
}

std::vector<std::string> Network::wrapper() const { return {kIp, "netns", "exec", name_}; }

Status Network::inside(std::vector<std::string> arguments) const {
    std::vector<std::string> all = wrapper();
    all.insert(all.end(), arguments.begin(), arguments.end());
    return runProgram(all);
}

Status Network::setDrop(bool on) { return inside({kIptables, "-w", on ? "-I" : "-D", "INPUT", "-j", "DROP"}); }

Status Network::setReset(bool on) {
    return inside(
        {kIptables, "-w", on ? "-I" : "-D", "INPUT", "-p", "tcp", "-j", "REJECT", "--reject-with", "tcp-reset"});
}

Status Network::setLink(bool up) { return runProgram({kIp, "link", "set", outer_, up ? "up" : "down"}); }

Status Network::setLoss(const std::string& percentage) {
    if (!runProgram({kTc, "qdisc", "replace", "dev", outer_, "root", "netem", "loss", percentage}) ||
        !inside({kTc, "qdisc", "replace", "dev", inner_, "root", "netem", "loss", percentage}))
        return noNetem(percentage);
    return Status::ok();
}

}  // namespace troupe::apps::faults
