#pragma once

#include <memory>

#include "tests/verbs_backend/soft_verbs.h"

namespace troupe::verbs::testing {

/// For tests of whole engines: as long as it lives, what installTransport("rdma") of this process finds in the place of
/// libibverbs are the devices of `soft`. One at a time.
///
/// The seam is the linker's: a program with the target soft_system among its DEPS has a systemVerbs() of its own, so
/// that verbs_backend/system_verbs.cpp is not part of it. Nothing of the product knows of it.
class SoftSystem {
  public:
    explicit SoftSystem(std::shared_ptr<SoftVerbs> soft);
    ~SoftSystem();
    SoftSystem(const SoftSystem&) = delete;
    SoftSystem& operator=(const SoftSystem&) = delete;
};

}  // namespace troupe::verbs::testing
