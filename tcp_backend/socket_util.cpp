#include "tcp_backend/socket_util.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>

namespace troupe::tcp {

void tuneSocket(int fd, std::uint64_t buffer_bytes) {
    // None of these can fail on a TCP socket in a way that matters: they only tune.
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    // A peer whose host is gone is found after about 30 s of silence (idle + 3 probes), without any work on it.
    const int idle_s = 15;
    const int interval_s = 5;
    const int probes = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    if (buffer_bytes == 0) {
        // The kernel grows the receive buffer with what each call takes out, and a loop that polls takes little at a
        // time: left to itself, the buffer stays so small that blocks of 64 KiB are a tenth slower. A low-water mark
        // raises it at once, to at most half of net.ipv4.tcp_rmem's maximum and without ending its growth. The mark
        // itself is not wanted.
        int bytes = 2 << 20;
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
        bytes = 1;
        setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &bytes, sizeof bytes);
    } else {
        const int size = static_cast<int>(std::min<std::uint64_t>(buffer_bytes, INT_MAX / 2));
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    }
}

}  // namespace troupe::tcp
