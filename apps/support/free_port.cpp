#include "apps/support/free_port.h"

#include "base/endpoint.h"

namespace troupe::apps {

Result<std::uint16_t> freePort() {
    const auto listener = listenOn(*SocketAddress::fromNumeric("127.0.0.1", 0));
    if (!listener) return listener.status();
    const auto local = SocketAddress::local(listener->get());
    if (!local) return local.status();
    return local->port();
}

}  // namespace troupe::apps
