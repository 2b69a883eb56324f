#pragma once

#include <string>
#include <vector>

#include "transports/transport.h"

namespace troupe {

/// Transport "host": reaches the engine's own process, which means its own incarnation and nothing else, by copying.
/// It opens no device and needs no registration of its own. See Transport for the threads.
class HostTransport : public Transport {
  public:
    std::string name() const override { return "host"; }
    Status install(const TransportContext& context) override;
    /// One Nic per data loop.
    std::vector<PlacedNic> takeNics() override;
    /// Unsupported for memory of a GPU, which a processor's copy cannot touch.
    Status registerMemory(const Region& region) override;
    void unregisterMemory(const Region&) override {}
    /// Adds nothing: who is in the process needs no directions, and nobody else can use it.
    void describe(SegmentDesc&) const override {}
    /// TransportMissing for any other incarnation.
    Status reaches(const SegmentDesc& peer) const override;

  private:
    const Config* config_ = nullptr;  ///< Null before install.
    const RegistrationTable* regions_ = nullptr;
    Incarnation incarnation_;
    unsigned data_loops_ = 0;
};

}  // namespace troupe
