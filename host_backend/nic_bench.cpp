// Measures what a HostNic adds to a copy: post and poll of one request at a time, hot, between two Nics of this process
// that are two processes to each other. troupe_host_nic_bench [bytes, default 4096].

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "host_backend/host_nic.h"
#include "host_backend/socket.h"
#include "transports/memory_file.h"

namespace {

using namespace troupe;

struct Node {
    explicit Node(const Config& config, const RegistrationTable& table)
        : shared(std::make_shared<host::HostShared>(
              host::HostShared{config, table, Incarnation::random(), makeDefaultLogger(), {}, {}})) {
        shared->socket = "troupe/" + shared->incarnation.toString();
        auto listener = host::listenAt(shared->socket, 4);
        nic = std::make_unique<HostNic>(NicInfo{}, shared, listener ? std::move(*listener) : UniqueFd());
    }
    std::shared_ptr<host::HostShared> shared;
    std::unique_ptr<HostNic> nic;
};

/// Nanoseconds of each of many runs of 1,000; prints the median.
template <class Step>
void measure(const char* name, Step&& step) {
    constexpr int kRuns = 101;
    constexpr int kSteps = 1000;
    std::vector<double> runs;
    for (int run = 0; run < kRuns; ++run) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kSteps; ++i) step();
        const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        runs.push_back(took.count() / kSteps);
    }
    std::nth_element(runs.begin(), runs.begin() + kRuns / 2, runs.end());
    std::printf("%-40s %8.0f ns\n", name, runs[kRuns / 2]);
}

}  // namespace

int main(int argc, char** argv) {
    const std::size_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4096;
    const Config config;
    RegistrationTable table;
    Node owner(config, table);
    Node initiator(config, table);
    auto mapped = MemoryFile::create(bytes, false);
    auto local = MemoryFile::create(bytes, false);
    std::vector<std::byte> plain(bytes);
    if (!mapped || !local) return 1;
    for (const auto& [addr, file] : {std::pair((*mapped)->data(), (*mapped)->fd()), std::pair(plain.data(), -1)}) {
        Region region;
        region.range = {reinterpret_cast<std::uint64_t>(addr), bytes};
        region.file = file;
        const auto reserved = table.reserve(region);
        if (!reserved) return 1;
        table.commit(reserved->id);
    }
    auto desc = std::make_shared<SegmentDesc>();
    desc->incarnation = owner.shared->incarnation;
    desc->host_socket = owner.shared->socket;
    const PathId path = *initiator.nic->openPath(std::make_shared<const Peer>(Peer{2, "owner", "", desc}));
    Sweep sweep;
    const auto copy = [&](std::byte* remote, Opcode opcode, bool serve) {
        const WorkRequest work{(*local)->data(), reinterpret_cast<std::uint64_t>(remote), bytes, 1, opcode};
        sweep.clear();
        initiator.nic->post(path, {&work, 1});
        Sweep other;
        while (sweep.empty()) {
            initiator.nic->poll(Clock::now(), sweep);
            if (serve) owner.nic->poll(Clock::now(), other);
        }
        if (!sweep.failed.empty()) std::printf("%s\n", sweep.failed[0].cause.toString().c_str());
    };
    for (std::byte* const remote : {(*mapped)->data(), plain.data()}) copy(remote, Opcode::Read, true);
    measure("memcpy", [&] { std::memcpy((*local)->data(), (*mapped)->data(), bytes); });
    measure("Clock::now", [] { static_cast<void>(Clock::now()); });
    measure("read, mapped: post + poll", [&] { copy((*mapped)->data(), Opcode::Read, false); });
    measure("write, mapped: post + poll", [&] { copy((*mapped)->data(), Opcode::Write, false); });
    measure("read, process_vm: post + poll", [&] { copy(plain.data(), Opcode::Read, false); });
    return 0;
}
