#include "apps/support/say.h"

#include <fcntl.h>
#include <unistd.h>

namespace troupe::apps {

void openStandardDescriptors() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(fd, F_GETFD) != -1) continue;
        // The lowest free descriptor is the one that open takes, and those below are open.
        if (::open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd) return;
    }
}

}  // namespace troupe::apps
