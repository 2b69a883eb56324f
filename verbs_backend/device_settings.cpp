#include "verbs_backend/device_settings.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>

namespace troupe::verbs {

namespace {

struct Knob {
    std::string_view name;
    std::uint32_t PortSettings::*field;
    std::uint32_t low;
    std::uint32_t high;
};
constexpr Knob kKnobs[] = {{"gid_index", &PortSettings::gid_index, 0, PortSettings::kAnyGid},
                           {"pkey_index", &PortSettings::pkey_index, 0, 65535},
                           {"service_level", &PortSettings::service_level, 0, 15},
                           {"traffic_class", &PortSettings::traffic_class, 0, 255},
                           {"mtu", &PortSettings::mtu, 256, 4096}};

const Knob* knob(std::string_view name) {
    const auto* const found =
        std::find_if(std::begin(kKnobs), std::end(kKnobs), [&](const Knob& known) { return known.name == name; });
    return found == std::end(kKnobs) ? nullptr : found;
}

bool matchesAny(const std::string& name, const std::vector<std::string>& patterns) {
    return std::any_of(patterns.begin(), patterns.end(),
                       [&](const std::string& pattern) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; });
}

std::vector<std::string> split(std::string_view text, std::string_view separators) {
    std::vector<std::string> parts;
    while (!text.empty()) {
        const auto end = std::min(text.find_first_of(separators), text.size());
        if (end != 0) parts.emplace_back(text.substr(0, end));
        text.remove_prefix(std::min(text.size(), end + 1));
    }
    return parts;
}

}  // namespace

std::vector<std::string> namesOf(std::string_view list) { return split(list, ", "); }

Result<DeviceSettings> DeviceSettings::parse(const Config& config) {
    DeviceSettings settings;
    settings.wanted_ = namesOf(config.rdma_devices);
    settings.excluded_ = namesOf(config.rdma_exclude);
    settings.all_ = {config.rdma_gid_index, config.rdma_pkey_index, config.rdma_service_level,
                     config.rdma_traffic_class, config.rdma_mtu};
    for (const std::string& entry : split(config.rdma_per_device, ";")) {
        const auto bad = [&](const std::string& what) {
            return Status(Code::InvalidArgument, "rdma.per_device: '" + entry + "': " + what +
                                                     "; an example is 'mlx5_0 gid_index=3 mtu=1024'");
        };
        const auto words = split(entry, " ");
        if (words.empty()) continue;
        if (words.size() == 1 || words[0].find('=') != std::string::npos)
            return bad("a device or a port (mlx5_0:2) and then name=value are due");
        for (std::size_t i = 1; i < words.size(); ++i) {
            const auto equals = words[i].find('=');
            const Knob* const known = knob(std::string_view(words[i]).substr(0, equals));
            if (known == nullptr || equals == std::string::npos)
                return bad("'" + words[i] +
                           "' is none of gid_index, pkey_index, service_level, traffic_class and mtu with a value");
            std::uint32_t value = 0;
            const char* const first = words[i].data() + equals + 1;
            const char* const last = words[i].data() + words[i].size();
            const auto [end, error] = std::from_chars(first, last, value);
            if (error != std::errc() || end != last || first == last || value < known->low || value > known->high)
                return bad("'" + words[i] + "' is not in " + std::to_string(known->low) + ".." +
                           std::to_string(known->high));
            if (!settings.single_[words[0]].emplace(known->name, value).second)
                return bad("'" + std::string(known->name) + "' is given twice");
        }
    }
    return settings;
}

std::string DeviceSettings::whyNot(const std::string& device) const {
    if (matchesAny(device, excluded_)) return "rdma.exclude names it";
    if (!wanted_.empty() && !matchesAny(device, wanted_)) return "rdma.devices does not name it";
    return "";
}

PortSettings DeviceSettings::of(const std::string& device, std::uint8_t port) const {
    PortSettings settings = all_;
    for (const std::string& name : {device, device + ":" + std::to_string(port)}) {
        const auto found = single_.find(name);
        if (found == single_.end()) continue;
        for (const auto& [setting, value] : found->second) settings.*(knob(setting)->field) = value;
    }
    return settings;
}

std::vector<std::string> DeviceSettings::named() const {
    std::vector<std::string> names;
    std::copy_if(wanted_.begin(), wanted_.end(), std::back_inserter(names),
                 [](const std::string& name) { return name.find_first_of("*?[") == std::string::npos; });
    return names;
}

std::vector<std::string> DeviceSettings::configured() const {
    std::vector<std::string> names;
    for (const auto& [name, values] : single_) names.push_back(name);
    return names;
}

}  // namespace troupe::verbs
