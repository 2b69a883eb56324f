#include "bench/bare_vm.h"

#include <fmt/format.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

namespace troupe::bench {

Result<double> runBareVm(const LoopOptions& options, const Memory& local, pid_t pid, std::uint64_t remote) {
    BlockWalk walk(options.footprint, options.block, options.scattered);
    std::vector<iovec> here(options.batch);
    std::vector<iovec> there(options.batch);
    const auto copyFor = [&](double seconds) -> Result<double> {
        std::uint64_t bytes = 0;
        const auto start = std::chrono::steady_clock::now();
        std::chrono::duration<double> took{};
        while (took.count() < seconds) {
            for (std::uint32_t i = 0; i < options.batch; ++i) {
                const std::uint64_t offset = walk.next();
                here[i] = {local.data() + offset, options.block};
                there[i] = {reinterpret_cast<void*>(remote + offset), options.block};
            }
            const ssize_t moved =
                options.write ? ::process_vm_writev(pid, here.data(), here.size(), there.data(), there.size(), 0)
                              : ::process_vm_readv(pid, here.data(), here.size(), there.data(), there.size(), 0);
            if (moved != static_cast<ssize_t>(options.block * options.batch))
                return {Code::Unsupported, fmt::format("process_vm moved {}: {}", moved, std::strerror(errno))};
            bytes += static_cast<std::uint64_t>(moved);
            took = std::chrono::steady_clock::now() - start;
        }
        return static_cast<double>(bytes) / took.count() / 1e9;
    };
    if (const auto warm = copyFor(options.warmup_seconds); !warm) return warm;
    return copyFor(options.seconds);
}

}  // namespace troupe::bench
