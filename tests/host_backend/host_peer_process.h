#pragma once

#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "apps/support/child_process.h"
#include "base/endpoint.h"
#include "tests/support/engine_pair.h"
#include "tests/support/standstill.h"

namespace troupe::test {

/// Of the region that a host_peer has.
inline constexpr std::size_t kBytes = 8u << 20;

/// A host_peer; killed with the test.
class HostPeer {
  public:
    explicit HostPeer(bool mapped, std::vector<std::string> limits = {}, std::uint16_t port = 0) {
        std::vector<std::string> arguments = {TROUPE_HOST_PEER, std::to_string(kBytes), mapped ? "mapped" : "vm",
                                              std::to_string(port)};
        arguments.insert(arguments.end(), limits.begin(), limits.end());
        auto child = apps::ChildProcess::start(arguments);
        EXPECT_TRUE(child) << child.status().toString();
        if (!child) return;
        child_.emplace(std::move(*child));
        std::string incarnation;
        std::istringstream(answer()) >> segment_ >> address_ >> incarnation;
        const auto parsed = Incarnation::parse(incarnation);
        EXPECT_TRUE(parsed);
        if (parsed) incarnation_ = *parsed;
    }

    const std::string& segment() const { return segment_; }
    std::uint64_t address(std::size_t offset = 0) const { return address_ + offset; }
    const Incarnation& incarnation() const { return incarnation_; }
    std::uint16_t port() const { return Endpoint::parse(segment_)->port; }
    pid_t pid() const { return child_->pid(); }

    void tell(const std::string& command) { EXPECT_TRUE(child_->writeLine(command)); }
    std::string answer() {
        const auto line = child_->readLine(kPatience);
        EXPECT_TRUE(line) << line.status().toString();
        return line ? *line : std::string();
    }
    std::string ask(const std::string& command) {
        tell(command);
        return answer();
    }
    std::string transfer(const char* verb, std::uint64_t addr, std::size_t length) {
        return ask(std::string(verb) + " " + std::to_string(addr) + " " + std::to_string(length));
    }

    void proceed() { child_->signal(SIGCONT); }
    void stop() { bringToStandstill(*child_); }
    void kill() {
        child_->signal(SIGKILL);
        EXPECT_EQ(*child_->wait(kPatience), 128 + SIGKILL);
    }

  private:
    std::optional<apps::ChildProcess> child_;
    std::string segment_;
    std::uint64_t address_ = 0;
    Incarnation incarnation_;
};

inline EngineSetup hostSetup() {
    EngineSetup setup;
    setup.config.host_peers = true;
    return setup;
}

}  // namespace troupe::test
