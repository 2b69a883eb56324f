#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tcp_backend/tcp_nic.h"
#include "transports/transport.h"

namespace troupe::tcp {

/// Plain sockets: works wherever the control connection does. One Nic and one listening port for each data loop.
///
/// Memory of the host needs no preparation: what peers may touch is read from the registration table at each request.
class TcpTransport final : public Transport {
  public:
    std::string name() const override { return "tcp"; }
    /// InvalidArgument: `bind_host` is not numeric, or not an address of this machine. ResourceExhausted: no ports or
    /// descriptors left.
    Status install(const TransportContext& context) override;
    std::vector<PlacedNic> takeNics() override { return std::move(nics_); }
    /// Of a GPU it is staged, and the rings are made here.
    Status registerMemory(const Region& region) override;
    Status unregisterMemory(const Region& region) override;
    void describe(SegmentDesc& desc) const override;
    Status reaches(const SegmentDesc& peer) const override;
    std::string deviceWay(const DeviceRequest& request) const override;

  private:
    std::vector<PlacedNic> nics_;       ///< Until they are taken.
    std::vector<std::uint16_t> ports_;  ///< By Nic.
    std::shared_ptr<device::StagingPool> staging_;
};

}  // namespace troupe::tcp
