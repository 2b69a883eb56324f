#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace troupe {

/// A host and a port, as people write them: "10.0.0.1:7000", "[fe80::1%eth0]:7000", "node7:7000".
struct Endpoint {
    std::string host;        ///< Without brackets.
    std::uint16_t port = 0;  ///< 0 where the text had none.

    /// Parses "host", "host:port", "[v6]" and "[v6]:port". A bare IPv6 address (two or more colons, no brackets) is
    /// taken whole as the host. InvalidArgument names the text: empty host, port not in 0..65535, stray bracket.
    static Result<Endpoint> parse(std::string_view text);

    /// Brackets a host that contains a colon; always with the port.
    std::string toString() const;
    bool operator==(const Endpoint&) const = default;
};

/// A resolved socket address, IPv4 or IPv6.
struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t length = 0;

    /// From a numeric host (never DNS); InvalidArgument otherwise.
    static Result<SocketAddress> fromNumeric(const std::string& host, std::uint16_t port);
    /// Of the local or remote end of a socket.
    static Result<SocketAddress> local(int fd);
    static Result<SocketAddress> remote(int fd);

    int family() const { return storage.ss_family; }
    std::uint16_t port() const;
    std::string host() const;      ///< Numeric, without brackets.
    std::string toString() const;  ///< "1.2.3.4:5" or "[::1]:5".
    bool isLoopback() const;
    bool sameHost(const SocketAddress& other) const;  ///< Whatever the ports.
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

/// A non-blocking listening socket on `address` (port 0: the kernel picks one; read it back with
/// SocketAddress::local). Without SO_REUSEPORT, so that two engines never share a port.
Result<UniqueFd> listenOn(const SocketAddress& address, int backlog = 128);

/// Starts a non-blocking connect. The returned socket is writable once the outcome is known: read it with
/// `connectOutcome`. TCP_NODELAY is set.
Result<UniqueFd> startConnect(const SocketAddress& address);

/// SO_ERROR of a connecting socket as a Status: Ok, ConnectionRefused, Timeout, or ConnectionLost with the errno.
Status connectOutcome(int fd);

/// A Status for a system call that failed: "connect 10.0.0.1:7000: Connection refused (errno 111)".
Status errnoStatus(Code code, std::string_view what, int error);

}  // namespace troupe
