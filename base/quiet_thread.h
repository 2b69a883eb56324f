#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/status.h"

namespace troupe {

/// Starts a thread that takes no signals: they belong to the host program, whose own threads take them. But for those
/// that a fault of the thread itself raises: blocked, they would end the process past the program's handlers.
/// ResourceExhausted: the system gives no thread. `name` has at most 15 bytes, which is all that Linux keeps.
template <class Work>
Result<std::thread> startQuietThread(const char* name, Work&& work) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    for (const int of_a_fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, of_a_fault);
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
