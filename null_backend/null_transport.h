#pragma once

#include <string>
#include <vector>

#include "transports/transport.h"

namespace troupe {

/// Transport "null": one NullNic per data loop. See Transport for the threads.
class NullTransport : public Transport {
  public:
    std::string name() const override { return "null"; }
    Status install(const TransportContext& context) override;
    std::vector<PlacedNic> takeNics() override;
    Status registerMemory(const Region&) override { return Status::ok(); }
    Status unregisterMemory(const Region&) override { return {}; }
    void describe(SegmentDesc&) const override {}  ///< Adds nothing: no peer needs to know.
    Status reaches(const SegmentDesc&) const override { return Status::ok(); }

  private:
    bool installed_ = false;
    std::uint64_t slice_bytes_ = 0;
    unsigned data_loops_ = 0;
};

}  // namespace troupe
