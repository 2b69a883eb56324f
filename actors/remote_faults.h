#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/fault_injector.h"
#include "base/log.h"
#include "base/reactor.h"
#include "base/status.h"
#include "control/fault_request.h"
#include "security/refusal_log.h"
#include "transports/control_exchange.h"

namespace troupe {

/// Lets peers break this engine over the control port, where `faults.remote` allows it. What one of them broke is
/// mended when it says so, when its time is over (no fault lasts longer than kLongestFault), and when the connection
/// ends that it was asked for over, whatever becomes of the peer. Each is said in the log as it is set and as it is
/// mended, with whose it is.
///
/// Everything on the reactor's turn.
class RemoteFaults {
  public:
    /// The reactor is the control loop; its injector (Reactor::faults) is what is asked for. `allowed`: faults.remote.
    RemoteFaults(Reactor& reactor, bool allowed, Logger log);
    /// Mends everything.
    ~RemoteFaults();
    RemoteFaults(const RemoteFaults&) = delete;
    RemoteFaults& operator=(const RemoteFaults&) = delete;

    /// A FaultAnswer as text. AccessDenied: it is not allowed here. ProtocolError: that is no FaultRequest; else what
    /// FaultInjector refuses. What freezes the control loop begins a moment later: the answer goes out first.
    /// @param from the address that `asker` has, for the log.
    Result<std::string> answer(const Asker& asker, const std::string& from, const std::string& question);
    /// The connection has ended: mends what was asked for over it.
    void askerLeft(std::uint64_t connection);

  private:
    struct Fault {
        std::string text;  ///< For people.
        std::optional<FaultInjector::RuleId> rule;
        Reactor::TimerId timer = 0;  ///< When it is over by itself.
    };
    /// What is asked for over one connection.
    struct Party {
        std::string name;  ///< Address and incarnation.
        std::map<std::uint64_t, Fault> faults;
        std::uint64_t last = 0;  ///< Number of the newest of them.
    };
    using Parties = std::map<std::uint64_t, Party>;  ///< By connection.

    Result<FaultAnswer> carryOut(std::uint64_t connection, Party& party, const FaultRequest& request);
    void freezeControlLoop(std::uint64_t connection, std::uint64_t number, std::chrono::microseconds time);
    Status checkOwn(const Party& party, FaultInjector::RuleId rule) const;
    void noteSet(std::uint64_t connection, Party& party, const FaultRequest& request,
                 std::optional<FaultInjector::RuleId> rule, std::chrono::microseconds time);
    void noteMended(const Party& party, const Fault& fault, const std::string& why);
    void mendAll(std::uint64_t connection, Party& party, const std::string& why);

    Reactor& reactor_;
    FaultInjector* const faults_;  ///< Null without `faults.enabled`.
    const bool allowed_;
    const Logger log_;
    Parties parties_;
    RefusalLog refusals_;
    /// Gone with this: what was posted and not carried out then is not any more.
    std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

}  // namespace troupe
