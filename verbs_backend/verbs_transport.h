#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transports/transport.h"
#include "verbs_backend/connector.h"
#include "verbs_backend/memory_table.h"
#include "verbs_backend/verbs_api.h"

namespace troupe::verbs {

/// InfiniBand and RoCE: one Nic for each active port that has an address, one thread that makes connections, and keys
/// for all registered memory.
class VerbsTransport final : public Transport {
  public:
    explicit VerbsTransport(std::shared_ptr<VerbsApi> api = systemVerbs());
    ~VerbsTransport() override;

    std::string name() const override { return "rdma"; }
    /// TransportMissing: no usable device, with the reason for each; no rdma_cm. ResourceExhausted: no descriptors,
    /// queues or ports left.
    Status install(const TransportContext& context) override;
    std::vector<PlacedNic> takeNics() override { return std::move(nics_); }
    Status registerMemory(const Region& region) override { return memory_->add(region); }
    Status unregisterMemory(const Region& region) override { return memory_->remove(region); }
    void describe(SegmentDesc& desc) const override;
    Status reaches(const SegmentDesc& peer) const override;
    std::string deviceWay(const DeviceRequest& request) const override;
    void answer(const Asker& asker, std::string question, std::function<void(Result<std::string>)> reply) override;
    void askerLeft(std::uint64_t connection) override;
    void peerLeft(std::uint32_t peer) override;

  private:
    const std::shared_ptr<VerbsApi> api_;
    std::vector<std::shared_ptr<Device>> devices_;
    std::shared_ptr<MemoryTable> memory_;
    std::shared_ptr<Connector> connector_;
    std::uint16_t port_ = 0;
    std::vector<PlacedNic> nics_;  ///< Until they are taken.
};

}  // namespace troupe::verbs
