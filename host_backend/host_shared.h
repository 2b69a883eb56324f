#pragma once

#include <memory>
#include <string>

#include "base/config.h"
#include "base/incarnation.h"
#include "base/log.h"
#include "host_backend/device_exports.h"
#include "host_backend/device_mapper.h"
#include "host_backend/device_ways.h"
#include "security/cluster_auth.h"
#include "transports/registration_table.h"
#include "transports/staging.h"

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
    std::shared_ptr<const ClusterAuth> auth = nullptr;       ///< Null: no key.
    std::shared_ptr<device::StagingPool> staging = nullptr;  ///< As of TransportContext.
    /// What of GPUs can be given to others.
    std::shared_ptr<DeviceExports> exports = std::make_shared<DeviceExports>();
    /// Maps what of their GPUs others give.
    std::shared_ptr<DeviceMapper> mapper = std::make_shared<DeviceMapper>();
    /// How others gave it.
    std::shared_ptr<DeviceWays> ways = std::make_shared<DeviceWays>();
};

}  // namespace troupe::host
