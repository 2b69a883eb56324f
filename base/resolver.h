#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/reactor.h"
#include "base/status.h"

namespace troupe {

/// Host names to numeric addresses without blocking a loop: glibc's getaddrinfo_a, whose threads do the waiting, looked
/// at from a timer. All calls on the reactor's turn.
class Resolver {
  public:
    explicit Resolver(Reactor& reactor);
    /// Drops what is open; no callback comes any more.
    ~Resolver();
    Resolver(const Resolver&) = delete;
    Resolver& operator=(const Resolver&) = delete;

    /// The first address of `host`, IPv4 or IPv6 as the system prefers. A numeric host is answered at once.
    /// NotFound with the resolver's words; Timeout at `deadline`.
    void resolve(const std::string& host, TimePoint deadline, std::function<void(Result<std::string>)> done);

  private:
    struct Query;
    void look();
    static Result<std::string> outcome(Query& query, int error);
    struct Abandoned;
    static void drop(Reactor& reactor, const std::shared_ptr<Abandoned>& abandoned, std::unique_ptr<Query> query);

    Reactor& reactor_;
    std::list<std::unique_ptr<Query>> open_;
    const std::shared_ptr<Abandoned> abandoned_;  ///< Outlives this until glibc is done with them.
    Reactor::TimerId timer_ = 0;
    const std::shared_ptr<char> alive_ = std::make_shared<char>();
};

}  // namespace troupe
