#include "engine/transport_factory.h"

#include "host_backend/host_transport.h"
#include "null_backend/null_transport.h"
#include "tcp_backend/tcp_transport.h"
#include "verbs_backend/verbs_transport.h"

namespace troupe {

Result<MadeTransport> makeTransport(const std::string& name) {
    // "null" first: who installs it wants the engine measured, not the wire.
    if (name == "null") return MadeTransport{std::make_unique<NullTransport>(), 0};
    if (name == "host") return MadeTransport{std::make_unique<HostTransport>(), 10};
    if (name == "rdma") return MadeTransport{std::make_unique<verbs::VerbsTransport>(), 50};
    if (name == "tcp") return MadeTransport{std::make_unique<tcp::TcpTransport>(), 100};
    return {Code::NotFound, "unknown transport '" + name + "'; known are rdma, tcp, host and null"};
}

}  // namespace troupe
