#include "host_backend/socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/endpoint.h"

namespace troupe::host {

namespace {

/// Descriptors looked for in one packet: more than the one that is allowed, so that a second is noticed. What a hostile
/// peer sends beyond is closed by the kernel (MSG_CTRUNC).
constexpr std::size_t kMostDescriptors = 4;

struct Address {
    sockaddr_un name{};
    socklen_t length = 0;
    const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

Result<Address> addressOf(const std::string& name) {
    Address address;
    // unix(7): the first byte of an abstract name is zero, and the length says where it ends.
    if (name.empty() || name.size() >= sizeof address.name.sun_path)
        return {Code::InvalidArgument, "no name for a unix socket: '" + name + "'"};
    address.name.sun_family = AF_UNIX;
    std::memcpy(address.name.sun_path + 1, name.data(), name.size());
    address.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return address;
}

Result<UniqueFd> makeSocket() {
    UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (made) return made;
    return errnoStatus(codeOf(errno, Code::Unsupported), "unix socket", errno);
}

}  // namespace

Code codeOf(int error, Code otherwise) {
    const bool shortage = error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS;
    return shortage ? Code::ResourceExhausted : otherwise;
}

Result<UniqueFd> listenAt(const std::string& name, int backlog) {
    auto address = addressOf(name);
    if (!address) return address.status();
    auto made = makeSocket();
    if (!made) return made.status();
    if (::bind(made->get(), address->get(), address->length) != 0 || ::listen(made->get(), backlog) != 0)
        return errnoStatus(errno == EADDRINUSE ? Code::AlreadyExists : Code::Unsupported, "unix socket @" + name,
                           errno);
    return made;
}

Result<Connecting> connectTo(const std::string& name) {
    auto address = addressOf(name);
    if (!address) return address.status();
    auto made = makeSocket();
    if (!made) return made.status();
    if (::connect(made->get(), address->get(), address->length) == 0) return Connecting{std::move(*made), false};
    switch (errno) {
        case EAGAIN:
        case EINTR: return Connecting{UniqueFd(), true};
        case EACCES:
        case EPERM: return errnoStatus(Code::AccessDenied, "connect to unix socket @" + name, errno);
        case ECONNREFUSED:
            return {Code::ConnectionRefused, "nobody listens on unix socket @" + name +
                                                 " here: its process has ended, or is in another network namespace"};
        default: return errnoStatus(Code::ConnectionRefused, "connect to unix socket @" + name, errno);
    }
}

Io sendPacket(int socket, const Packet& packet, int descriptor) {
    iovec part{const_cast<std::byte*>(packet.bytes.data()), packet.length};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    if (descriptor >= 0) {
        message.msg_control = control.data();
        message.msg_controllen = control.size();
        cmsghdr* const header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    for (;;) {
        if (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return Io::Done;
        if (errno == EINTR) continue;
        // ETOOMANYREFS: more descriptors are under way than RLIMIT_NOFILE; some will be received.
        return errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? Io::Again : Io::Closed;
    }
}

Io receivePacket(int socket, Received& received) {
    received.packet.length = 0;
    received.descriptor.reset();
    received.lost_descriptor = false;
    iovec part{received.packet.bytes.data(), received.packet.bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMostDescriptors)> control{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t got = -1;
    bool reset = false;
    do {
        got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        // An end that was closed before it had read everything resets the connection, and is said before what it sent.
    } while (got < 0 && (errno == EINTR || (errno == ECONNRESET && !std::exchange(reset, true))));
    if (got < 0) return errno == EAGAIN || errno == EWOULDBLOCK ? Io::Again : Io::Closed;

    std::size_t descriptors = 0;
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t i = 0; i < count; ++i) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
            UniqueFd owned(descriptor);
            if (++descriptors == 1) received.descriptor = std::move(owned);
        }
    }
    // A packet of no bytes is no frame either, so the end of the connection needs no telling apart from it.
    if (got == 0) return Io::Closed;
    // Cut short although there was room for more than one: the kernel had no number to give it.
    received.lost_descriptor = (message.msg_flags & MSG_CTRUNC) != 0 && descriptors == 0;
    const bool cut = (message.msg_flags & MSG_CTRUNC) != 0 && !received.lost_descriptor;
    const bool whole = (message.msg_flags & MSG_TRUNC) == 0 && !cut && descriptors <= 1;
    received.packet.length = whole ? static_cast<std::size_t>(got) : 0;
    return Io::Done;
}

}  // namespace troupe::host
