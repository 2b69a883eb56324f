#include "apps/faults/rails.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>
#include <utility>

#include "apps/faults/network.h"
#include "base/clock.h"
#include "topology/machine.h"

namespace troupe::apps::faults {

namespace {

constexpr const char* kIp = "/sbin/ip";
constexpr const char* kTc = "/sbin/tc";
constexpr const char* kRdma = "/bin/rdma";

/// The kernel looks at the carrier of a link when it gets to it.
constexpr std::chrono::seconds kActiveBound{30};
constexpr std::chrono::milliseconds kLookEvery{20};
/// Of a device that is deleted: for the engine that had it open to be gone.
constexpr std::chrono::seconds kDeleteBound{60};

std::uint64_t numberIn(const std::string& path) {
    std::ifstream file(path);
    std::uint64_t number = 0;
    return file >> number ? number : 0;
}

std::string ofNet(const std::string& netdev, const std::string& what) {
    return "/sys/class/net/" + netdev + "/" + what;
}

bool areOneLink(const std::string& a, const std::string& b) {
    const std::uint64_t index_a = numberIn(ofNet(a, "ifindex"));
    const std::uint64_t index_b = numberIn(ofNet(b, "ifindex"));
    return index_a != 0 && index_b != 0 && numberIn(ofNet(a, "iflink")) == index_b &&
           numberIn(ofNet(b, "iflink")) == index_a;
}

Status awaitActive(const std::string& device) {
    const TimePoint limit = Clock::now() + kActiveBound;
    for (;;) {
        std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/state");
        std::string state;
        if (std::getline(file, state) && state.find("ACTIVE") != std::string::npos) return Status::ok();
        if (Clock::now() > limit) return {Code::Timeout, "the port of " + device + " did not become active again"};
        std::this_thread::sleep_for(kLookEvery);
    }
}

std::vector<std::string> wordsOf(const std::string& line) {
    std::istringstream words(line);
    return {std::istream_iterator<std::string>(words), {}};
}

std::string settingOf(const std::vector<std::string>& devices) {
    std::string names;
    for (const std::string& device : devices) names += (names.empty() ? "" : ",") + device;
    return "rdma.devices=" + names;
}

}  // namespace

Result<Rails> Rails::find() {
    Rails found;
    const std::vector<RdmaDevice> devices = discoverMachine().rdma;
    for (std::size_t i = 0; i < devices.size(); ++i) {
        for (std::size_t j = i + 1; j < devices.size(); ++j) {
            if (!devices[i].active || !devices[j].active || !areOneLink(devices[i].netdev, devices[j].netdev)) continue;
            Rail& rail = found.rails_.emplace_back();
            rail.here = {devices[i].name, devices[i].netdev, {}};
            rail.there = {devices[j].name, devices[j].netdev, {}};
            rail.sent = numberIn(ofNet(rail.here.netdev, "statistics/tx_bytes"));
        }
    }
    if (found.rails_.empty())
        return {Code::Unsupported,
                "no two RDMA devices of this machine are the ends of one veth pair; those of the VM are (./dev vm)"};
    if (::geteuid() != 0) return {Code::AccessDenied, "what is done to links needs root; run it as root"};
    for (Rail& rail : found.rails_)
        for (End* end : {&rail.here, &rail.there})
            if (const Status known = remember(*end); !known) return known;
    return found;
}

Rails::Rails(Rails&& other) noexcept
    : rails_(std::exchange(other.rails_, {})),
      loses_(std::exchange(other.loses_, false)),
      deleting_(std::move(other.deleting_)),
      deleted_(std::exchange(other.deleted_, {})),
      deleted_of_(std::move(other.deleted_of_)) {}

Rails::~Rails() {
    for (Rail& rail : rails_) {
        if (rail.down) static_cast<void>(setLink(rail, true));
        if (!loses_) continue;
        for (const End* end : {&rail.here, &rail.there})
            static_cast<void>(runProgram({kTc, "qdisc", "delete", "dev", end->netdev, "root"}));
    }
    if (!deleted_.empty()) makeDeviceAnew();
}

std::string Rails::settingHere() const {
    std::vector<std::string> devices;
    for (const Rail& rail : rails_) devices.push_back(rail.here.device);
    return settingOf(devices);
}

std::string Rails::settingThere() const {
    std::vector<std::string> devices;
    for (const Rail& rail : rails_) devices.push_back(rail.there.device);
    return settingOf(devices);
}

// --- links -----------------------------------------------------------------------------------------------------------

/// Both ends are addresses of one host, so the way over the wire is one that somebody has set up; what the kernel makes
/// by itself it makes again.
Status Rails::remember(End& end) {
    const auto routes = outputOf({kIp, "-4", "route", "show", "table", "all", "dev", end.netdev});
    if (!routes) return routes.status();
    std::istringstream lines(*routes);
    for (std::string line; std::getline(lines, line);) {
        const std::vector<std::string> words = wordsOf(line);
        if (words.empty() || words[0] == "local" || words[0] == "broadcast") continue;
        if (line.find("proto kernel") != std::string::npos) continue;
        std::vector<std::string> command = {kIp, "route", "replace"};
        command.insert(command.end(), words.begin(), words.end());
        command.insert(command.end(), {"dev", end.netdev});
        end.memory.push_back(std::move(command));
    }
    const auto neighbours = outputOf({kIp, "-4", "neigh", "show", "dev", end.netdev, "nud", "permanent"});
    if (!neighbours) return neighbours.status();
    lines = std::istringstream(*neighbours);
    for (std::string line; std::getline(lines, line);) {
        const std::vector<std::string> words = wordsOf(line);
        if (words.size() < 3 || words[1] != "lladdr") continue;
        end.memory.push_back(
            {kIp, "neigh", "replace", words[0], "lladdr", words[2], "dev", end.netdev, "nud", "permanent"});
    }
    return Status::ok();
}

Status Rails::setLink(Rail& rail, bool up) {
    if (const Status set = runProgram({kIp, "link", "set", rail.here.netdev, up ? "up" : "down"}); !set) return set;
    rail.down = !up;
    if (!up) return Status::ok();
    // The two ends of a veth pair are one link: it is down at both, and comes back at both.
    for (const End* end : {&rail.here, &rail.there})
        for (const auto& command : end->memory)
            if (const Status done = runProgram(command); !done) return done;
    const Status here = awaitActive(rail.here.device);
    return here ? awaitActive(rail.there.device) : here;
}

Status Rails::setLinks(bool up) {
    for (Rail& rail : rails_)
        if (const Status set = setLink(rail, up); !set) return set;
    return Status::ok();
}

Rails::Rail& Rails::busiest() {
    const auto carried = [](const Rail& rail) {
        return numberIn(ofNet(rail.here.netdev, "statistics/tx_bytes")) - rail.sent;
    };
    return *std::max_element(rails_.begin(), rails_.end(),
                             [&](const Rail& a, const Rail& b) { return carried(a) < carried(b); });
}

Status Rails::setBusiestLink(bool up) {
    if (!up) return setLink(busiest(), false);
    for (Rail& rail : rails_)
        if (rail.down)
            if (const Status set = setLink(rail, true); !set) return set;
    return Status::ok();
}

Status Rails::setLoss(const std::string& percentage) {
    loses_ = true;
    for (const Rail& rail : rails_)
        for (const End* end : {&rail.here, &rail.there})
            if (!runProgram({kTc, "qdisc", "replace", "dev", end->netdev, "root", "netem", "loss", percentage}))
                return noNetem(percentage);
    return Status::ok();
}

// --- devices ---------------------------------------------------------------------------------------------------------

Status Rails::deleteBusiestDevice() {
    if (deleting_) return {Code::InvalidArgument, "a device is deleted already"};
    const Rail& rail = busiest();
    auto child = ChildProcess::start({kRdma, "link", "delete", rail.here.device},
                                     {.stderr_path = "/dev/null", .environment = {}});
    if (!child) return child.status();
    deleting_.emplace(std::move(*child));
    deleted_ = rail.here.device;
    deleted_of_ = rail.here.netdev;
    return Status::ok();
}

void Rails::makeDeviceAnew() {
    static_cast<void>(deleting_->wait(kDeleteBound));
    static_cast<void>(runProgram({kRdma, "link", "add", deleted_, "type", "rxe", "netdev", deleted_of_}));
    static_cast<void>(awaitActive(deleted_));
}

}  // namespace troupe::apps::faults
