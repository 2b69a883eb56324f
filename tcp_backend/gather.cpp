#include "tcp_backend/gather.h"

#include <sys/socket.h>

#include <cerrno>

namespace troupe::tcp {

Gather::Gather() : arena_(kArenaBytes), pieces_(kMaxPieces) {}

ssize_t Gather::send(int fd) {
    ssize_t sent = 0;
    if (count_ == 1) {
        do sent = ::send(fd, pieces_[0].iov_base, pieces_[0].iov_len, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (sent < 0 && errno == EINTR);
        return sent;
    }
    msghdr message{};
    message.msg_iov = pieces_.data();
    message.msg_iovlen = count_;
    do sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent;
}

}  // namespace troupe::tcp
