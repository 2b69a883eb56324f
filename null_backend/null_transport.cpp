#include "null_backend/null_transport.h"

#include <memory>

#include "null_backend/null_nic.h"

namespace troupe {

Status NullTransport::install(const TransportContext& context) {
    if (installed_) return {Code::AlreadyExists, "the null transport is installed"};
    installed_ = true;
    slice_bytes_ = context.config.slice_bytes;
    data_loops_ = context.data_loops;
    return Status::ok();
}

std::vector<Transport::PlacedNic> NullTransport::takeNics() {
    std::vector<PlacedNic> nics;
    for (unsigned loop = 0; loop < data_loops_; ++loop) {
        NicInfo info;
        info.name = "null" + std::to_string(loop);
        info.transport = "null";
        info.slice_bytes = slice_bytes_;
        info.merge_bytes = 0;
        // So large that the window is never what is measured.
        info.window_bytes = 1u << 30;
        info.window_requests = 1u << 20;
        nics.push_back({loop, std::make_unique<NullNic>(info)});
    }
    return nics;
}

}  // namespace troupe
