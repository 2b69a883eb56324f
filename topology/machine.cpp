#include "topology/machine.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "topology/sysfs.h"

namespace troupe {

namespace {

namespace fs = std::filesystem;
using sysfs::entriesOf;
using sysfs::readLine;
using sysfs::toInt;

// Firmware that gives no distance between two nodes: ACPI SLIT, unreachable.
constexpr int kFarDistance = 255;
// Links on the way up to an interface below a bond below a VLAN; more is a loop.
constexpr int kMostLowers = 4;
constexpr int kMostPorts = 16;

/// "pci0000:15" or a function's address, "0000:16:00.0".
bool isPciName(const std::string& name) {
    if (name.rfind("pci", 0) == 0 && name.find(':') != std::string::npos) return true;
    const auto hex = [&](std::size_t at, std::size_t count) {
        return std::all_of(name.begin() + static_cast<std::ptrdiff_t>(at),
                           name.begin() + static_cast<std::ptrdiff_t>(at + count),
                           [](unsigned char c) { return std::isxdigit(c) != 0; });
    };
    // Domains may have more than four digits (VMD).
    const auto first = name.find(':');
    return first != std::string::npos && first >= 4 && name.size() == first + 8 && name[first + 3] == ':' &&
           name[first + 6] == '.' && hex(0, first) && hex(first + 1, 2) && hex(first + 4, 2) && hex(first + 7, 1);
}

/// Of a "device" link; nothing when there is none.
std::optional<Place> placeOf(const fs::path& device) {
    std::error_code error;
    const fs::path real = fs::canonical(device, error);
    if (error) return std::nullopt;
    Place place;
    // What hangs below the function (virtio, an auxiliary bus) is not of interest.
    for (const auto& part : real)
        if (isPciName(part.string())) place.pci.push_back(part.string());
    for (fs::path at = real; at.has_relative_path(); at = at.parent_path()) {
        const auto node = toInt(readLine(at / "numa_node").value_or(""));
        if (!node) continue;
        place.numa_node = std::max(-1, *node);
        break;
    }
    return place;
}

/// Of an interface: its own, or where it is made of others (a bond, a VLAN) theirs, as far as they agree.
std::optional<Place> placeOfInterface(const fs::path& root, const std::string& name, int depth = 0) {
    const fs::path interface = root / "class" / "net" / name;
    if (auto own = placeOf(interface / "device")) return own;
    if (depth == kMostLowers) return std::nullopt;
    std::optional<Place> place;
    for (const auto& entry : entriesOf(interface)) {
        const std::string link = entry.filename().string();
        if (link.rfind("lower_", 0) != 0) continue;
        const auto lower = placeOfInterface(root, link.substr(6), depth + 1);
        if (!lower) continue;
        if (!place) {
            place = lower;
            continue;
        }
        if (place->numa_node != lower->numa_node) place->numa_node = -1;
        const auto [end, other] =
            std::mismatch(place->pci.begin(), place->pci.end(), lower->pci.begin(), lower->pci.end());
        place->pci.erase(end, place->pci.end());
    }
    return place;
}

/// "100 Gb/sec (4X EDR)"
std::uint32_t parseRate(const std::string& text) {
    return static_cast<std::uint32_t>(
        std::max(0, toInt(std::string_view(text).substr(0, text.find_first_of(" ."))).value_or(0)));
}

RdmaDevice readRdma(const fs::path& root, const fs::path& path, const std::set<std::string>& openable) {
    RdmaDevice device;
    device.name = path.filename().string();
    device.has_node = openable.count(device.name) != 0;
    for (int port = 1; port <= kMostPorts; ++port) {
        const fs::path folder = path / "ports" / std::to_string(port);
        const auto state = readLine(folder / "state");
        if (!state) break;
        // "4: ACTIVE"
        if (state->rfind("4:", 0) != 0) continue;
        device.active = true;
        device.speed_gbps = std::max(device.speed_gbps, parseRate(readLine(folder / "rate").value_or("")));
    }
    device.netdev = readLine(path / "ports" / "1" / "gid_attrs" / "ndevs" / "0").value_or("");
    // Soft-RoCE names it here, too, and keeps it when the port has no GID.
    if (device.netdev.empty()) device.netdev = readLine(path / "parent").value_or("");
    auto place = placeOf(path / "device");
    if (!place && !device.netdev.empty()) place = placeOfInterface(root, device.netdev);
    if (place) device.place = *place;
    std::error_code error;
    device.is_virtual_function = fs::exists(path / "device" / "physfn", error);
    return device;
}

std::vector<RdmaDevice> readRdmaDevices(const fs::path& root, const fs::path& dev) {
    std::set<std::string> openable;
    std::error_code error;
    for (const auto& path : entriesOf(root / "class" / "infiniband_verbs"))
        if (const auto name = readLine(path / "ibdev"); name && fs::exists(dev / "infiniband" / path.filename(), error))
            openable.insert(*name);
    std::vector<RdmaDevice> devices;
    for (const auto& path : entriesOf(root / "class" / "infiniband")) devices.push_back(readRdma(root, path, openable));
    return devices;
}

std::vector<Gpu> readGpus(const fs::path& root) {
    std::vector<Gpu> gpus;
    for (const auto& path : entriesOf(root / "bus" / "pci" / "devices")) {
        const auto text = readLine(path / "class").value_or("");
        const auto vendor = readLine(path / "vendor").value_or("");
        // 0x0302xx: 3D controller, what data centre GPUs are; 0x0300xx (with a screen) from NVIDIA and AMD, 0x0380xx
        // (AMD Instinct). A server's console controller (ASPEED, Matrox) is none.
        const bool maker = vendor == "0x10de" || vendor == "0x1002";
        const bool is_gpu =
            text.rfind("0x0302", 0) == 0 || (maker && (text.rfind("0x0300", 0) == 0 || text.rfind("0x0380", 0) == 0));
        if (!is_gpu) continue;
        Gpu gpu;
        gpu.index = static_cast<int>(gpus.size());
        gpu.place = placeOf(path).value_or(Place());
        gpus.push_back(std::move(gpu));
    }
    return gpus;
}

}  // namespace

Machine discoverMachine(const fs::path& root, const fs::path& dev) {
    Topology topology = discoverTopology(root);
    return {std::move(topology.nodes), readRdmaDevices(root, dev), readGpus(root), std::move(topology.interfaces)};
}

std::string matrixLocationOf(const std::vector<Gpu>& gpus, const std::string& pci) {
    // The domain may be written with more zeros.
    const auto shortest = [](const std::string& address) {
        std::string text = address.substr(std::min(address.find_first_not_of('0'), address.size()));
        std::transform(text.begin(), text.end(), text.begin(),
                       [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
        return text;
    };
    if (gpus.empty()) return "";
    const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
        return !gpu.place.pci.empty() && shortest(gpu.place.pci.back()) == shortest(pci);
    });
    return found == gpus.end() ? "*" : "cuda:" + std::to_string(found->index);
}

Distance distanceBetween(const Place& a, const Place& b, const std::vector<NumaNode>& nodes) {
    const auto common = static_cast<std::size_t>(
        std::mismatch(a.pci.begin(), a.pci.end(), b.pci.begin(), b.pci.end()).first - a.pci.begin());
    const int steps = static_cast<int>(a.pci.size() + b.pci.size() - 2 * common);
    if (!a.pci.empty() && steps == 0) return {Nearness::Same, 0};
    // A root port leads to one card or one switch, so what is below the same one shares a switch (or a card).
    if (common >= 2) return {Nearness::Switch, steps};
    if (common == 1) return {Nearness::HostBridge, steps};
    if (a.numa_node < 0 || b.numa_node < 0) return {Nearness::Unknown, 0};
    if (a.numa_node == b.numa_node) return {a.pci.empty() || b.pci.empty() ? Nearness::Same : Nearness::Node, 0};
    for (const NumaNode& node : nodes) {
        const auto known = node.distance.find(b.numa_node);
        if (node.id == a.numa_node && known != node.distance.end()) return {Nearness::Remote, known->second};
    }
    return {Nearness::Remote, kFarDistance};
}

std::string toString(const Distance& distance) {
    switch (distance.nearness) {
        case Nearness::Same: return "on it";
        case Nearness::Switch: return "below the same PCI switch, " + std::to_string(distance.steps) + " links";
        case Nearness::HostBridge: return "below the same host bridge, " + std::to_string(distance.steps) + " links";
        case Nearness::Node: return "on the same node";
        case Nearness::Unknown: return "at an unknown place";
        case Nearness::Remote: return "on another node, distance " + std::to_string(distance.steps);
    }
    return "";
}

}  // namespace troupe
