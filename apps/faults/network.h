#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace troupe::apps::faults {

/// Runs a system's program to its end. Internal when it fails; NotFound.
Status runProgram(const std::vector<std::string>& arguments);
/// The same, with what it wrote to its standard output.
Result<std::string> outputOf(const std::vector<std::string>& arguments);
/// That `tc` refused to lose this share of the packets.
Status noNetem(const std::string& percentage);

/// A network namespace behind a veth pair, so that packets to the target can be dropped, refused, lost and delayed
/// without touching anything else of this machine. Needs root, and the packages iproute2 and iptables. Gone with it.
class Network {
  public:
    /// AccessDenied names root as the remedy; the error of what could not be set up.
    static Result<Network> create();
    Network(Network&& other) noexcept;
    Network& operator=(Network&&) = delete;
    ~Network();

    /// Of this side, and of the namespace.
    const std::string& hereAddress() const { return here_; }
    const std::string& thereAddress() const { return there_; }
    /// What a command is preceded by to run inside.
    std::vector<std::string> wrapper() const;

    /// Packets that come in to the namespace are dropped silently, or answered with a reset.
    Status setDrop(bool on);
    Status setReset(bool on);
    Status setLink(bool up);
    /// Of the packets in each direction; "5%".
    Status setLoss(const std::string& percentage);

  private:
    Network() = default;
    Status setUp();
    Status inside(std::vector<std::string> arguments) const;

    std::string name_;  ///< Empty once moved from.
    std::string outer_;
    std::string inner_;
    std::string here_;
    std::string there_;
};

}  // namespace troupe::apps::faults
