#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/reactor.h"
#include "base/status.h"
#include "messages/control_plane.h"
#include "metadata/segment_desc.h"
#include "transports/transport.h"

namespace troupe {

/// How a peer is reached.
struct Route {
    /// Of all transports that reach it, the preferred one's first. Empty: none does.
    std::vector<std::uint32_t> workers;
    RouteExplanation explanation;
    bool probed = false;  ///< A transport had to try; it may be otherwise at another time.
    /// One gave no answer, which says nothing about a minute later: worth another look.
    bool unsettled = false;
    std::string tried;  ///< What was tried in vain and why: worth a word in the log. Empty: nothing.
};

/// True when what transports look at is the same in both: a route to the one is a route to the other.
bool sameReach(const SegmentDesc& a, const SegmentDesc& b);

/// Finds the transports that reach one peer: asks them in order of preference, each within its bound. On the control
/// loop. Destroying it ends the search; `done` is not called then.
class RouteSearch {
  public:
    RouteSearch(Reactor& reactor, std::vector<InstalledTransport> best_first, std::shared_ptr<const SegmentDesc> peer,
                std::function<void(Route)> done);

    /// Calls `done` once, possibly before it returns; `done` may destroy this object.
    void start();

  private:
    void onAnswer(const Status& answer);
    void take(const Status& answer, bool at_once);

    Reactor& reactor_;
    const std::vector<InstalledTransport> transports_;
    const std::shared_ptr<const SegmentDesc> peer_;
    std::function<void(Route)> done_;
    std::size_t next_ = 0;
    bool asking_ = false;           ///< Inside Transport::probe.
    std::optional<Status> answer_;  ///< That came while asking.
    std::unique_ptr<TransportProbe> probe_;
    Route route_;
};

}  // namespace troupe
