#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_injector.h"
#include "transports/faulty_nic.h"
#include "transports/transport.h"

namespace troupe {

/// A transport each of whose Nics is a FaultyNic; all else is the real one's.
class FaultyTransport final : public Transport {
  public:
    /// `faults` outlives this and its Nics.
    FaultyTransport(std::unique_ptr<Transport> transport, FaultInjector& faults)
        : transport_(std::move(transport)), faults_(faults) {}

    std::string name() const override { return transport_->name(); }
    Status install(const TransportContext& context) override { return transport_->install(context); }
    std::vector<PlacedNic> takeNics() override {
        std::vector<PlacedNic> nics = transport_->takeNics();
        for (PlacedNic& placed : nics) placed.nic = std::make_unique<FaultyNic>(std::move(placed.nic), faults_);
        return nics;
    }
    Status registerMemory(const Region& region) override { return transport_->registerMemory(region); }
    Status unregisterMemory(const Region& region) override { return transport_->unregisterMemory(region); }
    void describe(SegmentDesc& desc) const override { transport_->describe(desc); }
    Status reaches(const SegmentDesc& peer) const override { return transport_->reaches(peer); }
    void answer(const Asker& asker, std::string question, std::function<void(Result<std::string>)> reply) override {
        transport_->answer(asker, std::move(question), std::move(reply));
    }
    void askerLeft(std::uint64_t connection) override { transport_->askerLeft(connection); }
    void peerLeft(std::uint32_t peer) override { transport_->peerLeft(peer); }
    std::unique_ptr<TransportProbe> probe(Reactor& reactor, const SegmentDesc& peer,
                                          std::function<void(Status)> done) const override {
        return transport_->probe(reactor, peer, std::move(done));
    }

  private:
    std::unique_ptr<Transport> transport_;
    FaultInjector& faults_;
};

}  // namespace troupe
