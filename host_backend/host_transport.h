#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "host_backend/greeting.h"
#include "host_backend/host_shared.h"
#include "transports/transport.h"

namespace troupe {

/// Transport "host": reaches the engine's own process, which means its own incarnation, and other processes of the same
/// host, which means the same boot id and a probe that came through to the process of that incarnation. It copies:
/// no device, and no registration of its own. See Transport for the threads.
class HostTransport : public Transport {
  public:
    std::string name() const override { return "host"; }
    /// Where no socket can be had, other processes are not served, and the log says why.
    Status install(const TransportContext& context) override;
    /// One Nic per data loop; the first lets other processes in.
    std::vector<PlacedNic> takeNics() override;
    /// Of a GPU the rings and streams are made here.
    Status registerMemory(const Region& region) override;
    Status unregisterMemory(const Region& region) override;
    /// Adds the name of the socket.
    void describe(SegmentDesc& desc) const override;
    /// What the descriptor alone tells: Ok also where only a probe can know.
    Status reaches(const SegmentDesc& peer) const override;
    std::string deviceWay(const DeviceRequest& request) const override;
    std::unique_ptr<TransportProbe> probe(Reactor& reactor, const SegmentDesc& peer,
                                          std::function<void(Status)> done) const override;

  private:
    std::shared_ptr<const host::HostShared> shared_;  ///< Null before install.
    UniqueFd listener_;                               ///< Until takeNics.
    std::string boot_id_;
    unsigned data_loops_ = 0;
};

}  // namespace troupe
