#include "verbs_backend/device.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <sstream>

namespace troupe::verbs {

namespace {

constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool isMapped(const ibv_gid& gid) { return std::memcmp(gid.raw, kMappedPrefix, sizeof kMappedPrefix) == 0; }
bool isLinkLocal(const ibv_gid& gid) { return gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80; }
bool isNull(const ibv_gid& gid) { return gid.global.interface_id == 0 && gid.global.subnet_prefix == 0; }

/// How well peers can be expected to reach a GID: 0 is not at all. A link-local one needs a scope that a descriptor
/// cannot carry, and RoCE v1 is not routed.
int rank(const ibv_gid_entry& entry) {
    if (isNull(entry.gid) || isLinkLocal(entry.gid)) return 0;
    const bool v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
    return (v2 ? 2 : 0) + (isMapped(entry.gid) ? 2 : 1);
}

std::vector<std::string> namesOf(const std::string& list) {
    std::vector<std::string> names;
    std::istringstream text(list);
    for (std::string name; std::getline(text, name, ',');) {
        name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
        if (!name.empty()) names.push_back(name);
    }
    return names;
}

const char* stateName(ibv_port_state state) {
    switch (state) {
        case IBV_PORT_DOWN: return "down";
        case IBV_PORT_INIT: return "initialising: is there a subnet manager?";
        case IBV_PORT_ARMED: return "armed";
        case IBV_PORT_ACTIVE: return "active";
        default: return "in an unknown state";
    }
}

}  // namespace

DeviceContext::~DeviceContext() { static_cast<void>(api_->closeDevice(context_)); }

Device::~Device() {
    if (cq_ != nullptr) static_cast<void>(api_->destroyCq(cq_));
    if (channel_ != nullptr) static_cast<void>(api_->destroyChannel(channel_));
    if (pd_ != nullptr) static_cast<void>(api_->deallocPd(pd_));
}

std::string Device::describe() const {
    return "device " + device_name + " port " + std::to_string(port) + " (GID " + std::to_string(gid.gid_index) + ": " +
           address.host() + ")";
}

/// Makes Devices; a struct of its own so that only it needs to be a friend.
struct DeviceOpener {
    const std::shared_ptr<VerbsApi>& api;
    const Config& config;

    /// The port with everything on it, or why it is of no use.
    Result<std::shared_ptr<Device>> openPort(const std::shared_ptr<DeviceContext>& context, const std::string& name,
                                             const ibv_device_attr& attributes, std::uint8_t port) const {
        std::shared_ptr<Device> device(new Device);
        device->api_ = api;
        device->context_ = context;
        device->device_name = name;
        device->name = attributes.phys_port_cnt > 1 ? name + ":" + std::to_string(port) : name;
        device->port = port;
        device->attributes = attributes;
        if (device->name.size() > 32) return {Code::Unsupported, "its name has more than 32 bytes"};
        if (const int error = api->queryPort(context->get(), port, device->port_attributes); error != 0)
            return errnoStatus(Code::ResourceExhausted, "query port", error);
        if (device->port_attributes.state != IBV_PORT_ACTIVE)
            return {Code::TransportMissing, std::string("the port is ") + stateName(device->port_attributes.state)};
        if (const Status chosen = chooseGid(*device); !chosen) return chosen;
        if (const Status made = makeQueues(*device); !made) return made;
        return device;
    }

    Status chooseGid(Device& device) const {
        std::vector<ibv_gid_entry> gids;
        if (const int error = api->queryGids(device.context(), gids); error != 0)
            return errnoStatus(Code::ResourceExhausted, "query GIDs", error);
        const ibv_gid_entry* best = nullptr;
        for (const ibv_gid_entry& entry : gids)
            if (entry.port_num == device.port && rank(entry) > (best == nullptr ? 0 : rank(*best))) best = &entry;
        if (best == nullptr)
            return {Code::TransportMissing,
                    "no GID with an address that peers can connect to: give its network interface an IP address"};
        device.gid = *best;
        device.address = addressOfGid(best->gid);
        return {};
    }

    Status makeQueues(Device& device) const {
        device.pd_ = api->allocPd(device.context());
        if (device.pd_ == nullptr) return errnoStatus(Code::ResourceExhausted, "allocate a protection domain", errno);
        device.channel_ = api->createChannel(device.context());
        if (device.channel_ == nullptr) return errnoStatus(Code::ResourceExhausted, "create a channel", errno);
        const auto most = static_cast<std::uint32_t>(std::max(device.attributes.max_cqe, 1));
        device.completions = std::min(config.rdma_completion_queue, most);
        device.cq_ = api->createCq(device.context(), static_cast<int>(device.completions), device.channel_);
        if (device.cq_ == nullptr)
            return errnoStatus(Code::ResourceExhausted,
                               "create a completion queue of " + std::to_string(device.completions) + " entries",
                               errno);
        return {};
    }
};

Result<std::vector<std::shared_ptr<Device>>> Device::openAll(const std::shared_ptr<VerbsApi>& api, const Config& config,
                                                             const Logger& log) {
    const auto wanted = namesOf(config.rdma_devices);
    std::vector<VerbsApi::Opened> opened;
    if (const int error = api->openDevices(wanted, opened); error != 0)
        return errnoStatus(Code::TransportMissing,
                           "no list of RDMA devices; is ib_uverbs loaded and /dev/infiniband there", error);
    std::string reasons;
    const auto leaveOut = [&](const std::string& name, const Status& why) {
        log->warn("rdma: device {} is not used: {}", name, why.message());
        reasons += "; " + name + ": " + why.message();
    };
    std::vector<std::shared_ptr<Device>> devices;
    const DeviceOpener opener{api, config};
    for (const VerbsApi::Opened& entry : opened) {
        if (entry.context == nullptr) {
            const char* advice = entry.error == EACCES || entry.error == EPERM
                                     ? "open: no access to its /dev/infiniband/uverbs file"
                                     : "open";
            leaveOut(entry.name, errnoStatus(Code::AccessDenied, advice, entry.error));
            continue;
        }
        const auto context = std::make_shared<DeviceContext>(api, entry.context);
        ibv_device_attr attributes{};
        const int error = entry.error != 0 ? entry.error : api->queryDevice(entry.context, attributes);
        if (error != 0) {
            leaveOut(entry.name, errnoStatus(Code::ResourceExhausted, "query device", error));
            continue;
        }
        for (std::uint8_t port = 1; port <= attributes.phys_port_cnt; ++port) {
            auto device = opener.openPort(context, entry.name, attributes, port);
            if (device)
                devices.push_back(std::move(*device));
            else
                leaveOut(entry.name + " port " + std::to_string(port), device.status());
        }
    }
    for (const std::string& name : wanted)
        if (std::none_of(opened.begin(), opened.end(), [&](const auto& entry) { return entry.name == name; }))
            leaveOut(name, Status(Code::NotFound, "rdma.devices names it, but there is none"));
    if (devices.empty())
        return {Code::TransportMissing, "no usable RDMA device" + (reasons.empty() ? ": there is none" : reasons)};
    return devices;
}

SocketAddress addressOfGid(const ibv_gid& gid) {
    SocketAddress address;
    if (isMapped(gid)) {
        auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
        v4->sin_family = AF_INET;
        std::memcpy(&v4->sin_addr, gid.raw + sizeof kMappedPrefix, sizeof v4->sin_addr);
        address.length = sizeof *v4;
    } else {
        auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
        v6->sin6_family = AF_INET6;
        std::memcpy(&v6->sin6_addr, gid.raw, sizeof v6->sin6_addr);
        address.length = sizeof *v6;
    }
    return address;
}

std::string gidText(const ibv_gid& gid) {
    std::string text;
    for (std::size_t i = 0; i < sizeof gid.raw; i += 2) {
        char group[8];
        std::snprintf(group, sizeof group, "%s%02x%02x", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
        text += group;
    }
    return text;
}

std::uint32_t mtuBytes(ibv_mtu mtu) { return 128u << std::clamp(static_cast<int>(mtu), 1, 5); }

ibv_mtu mtuOfBytes(std::uint32_t bytes) {
    int mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && (128u << (mtu + 1)) <= bytes) ++mtu;
    return static_cast<ibv_mtu>(mtu);
}

}  // namespace troupe::verbs
