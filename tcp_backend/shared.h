#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/incarnation.h"
#include "base/log.h"
#include "security/cluster_auth.h"
#include "security/refusal_log.h"
#include "tcp_backend/events.h"
#include "tcp_backend/gather.h"
#include "tcp_backend/gpu.h"
#include "tcp_backend/range_guard.h"

namespace troupe {
class FaultInjector;
}

namespace troupe::tcp {

/// Bytes one connection may receive, and send, in one pass, so that none starves the others: some 200 us at 5 GB/s.
inline constexpr std::size_t kPassBytes = 1u << 20;
/// Bytes all connections of a Nic move in one pass, give or take one connection's share.
inline constexpr std::size_t kNicPassBytes = 2u << 20;
/// Bytes one sendmsg is given at most.
inline constexpr std::size_t kSendBytes = 1u << 20;

/// Of registered addresses that cannot be read, so many are kept in mind.
inline constexpr std::size_t kMostUnreadable = 16;

/// What the connections of one Nic share. All of it belongs to the Nic's owner.
struct Shared {
    Shared(const Config& configuration, const RegistrationTable& table, const Incarnation& self, Logger sink,
           std::shared_ptr<const ClusterAuth> its_auth, std::shared_ptr<device::StagingPool> staging = nullptr,
           unsigned loop = 0)
        : config(configuration),
          incarnation(self),
          auth(std::move(its_auth)),
          log(std::move(sink)),
          guard(table),
          gpu(events, table, std::move(staging), loop),
          scratch(256u << 10) {}

    const Config config;
    const Incarnation incarnation;
    const std::shared_ptr<const ClusterAuth> auth;  ///< Null: no key.
    std::string name;                               ///< "tcp0".
    std::uint32_t index = 0;                        ///< The 0 of it.
    Logger log;
    RefusalLog refusals;
    EventSet events;
    RangeGuard guard;
    Gpu gpu;
    Gather gather;
    std::vector<std::byte> scratch;         ///< Receives; the spike's size, not tuned yet.
    std::size_t pass_bytes = 0;             ///< Moved in this pass.
    std::vector<std::uint64_t> unreadable;  ///< Addresses that ended a connection; at most kMostUnreadable.
    std::uint64_t attempts = 0;  ///< For Hello::attempt: the installation in the upper half, then connections started.
    std::uint64_t passes = 1;    ///< Polls so far. What is lost in one is one incident (Failure::incident).
    std::minstd_rand random;     ///< Jitter only.
    FaultInjector* faults = nullptr;  ///< As of TransportContext.
};

}  // namespace troupe::tcp
