#pragma once

#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>

#include "tests/verbs_backend/verbs_pair.h"

namespace troupe::verbs::testing {

/// VM_TEST_LOG=debug shows what the backend says.
inline Logger vmLog(const std::string& name) {
    const char* level = std::getenv("VM_TEST_LOG");
    if (level == nullptr) return makeSilentLogger();
    auto log = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stdout_sink_mt>());
    log->set_level(spdlog::level::from_str(level));
    return log;
}

struct VmNode : Node {
    VmNode(const Config& configuration, const std::string& segment)
        : Node(configuration, systemVerbs(), segment, vmLog(segment)) {}
};

/// An initiator on device rxe_0a and a target on rxe_0b: both ends of rail 0.
struct VmPair {
    explicit VmPair(const Config& base = {}, const std::string& a_devices = "rxe_0a",
                    const std::string& b_devices = "rxe_0b")
        : a(with(base, a_devices), "a"), b(with(base, b_devices), "b") {}

    static Config with(Config config, const std::string& devices) {
        config.rdma_devices = devices;
        // Emulated processors answer late: half a second is patience for a slice, not for a fault.
        if (config.rdma_ack_timeout == Config().rdma_ack_timeout) config.rdma_ack_timeout = 17;
        return config;
    }

    template <class Container>
    void registerAt(Node& node, const Container& memory) {
        const Status status = node.registerMemory(memory.data(), memory.size());
        ASSERT_TRUE(status.isOk()) << status.toString();
    }
    void open() {
        const auto opened = a.nics.front()->openPath(b.asPeer());
        ASSERT_TRUE(opened.isOk()) << opened.status().toString();
        path = *opened;
    }
    /// As a NicWorker cuts it.
    std::vector<WorkRequest> sliced(const WorkRequest& whole) {
        std::vector<WorkRequest> slices;
        const std::uint64_t slice = nic().info().slice_bytes;
        for (std::uint64_t done = 0; done < whole.length; done += slice) {
            WorkRequest part = whole;
            part.local += done;
            part.remote += done;
            part.length = std::min(slice, whole.length - done);
            slices.push_back(part);
        }
        return slices;
    }
    Nic& nic() { return *a.nics.front(); }
    void run(const std::vector<WorkRequest>& requests) { testing::run(a, nic(), path, requests); }

    VmNode a;
    VmNode b;
    PathId path = 0;
};

/// Runs tests/rdma_vm/devices.sh, as "link rxe_0a down".
inline void devices(const std::string& arguments) {
    const char* folder = std::getenv("VM_SETUP");
    ASSERT_NE(folder, nullptr) << "not in the VM of tests/rdma_vm";
    const std::string line = "bash '" + std::string(folder) + "/devices.sh' " + arguments;
    ASSERT_EQ(std::system(line.c_str()), 0) << line;
}

}  // namespace troupe::verbs::testing
