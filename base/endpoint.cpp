#include "base/endpoint.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>
#include <system_error>

namespace troupe {

namespace {

Status badEndpoint(std::string_view text, std::string_view why) {
    return {Code::InvalidArgument, "'" + std::string(text) + "' is not host:port or [v6]:port: " + std::string(why)};
}

/// Decimal digits only, 0..65535.
bool parsePort(std::string_view digits, std::uint16_t& port) {
    if (digits.empty() || digits.size() > 5) return false;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    return error == std::errc{} && end == digits.data() + digits.size();
}

/// What a refused or failed connect means to the caller.
Code connectCode(int error) {
    switch (error) {
        case ECONNREFUSED:
        case ENOENT: return Code::ConnectionRefused;  // A unix socket that is not there.
        case EACCES: return Code::AccessDenied;
        case ETIMEDOUT: return Code::Timeout;
        case EMFILE:
        case ENFILE:
        case ENOBUFS:
        case ENOMEM:
        case EADDRNOTAVAIL: return Code::ResourceExhausted;
        default: return Code::ConnectionLost;
    }
}

}  // namespace

Result<Endpoint> Endpoint::parse(std::string_view text) {
    std::string_view host = text;
    std::string_view port_text;
    bool has_port = false;
    if (text.starts_with('[')) {
        const auto close = text.find(']');
        if (close == std::string_view::npos) return badEndpoint(text, "the bracket is not closed");
        host = text.substr(1, close - 1);
        const auto rest = text.substr(close + 1);
        if (!rest.empty() && rest.front() != ':') return badEndpoint(text, "only :port may follow the bracket");
        has_port = !rest.empty();
        if (has_port) port_text = rest.substr(1);
    } else if (std::count(text.begin(), text.end(), ':') == 1) {
        const auto colon = text.find(':');
        host = text.substr(0, colon);
        port_text = text.substr(colon + 1);
        has_port = true;
    }
    if (host.empty()) return badEndpoint(text, "the host is empty");
    if (host.find_first_of("[]") != std::string_view::npos) return badEndpoint(text, "stray bracket");
    Endpoint result;
    result.host = std::string(host);
    if (has_port && !parsePort(port_text, result.port)) return badEndpoint(text, "the port is not in 0..65535");
    return result;
}

std::string Endpoint::toString() const {
    const bool brackets = host.find(':') != std::string::npos;
    return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<SocketAddress> SocketAddress::fromNumeric(const std::string& host, std::uint16_t port) {
    SocketAddress result;
    // inet_pton, because getaddrinfo also takes "1" and "127.1" for IPv4 addresses.
    auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
    if (host.find('\0') == std::string::npos && inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        result.length = sizeof *v4;
        return result;
    }
    // getaddrinfo, because inet_pton knows no scope ("fe80::1%eth0").
    addrinfo hints{};
    hints.ai_family = AF_INET6;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (host.find(':') == std::string::npos || host.find('\0') != std::string::npos ||
        getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0 || !found)
        return {Code::InvalidArgument, "'" + host + "' is not a numeric IPv4 or IPv6 address"};
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
    *v6 = *reinterpret_cast<const sockaddr_in6*>(found->ai_addr);
    v6->sin6_port = htons(port);
    result.length = sizeof *v6;
    return result;
}

Result<SocketAddress> SocketAddress::local(int fd) {
    SocketAddress result;
    result.length = sizeof result.storage;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&result.storage), &result.length) != 0)
        return errnoStatus(Code::InvalidArgument, "getsockname", errno);
    return result;
}

Result<SocketAddress> SocketAddress::remote(int fd) {
    SocketAddress result;
    result.length = sizeof result.storage;
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&result.storage), &result.length) != 0)
        return errnoStatus(errno == ENOTCONN ? Code::ConnectionLost : Code::InvalidArgument, "getpeername", errno);
    return result;
}

std::uint16_t SocketAddress::port() const {
    if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
    if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
    return 0;
}

std::string SocketAddress::host() const {
    char text[NI_MAXHOST];
    if (getnameinfo(get(), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return {};
    return text;
}

bool SocketAddress::isLoopback() const {
    if (family() == AF_INET)
        return (ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24) == 127;
    return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr);
}

bool SocketAddress::sameHost(const SocketAddress& other) const {
    if (family() != other.family()) return false;
    if (family() == AF_INET)
        return reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr ==
               reinterpret_cast<const sockaddr_in*>(&other.storage)->sin_addr.s_addr;
    return family() == AF_INET6 &&
           IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr,
                              &reinterpret_cast<const sockaddr_in6*>(&other.storage)->sin6_addr);
}

std::string SocketAddress::toString() const {
    if (family() == AF_UNIX) return std::string("unix:") + reinterpret_cast<const sockaddr_un*>(&storage)->sun_path;
    return Endpoint{host(), port()}.toString();
}

Result<UniqueFd> listenOn(const SocketAddress& address, int backlog) {
    UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) return errnoStatus(Code::ResourceExhausted, "socket for " + address.toString(), errno);
    // A fixed port must be usable at once after a restart, past connections in TIME_WAIT. Linux still refuses a second
    // listener. Both the old connections and the new listener need the flag, so a listener on a port of the kernel's
    // choice gets it too; but only after bind, where it would let the kernel pick a port that is half in use.
    const auto allowReuse = [&fd] {
        const int one = 1;
        setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    };
    if (address.port() != 0) allowReuse();
    if (bind(fd.get(), address.get(), address.length) != 0) {
        const int error = errno;
        const Code code = error == EADDRINUSE ? Code::AlreadyExists
                          : error == EACCES   ? Code::AccessDenied
                                              : Code::InvalidArgument;
        const Status refused = errnoStatus(code, "bind " + address.toString(), error);
        const char* remedy = error == EADDRINUSE      ? "; give another port, or 0 for any free one"
                             : error == EACCES        ? "; ports below 1024 are for root"
                             : error == EADDRNOTAVAIL ? "; it is no address of this machine"
                                                      : "";
        return {code, refused.message() + remedy};
    }
    if (address.port() == 0) allowReuse();
    if (listen(fd.get(), backlog) != 0)
        return errnoStatus(errno == EADDRINUSE ? Code::AlreadyExists : Code::ResourceExhausted,
                           "listen on " + address.toString(), errno);
    return fd;
}

Result<UniqueFd> startConnect(const SocketAddress& address) {
    UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) return errnoStatus(Code::ResourceExhausted, "socket for " + address.toString(), errno);
    const int one = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd.get(), address.get(), address.length) != 0 && errno != EINPROGRESS && errno != EINTR)
        return errnoStatus(connectCode(errno), "connect " + address.toString(), errno);
    return fd;
}

Status connectOutcome(int fd) {
    int error = 0;
    socklen_t length = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
    return error == 0 ? Status::ok() : errnoStatus(connectCode(error), "connect", error);
}

Status errnoStatus(Code code, std::string_view what, int error) {
    // The system's own words, "Function not implemented", leave open whose function that is, and why.
    const std::string why = error == ENOSYS ? "this kernel has no such call, or a sandbox (seccomp, gVisor) forbids it"
                                            : std::generic_category().message(error);
    return {code, std::string(what) + ": " + why + " (errno " + std::to_string(error) + ")"};
}

}  // namespace troupe
