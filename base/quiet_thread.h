#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace troupe {

/// Starts a thread that takes no signals: they belong to the host program, whose own threads take them.
/// ResourceExhausted: the system gives no thread. `name` has at most 15 bytes, which is all that Linux keeps.
template <class Work>
Result<std::thread> startQuietThread(const char* name, Work&& work) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Status refused;
    std::thread thread;
    try {
        thread = std::thread(std::forward<Work>(work));
        pthread_setname_np(thread.native_handle(), name);
    } catch (const std::system_error& error) {
        refused = Status(Code::ResourceExhausted, std::string("start the thread ") + name + ": " + error.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!refused) return refused;
    return thread;
}

}  // namespace troupe
