#pragma once

#include <functional>
#include <string>

#include "base/reactor.h"
#include "host_backend/greeting.h"
#include "transports/probe_remark.h"
#include "transports/transport.h"

namespace troupe::host {

/// One greeting on a reactor, to see whether it works; the connection is closed again. See Transport::probe.
class Probe final : public TransportProbe, public ProbeRemark {
  public:
    Probe(Reactor& reactor, GreetingPlan plan, Duration longest, std::function<void(Status)> done);
    ~Probe() override;

    /// `done` may be called, and this object be destroyed, before it returns.
    void start();
    Status remark() const override { return greeting_.vm(); }

  private:
    void attempt();
    void ready();
    void finish(const Status& outcome);
    void stopWaiting();

    Reactor& reactor_;
    Greeting greeting_;
    const Duration longest_;
    TimePoint deadline_{};
    std::function<void(Status)> done_;
    Reactor::TimerId timer_ = 0;
    int watched_ = -1;
};

}  // namespace troupe::host
