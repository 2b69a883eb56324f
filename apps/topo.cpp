#include "apps/topo.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "apps/support/arguments.h"
#include "apps/support/child_process.h"
#include "apps/support/session.h"
#include "apps/support/table.h"
#include "engine/device_memory.h"
#include "topology/local_matrix.h"
#include "topology/selection.h"

namespace troupe::apps {

namespace {

constexpr std::chrono::seconds kDrawingBound{60};

struct TopoOptions {
    CommonOptions common;
    std::string svg;
    std::string sysfs = "/sys";
    std::string dev = "/dev";
};

/// All that there is to show.
struct Picture {
    Machine machine;
    Ranking ranking;
    LocalMatrix local;
    std::vector<device::DeviceInfo> cuda;  ///< The GPUs as CUDA counts them here; empty: it was not asked, or has none.
    std::string no_rdma;                   ///< Why no RDMA device can be used; empty: one can.
};

/// A device's place in the matrix of a location, and why.
struct Line {
    std::string location;
    std::string device;
    bool preferred;
    std::string reason;
};

/// Empty: there is one to use.
std::string whyNoRdma(const Machine& machine, const Ranking& ranking, const std::string& sysfs) {
    const std::filesystem::path folder = std::filesystem::path(sysfs) / "class" / "infiniband";
    std::error_code error;
    if (machine.rdma.empty() && !std::filesystem::exists(folder, error))
        return "no driver of an RDMA device is loaded: there is no " + folder.string();
    if (machine.rdma.empty()) return "this machine has no RDMA device: " + folder.string() + " is empty";
    const bool left = std::any_of(ranking.locations.begin(), ranking.locations.end(),
                                  [](const LocationRanking& row) { return !row.devices.empty(); });
    if (left) return "";
    std::string why = "no RDMA device is left";
    for (const auto& entry : ranking.left_out) why += "; " + entry.name + ": " + entry.reason;
    return why;
}

/// The matrix line by line, with the ranking's reasons where it was not overridden.
std::vector<Line> linesOf(const Picture& picture) {
    std::vector<Line> lines;
    if (picture.local.origin == "RDMA devices") {
        for (const LocationRanking& row : picture.ranking.locations)
            for (const RankedDevice& device : row.devices)
                lines.push_back({row.location, device.name, device.preferred, device.reason});
        return lines;
    }
    const std::string reason = picture.local.origin == "network interfaces"
                                   ? picture.machine.rdma.empty() ? "an interface; there is no RDMA device"
                                                                  : "an interface; no RDMA device may be used"
                                   : picture.local.origin;
    for (const auto& [location, lists] : picture.local.matrix) {
        for (const std::string& name : lists.first) lines.push_back({location, name, true, reason});
        for (const std::string& name : lists.second) lines.push_back({location, name, false, reason});
    }
    return lines;
}

/// As a quoted identifier of Graphviz.
std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += c;
    }
    return result + '"';
}

/// Nodes and GPUs on the left, devices on the right, a line for each preference.
std::string drawing(const Picture& picture) {
    std::string text = "digraph troupe { rankdir=LR; node [shape=box, fontname=\"sans-serif\"]; ";
    for (const RdmaDevice& device : picture.machine.rdma)
        text += fmt::format(
            "{} [label={}]; ", quoted(device.name),
            quoted(fmt::format("{}, {} Gb/s, node {}", device.name, device.speed_gbps, device.place.numa_node)));
    for (const auto& left_out : picture.ranking.left_out)
        text += fmt::format("{} [style=dashed, tooltip={}]; ", quoted(left_out.name), quoted(left_out.reason));
    for (const auto& [location, lists] : picture.local.matrix)
        text += fmt::format("{} [style=filled, fillcolor={}]; ", quoted(location),
                            quoted(location.rfind("cpu", 0) == 0 ? "#dce9f7" : "#e3f3dc"));
    for (const Line& line : linesOf(picture))
        if (line.preferred)
            text +=
                fmt::format("{} -> {} [tooltip={}]; ", quoted(line.location), quoted(line.device), quoted(line.reason));
    return text + "}";
}

Status draw(const std::string& file, const std::string& picture) {
    const std::string program = findProgram("dot");
    if (program.empty())
        return {Code::Unsupported,
                "--svg needs Graphviz, whose program 'dot' is not on PATH: apt-get install graphviz"};
    auto dot = ChildProcess::start({program, "-Tsvg", "-o", file});
    if (!dot) return dot.status();
    if (const Status written = dot->writeLine(picture); !written) return written;
    dot->closeInput();
    const auto code = dot->wait(kDrawingBound);
    if (!code) return code.status().withContext(program);
    if (*code != 0) return {Code::Internal, fmt::format("{} ended with {} and did not write {}", program, *code, file)};
    return Status::ok();
}

std::string lastOf(const std::vector<std::string>& pci) { return pci.empty() ? "" : pci.back(); }

/// How a process calls a GPU that the matrix calls "cuda:<index>": by CUDA's number; -1: it does not see it.
int cudaNumberOf(const Picture& picture, const Gpu& gpu) {
    const std::string location = fmt::format("cuda:{}", gpu.index);
    for (const device::DeviceInfo& each : picture.cuda)
        if (matrixLocationOf(picture.machine.gpus, each.pci) == location) return each.ordinal;
    return -1;
}

nlohmann::json toJson(const Picture& picture) {
    auto json = nlohmann::json::object();
    json["ok"] = true;
    json["origin"] = picture.local.origin;
    auto& object = json["priority_matrix"] = nlohmann::json::object();
    // The form that segment descriptors have: location -> [[preferred], [available]].
    for (const auto& [location, devices] : picture.local.matrix)
        object[location] = nlohmann::json::array({devices.first, devices.second});
    auto& devices = json["devices"] = nlohmann::json::array();
    for (const RdmaDevice& device : picture.machine.rdma)
        devices.push_back({{"name", device.name},
                           {"netdev", device.netdev},
                           {"numa_node", device.place.numa_node},
                           {"pci", lastOf(device.place.pci)},
                           {"gbps", device.speed_gbps},
                           {"active", device.active},
                           {"virtual_function", device.is_virtual_function}});
    auto& gpus = json["gpus"] = nlohmann::json::array();
    for (const Gpu& gpu : picture.machine.gpus)
        gpus.push_back(
            {{"location", fmt::format("cuda:{}", gpu.index)},
             {"numa_node", gpu.place.numa_node},
             {"pci", lastOf(gpu.place.pci)},
             {"cuda", picture.cuda.empty() ? nlohmann::json() : nlohmann::json(cudaNumberOf(picture, gpu))}});
    auto& reasons = json["reasons"] = nlohmann::json::object();
    for (const Line& line : linesOf(picture)) reasons[line.location][line.device] = line.reason;
    auto& choice = json["choice"] = nlohmann::json::object();
    for (const auto& [location, lists] : picture.local.matrix)
        if (const auto chosen = selectDevice(picture.local.matrix, location))
            choice[location] = {{"device", chosen->device}, {"reason", chosen->reason}};
    auto& left_out = json["left_out"] = nlohmann::json::object();
    for (const auto& entry : picture.ranking.left_out) left_out[entry.name] = entry.reason;
    json["no_rdma"] = picture.no_rdma.empty() ? nlohmann::json() : nlohmann::json(picture.no_rdma);
    return json;
}

void print(const Picture& picture, Console& console) {
    Table table({"location", "device", "", "why"});
    table.alignLeft();
    for (const Line& line : linesOf(picture))
        table.add({line.location, line.device, line.preferred ? "preferred" : "available", line.reason});
    fmt::print(console.out, "{}", table.toString());
    for (const Gpu& gpu : picture.machine.gpus) {
        if (picture.cuda.empty()) break;
        const int number = cudaNumberOf(picture, gpu);
        fmt::print(console.out, "cuda:{} above is the GPU at {}: {}\n", gpu.index, lastOf(gpu.place.pci),
                   number < 0 ? "CUDA does not show it here" : fmt::format("cuda:{} to CUDA here", number));
    }
    for (const auto& [location, lists] : picture.local.matrix)
        if (const auto chosen = selectDevice(picture.local.matrix, location))
            fmt::print(console.out, "for one request at {}: {}: {}\n", location, chosen->device, chosen->reason);
    for (const auto& entry : picture.ranking.left_out)
        fmt::print(console.out, "not used: {}: {}\n", entry.name, entry.reason);
    // With devices the lines above have said it of each.
    if (picture.machine.rdma.empty()) fmt::print(console.out, "no RDMA: {}\n", picture.no_rdma);
    if (picture.local.matrix.empty()) fmt::print(console.out, "no devices but the ordinary network of this machine\n");
}

Status showTopology(const TopoOptions& options, Console& console) {
    const auto loader = loadConfig(options.common);
    if (!loader) return loader.status();
    Picture picture;
    picture.machine = discoverMachine(options.sysfs, options.dev);
    picture.ranking = rankDevices(picture.machine, deviceRules(loader->config()));
    picture.no_rdma = whyNoRdma(picture.machine, picture.ranking, options.sysfs);
    auto local = localMatrix(loader->config(), picture.machine);
    if (!local) return local.status();
    picture.local = std::move(*local);
    // Of a copy of another machine's /sys the driver here knows nothing, unless it is named.
    if (options.sysfs == "/sys" || !loader->config().gpu_driver.empty())
        if (auto gpus = visibleGpus(loader->config())) picture.cuda = std::move(*gpus);
    if (!options.svg.empty())
        if (const Status drawn = draw(options.svg, drawing(picture)); !drawn) return drawn;
    if (options.common.json)
        fmt::print(console.out, "{}\n", toJson(picture).dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    else
        print(picture, console);
    return Status::ok();
}

/// A copy that is not there, or is of something else, would be an empty picture.
Status checkOptions(const TopoOptions& options) {
    const auto config = loadConfig(options.common);
    if (!config) return config.status();
    std::error_code error;
    const std::filesystem::path sysfs(options.sysfs);
    if (!std::filesystem::is_directory(sysfs, error))
        return {
            Code::InvalidArgument,
            fmt::format("--sysfs '{}': {}", options.sysfs,
                        std::filesystem::exists(sysfs, error) ? "it is no directory" : "there is no such directory")};
    if (!std::filesystem::is_directory(sysfs / "class", error) &&
        !std::filesystem::is_directory(sysfs / "devices", error))
        return {Code::InvalidArgument,
                fmt::format("--sysfs '{}' has neither class nor devices, so it is no copy of a /sys", options.sysfs)};
    return checkSettingFiles(config->config());
}

}  // namespace

void addTopoCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<TopoOptions>();
    auto* command = addCommand(app, "topo", "Show which devices of this machine serve which memory, and why");
    addCommonOptions(*command, options->common);
    command->add_option("--svg", options->svg, "Draw it into this file, with Graphviz")->type_name("FILE");
    command->add_option("--sysfs", options->sysfs, "Another machine's /sys, copied")
        ->type_name("FOLDER")
        ->capture_default_str();
    command->add_option("--dev", options->dev, "And its /dev")->type_name("FOLDER")->capture_default_str();
    command->callback([options, &chosen] {
        chosen.name = "topo";
        chosen.json = options->common.json;
        chosen.check = [options] { return checkOptions(*options); };
        chosen.run = [options](Console& console) { return showTopology(*options, console); };
    });
}

}  // namespace troupe::apps
