#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "topology/topology.h"

namespace troupe {

/// Where something is attached.
struct Place {
    int numa_node = -1;  ///< -1: the machine does not say, or has no NUMA.
    /// From the host bridge down to the function: "pci0000:15", "0000:15:01.0", "0000:16:00.0"; empty: not on PCI.
    std::vector<std::string> pci;
    bool operator==(const Place&) const = default;
};

/// One RDMA device, as the kernel lists it.
struct RdmaDevice {
    std::string name;
    std::string netdev;  ///< The interface behind its first port's first GID; empty for InfiniBand without one.
    Place place;         ///< Of the device, or of its interface where it has none of its own (Soft-RoCE).
    std::uint32_t speed_gbps = 0;      ///< Of the fastest active port; 0: unknown.
    bool active = false;               ///< A port is.
    bool has_node = false;             ///< /dev/infiniband has its uverbs file: it can be opened at all.
    bool is_virtual_function = false;  ///< SR-IOV.
    bool operator==(const RdmaDevice&) const = default;
};

/// One GPU: a PCI function of class 0x03 with no screen to speak of, by address as nvidia-smi and CUDA with
/// CUDA_DEVICE_ORDER=PCI_BUS_ID number them.
struct Gpu {
    int index = 0;
    Place place;
    bool operator==(const Gpu&) const = default;
};

/// What may carry and hold memory.
struct Machine {
    std::vector<NumaNode> nodes;
    std::vector<RdmaDevice> rdma;              ///< By name.
    std::vector<Gpu> gpus;                     ///< By PCI address.
    std::vector<NetworkInterface> interfaces;  ///< By name.
};

/// Reads <sysfs>/class/{infiniband,infiniband_verbs,net}, <sysfs>/bus/pci/devices and what discoverTopology reads, and
/// looks for the files of <dev>/infiniband. What is absent or does not parse is left out. Reads files, so never on a
/// data loop.
Machine discoverMachine(const std::filesystem::path& sysfs = "/sys", const std::filesystem::path& dev = "/dev");

/// What the priority matrix calls the GPU at a PCI address ("0000:1b:00.0"), which a process may count otherwise
/// (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER): "cuda:3". "*", of which nothing is known: it is none of these GPUs.
/// Empty: there are none, so that nobody has counted.
std::string matrixLocationOf(const std::vector<Gpu>& gpus, const std::string& pci);

/// How far two places are from each other; the smaller is nearer.
enum class Nearness {
    Same,        ///< The same PCI function, or memory and a device of the same node.
    Switch,      ///< Below one PCI switch: what passes between them does not reach the processor.
    HostBridge,  ///< Below one host bridge.
    Node,        ///< On one NUMA node.
    Unknown,     ///< One of them does not say where it is.
    Remote,      ///< On different nodes.
};
struct Distance {
    Nearness nearness = Nearness::Unknown;
    int steps = 0;  ///< Switch, HostBridge: links between them. Remote: as the firmware says it (10: local).
    auto operator<=>(const Distance&) const = default;
};
Distance distanceBetween(const Place& a, const Place& b, const std::vector<NumaNode>& nodes);

/// "same switch, 4 links", "another node, distance 21".
std::string toString(const Distance& distance);

}  // namespace troupe
