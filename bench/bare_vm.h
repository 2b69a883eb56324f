#pragma once

#include <sys/types.h>

#include <cstdint>

#include "base/status.h"
#include "bench/bare_socket.h"
#include "bench/memory.h"

namespace troupe::bench {

/// The yardstick of copying between processes: process_vm_readv or process_vm_writev in a loop, `options.batch` ranges
/// of `options.block` bytes in a call, between `local` and the memory of process `pid` at `remote`; both are as long as
/// the footprint. Nothing is checked and nobody is told.
Result<double> runBareVm(const LoopOptions& options, const Memory& local, pid_t pid, std::uint64_t remote);

}  // namespace troupe::bench
