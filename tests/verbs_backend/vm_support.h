#pragma once

#include <spdlog/sinks/stdout_sinks.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

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
        const auto opened = nic().openPath(b.asPeer());
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
    Nic& nic() {
        // A device that was not there has been reported; using it would only hide that.
        if (a.nics.empty()) throw std::runtime_error("no Nic");
        return *a.nics.front();
    }
    void run(const std::vector<WorkRequest>& requests) { testing::run(a, nic(), path, requests); }

    VmNode a;
    VmNode b;
    PathId path = 0;
};

/// True where tests run their long form (vm.py --long).
inline bool isLong() {
    const char* value = std::getenv("VM_LONG");
    return value != nullptr && *value != '\0';
}

/// Says how long something took; in the long form, which runs on an idle machine, it must have been less than `bound`.
/// Emulated, and beside other tests, a bound on time says nothing.
inline void expectWithin(const std::string& what, std::chrono::milliseconds took, std::chrono::milliseconds bound) {
    std::printf("%s: %lld ms\n", what.c_str(), static_cast<long long>(took.count()));
    if (isLong()) {
        EXPECT_LT(took.count(), bound.count()) << what;
    }
}

/// Runs a command of the shell in the guest.
inline void shell(const std::string& line) { ASSERT_EQ(std::system(line.c_str()), 0) << line; }

/// Runs tests/rdma_vm/devices.sh, as "link rxe_0a down".
inline void devices(const std::string& arguments) {
    const char* folder = std::getenv("VM_SETUP");
    ASSERT_NE(folder, nullptr) << "not in the VM of tests/rdma_vm";
    shell("bash '" + std::string(folder) + "/devices.sh' " + arguments);
}

/// A link that is down until `up`, or until the test leaves, however it does. Its other end is down with it.
class LinkDown {
  public:
    explicit LinkDown(std::string device) : device_(std::move(device)) { devices("link " + device_ + " down"); }
    ~LinkDown() { up(); }
    LinkDown(const LinkDown&) = delete;
    LinkDown& operator=(const LinkDown&) = delete;
    void up() {
        if (!std::exchange(down_, false)) return;
        devices("link " + device_ + " up");
    }

  private:
    std::string device_;
    bool down_ = true;
};

/// What netem does to the packets that an interface sends, for as long as this lives.
class Netem {
  public:
    Netem(std::string interface, const std::string& what) : interface_(std::move(interface)) {
        shell("tc qdisc add dev " + interface_ + " root netem " + what);
    }
    ~Netem() { shell("tc qdisc del dev " + interface_ + " root"); }
    Netem(const Netem&) = delete;
    Netem& operator=(const Netem&) = delete;

  private:
    std::string interface_;
};

}  // namespace troupe::verbs::testing
