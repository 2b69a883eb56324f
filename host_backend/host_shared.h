#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "base/incarnation.h"
#include "base/log.h"
#include "security/cluster_auth.h"
#include "transports/registration_table.h"

namespace troupe::host {

/// What every HostNic of an engine knows. Made by install; outlives the Nics.
struct HostShared {
    const Config& config;
    const RegistrationTable& regions;
    /// Initiators read it from this process's memory, so it stays where it is.
    const Incarnation incarnation;
    const Logger log;
    std::string socket;  ///< Abstract name of the own listener; empty: other processes are not served.
    std::string hint;    ///< See accessHint.
    std::shared_ptr<const ClusterAuth> auth = nullptr;  ///< Null: no key.
};

}  // namespace troupe::host
