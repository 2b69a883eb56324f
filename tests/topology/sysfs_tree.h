#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>

namespace troupe::test {

/// A machine's /sys and /dev as the kernel would show them, made from a short description in a folder that goes with
/// this object. One thing a line:
///
///     node 0 0-31 10 21                      number, CPUs, distances
///     rdma mlx5_0 PATH numa=0 rate=400 ...   PATH: pci0000:15/0000:15:01.0/0000:18:00.0, or "-": no device link
///         netdev=eth0   the interface of its first GID     down          its port is
///         nofile        /dev/infiniband lacks it           vf            an SR-IOV function
///     gpu PATH numa=0                        vendor=0x10de class=0x030200 if nothing is said
///     net eth0 PATH numa=0                   an interface with a device of its own
///     bond bond0 eth0,eth1                   an interface made of others
///     # a remark
class SysfsTree {
  public:
    explicit SysfsTree(const std::filesystem::path& description) {
        std::string name = (std::filesystem::temp_directory_path() / "troupe-sysfs-XXXXXX").string();
        if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
        folder_ = name;
        std::ifstream file(description);
        if (!file) throw std::runtime_error("no machine " + description.string());
        for (std::string line; std::getline(file, line);) add(line);
    }
    ~SysfsTree() {
        std::error_code error;
        std::filesystem::remove_all(folder_, error);
    }
    SysfsTree(const SysfsTree&) = delete;
    SysfsTree& operator=(const SysfsTree&) = delete;

    std::filesystem::path sys() const { return folder_ / "sys"; }
    std::filesystem::path dev() const { return folder_ / "dev"; }

  private:
    using Words = std::map<std::string, std::string>;

    void add(const std::string& line) {
        std::istringstream text(line);
        std::string kind, name, path;
        if (!(text >> kind) || kind[0] == '#') return;
        if (kind == "node") return addNode(text);
        if (kind != "gpu") text >> name;
        text >> path;
        Words words;
        for (std::string word; text >> word;) {
            const auto equals = word.find('=');
            words[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
        }
        if (kind == "rdma")
            addRdma(name, path, words);
        else if (kind == "gpu")
            addFunction(path, words, words.count("class") ? words["class"] : "0x030200",
                        words.count("vendor") ? words["vendor"] : "0x10de");
        else if (kind == "net")
            addNet(name, path, words);
        else if (kind == "bond")
            addBond(name, path);
        else
            throw std::runtime_error("no such thing: " + line);
    }
    void addNode(std::istringstream& text) {
        std::string number, cpus, distance, all;
        text >> number >> cpus;
        while (text >> distance) all += (all.empty() ? "" : " ") + distance;
        const auto node = sys() / "devices/system/node" / ("node" + number);
        write(node / "cpulist", cpus);
        write(node / "distance", all);
    }
    /// The folder of a PCI function, and its link in the list of all.
    std::filesystem::path addFunction(const std::string& path, Words& words, const std::string& pci_class,
                                      const std::string& vendor) {
        const auto folder = sys() / "devices" / path;
        write(folder / "class", pci_class);
        write(folder / "vendor", vendor);
        if (words.count("numa")) write(folder / "numa_node", words["numa"]);
        link(sys() / "bus/pci/devices" / folder.filename(), folder);
        return folder;
    }
    void addRdma(const std::string& name, const std::string& path, Words& words) {
        auto home = sys() / "devices/virtual/infiniband" / name;
        if (path != "-") {
            const auto function = addFunction(path, words, "0x020700", "0x15b3");
            home = function / "infiniband" / name;
            link(home / "device", function);
            if (words.count("vf")) link(function / "physfn", function.parent_path());
        }
        write(home / "ports/1/state", words.count("down") ? "1: DOWN" : "4: ACTIVE");
        write(home / "ports/1/rate", words["rate"] + " Gb/sec (4X NDR)");
        if (words.count("netdev")) write(home / "ports/1/gid_attrs/ndevs/0", words["netdev"]);
        link(sys() / "class/infiniband" / name, home);
        const std::string uverbs = "uverbs" + std::to_string(uverbs_++);
        write(sys() / "class/infiniband_verbs" / uverbs / "ibdev", name);
        if (!words.count("nofile")) write(dev() / "infiniband" / uverbs, "");
    }
    void addNet(const std::string& name, const std::string& path, Words& words) {
        const auto function = addFunction(path, words, "0x020000", "0x15b3");
        write(function / "net" / name / "operstate", "up");
        link(function / "net" / name / "device", function);
        link(sys() / "class/net" / name, function / "net" / name);
    }
    void addBond(const std::string& name, const std::string& lowers) {
        const auto home = sys() / "devices/virtual/net" / name;
        write(home / "operstate", "up");
        std::istringstream list(lowers);
        for (std::string lower; std::getline(list, lower, ',');)
            link(home / ("lower_" + lower), sys() / "class/net" / lower);
        link(sys() / "class/net" / name, home);
    }
    static void write(const std::filesystem::path& file, const std::string& text) {
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text << '\n';
    }
    static void link(const std::filesystem::path& at, const std::filesystem::path& to) {
        std::filesystem::create_directories(at.parent_path());
        std::filesystem::create_symlink(to, at);
    }

    std::filesystem::path folder_;
    int uverbs_ = 0;
};

}  // namespace troupe::test
