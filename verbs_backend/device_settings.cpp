#include "verbs_backend/device_settings.h"

#include <fnmatch.h>

#include <algorithm>
#include <utility>

namespace troupe::verbs {

namespace {

struct Knob {
    std::string_view name;
    std::uint32_t PortSettings::*field;
};
constexpr Knob kKnobs[] = {{"gid_index", &PortSettings::gid_index},
                           {"pkey_index", &PortSettings::pkey_index},
                           {"service_level", &PortSettings::service_level},
                           {"traffic_class", &PortSettings::traffic_class},
                           {"mtu", &PortSettings::mtu}};

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
    auto single = parsePerDevice(config.rdma_per_device);
    if (!single) return single.status().withContext("rdma.per_device");
    settings.single_ = std::move(*single);
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
        for (const Knob& knob : kKnobs)
            if (const auto value = found->second.find(std::string(knob.name)); value != found->second.end())
                settings.*knob.field = value->second;
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
