#include "verbs_backend/device.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>

namespace troupe::verbs {

namespace {

constexpr std::uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool isMapped(const ibv_gid& gid) { return std::memcmp(gid.raw, kMappedPrefix, sizeof kMappedPrefix) == 0; }

/// How well peers can be expected to reach a GID: 0 is not at all. RoCE v1 is not routed, and what is link-local is
/// reached on one link only.
int rank(const ibv_gid_entry& entry) {
    const GidScope scope = scopeOf(entry.gid);
    if (scope == GidScope::Null) return 0;
    if (scope == GidScope::LinkLocal) return entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 2 : 1;
    return (entry.gid_type == IBV_GID_TYPE_ROCE_V2 ? 5 : 3) + (scope == GidScope::MappedV4 ? 1 : 0);
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

std::string transportName(ibv_transport_type transport) {
    switch (transport) {
        case IBV_TRANSPORT_IWARP: return "iWARP";
        case IBV_TRANSPORT_USNIC:
        case IBV_TRANSPORT_USNIC_UDP: return "usNIC";
        // EFA says so.
        case IBV_TRANSPORT_UNSPECIFIED: return "a transport of its maker's own";
        default: return "an unknown transport";
    }
}

}  // namespace

std::optional<ibv_gid_entry> PortView::entryAt(std::uint32_t index) const {
    const auto found = std::find_if(table.begin(), table.end(),
                                    [index](const ibv_gid_entry& entry) { return entry.gid_index == index; });
    return found == table.end() ? std::nullopt : std::optional(*found);
}

bool PortView::has(const ibv_gid_entry& wanted) const {
    return std::any_of(table.begin(), table.end(), [&](const ibv_gid_entry& entry) { return sameGid(entry, wanted); });
}

bool sameGid(const ibv_gid_entry& one, const ibv_gid_entry& other) {
    return one.gid_index == other.gid_index && one.gid_type == other.gid_type &&
           std::memcmp(one.gid.raw, other.gid.raw, sizeof one.gid.raw) == 0;
}

Device::~Device() {
    queue_.publish(nullptr);
    if (sink_key_ != nullptr && api_->deregMr(sink_key_) != 0) {
        // The device may still write there.
        static_cast<void>(sink_.release());
    }
    if (pd_ != nullptr) static_cast<void>(api_->deallocPd(pd_));
}

Result<ibv_sge> Device::sink() {
    if (sink_key_ == nullptr) {
        auto bytes = std::make_unique<std::byte[]>(1);
        ibv_mr* const made = api_->regMr(pd_, bytes.get(), 1, IBV_ACCESS_LOCAL_WRITE);
        if (made == nullptr)
            return errnoStatus(Code::Unsupported, "rdma: register what is read back with " + describe(), errno);
        sink_ = std::move(bytes);
        sink_key_ = made;
    }
    return ibv_sge{reinterpret_cast<std::uint64_t>(sink_.get()), 1, sink_key_->lkey};
}

std::string Device::describe() const {
    const auto now = view();
    const std::string where = "device " + device_name + " port " + std::to_string(port);
    if (now->gids.empty()) return where + " (without a GID)";
    return where + " (GID " + std::to_string(now->gid.gid_index) + ": " +
           (infiniband || scopeOf(now->gid.gid) == GidScope::LinkLocal ? gidText(now->gid.gid) : now->address.host()) +
           ")";
}

std::uint32_t Device::mtu() const {
    return mtuBytes(mtuOfBytes(std::min(settings.mtu, mtuBytes(view()->attributes.active_mtu))));
}

Result<PortView> Device::readPort() const {
    PortView now;
    if (const int error = api_->queryPort(context(), port, now.attributes); error != 0)
        return errnoStatus(Code::ResourceExhausted, "query port", error);
    std::vector<ibv_gid_entry> known;
    if (const int error = api_->queryGids(context(), known); error != 0)
        return errnoStatus(Code::ResourceExhausted, "query GIDs", error);
    for (const ibv_gid_entry& entry : known) {
        if (entry.port_num != port) continue;
        now.table.push_back(entry);
        if (rank(entry) != 0 && (settings.gid_index == PortSettings::kAnyGid || entry.gid_index == settings.gid_index))
            now.gids.push_back(entry);
    }
    std::stable_sort(now.gids.begin(), now.gids.end(), [](const auto& a, const auto& b) { return rank(a) > rank(b); });
    const bool is_infiniband = now.attributes.link_layer == IBV_LINK_LAYER_INFINIBAND;
    // Where there are partitions; an entry that cannot be read says nothing of any change.
    if (is_infiniband && api_->queryPkey(context(), port, static_cast<int>(settings.pkey_index), now.pkey) != 0)
        now.pkey = 0;
    if (now.gids.empty()) return now;
    now.gid = now.gids.front();
    now.address = addressOfGid(now.gid.gid);
    // An InfiniBand GID is no address of IPoIB, and a link-local one needs a scope that no descriptor carries.
    now.by_cm = may_use_cm_ && !is_infiniband && scopeOf(now.gid.gid) != GidScope::LinkLocal;
    return now;
}

Status Device::look() {
    auto now = readPort();
    if (!now) return now.status();
    view_.publish(std::make_shared<const PortView>(std::move(*now)));
    return {};
}

Status Device::renewQueue() {
    auto made = CompletionQueue::create(context_, completions);
    if (!made) return made.status();
    queue_.publish(std::move(*made));
    return {};
}

/// Makes Devices; a struct of its own so that only it needs to be a friend.
struct DeviceOpener {
    const std::shared_ptr<VerbsApi>& api;
    const Config& config;
    const DeviceSettings& settings;
    bool exchange;

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
        device->settings = settings.of(name, port);
        device->may_use_cm_ = config.rdma_connect != "exchange";
        if (device->name.size() > 32) return {Code::Unsupported, "its name has more than 32 bytes"};
        if (const Status read = device->look(); !read) return read;
        const auto view = device->view();
        if (view->attributes.state != IBV_PORT_ACTIVE)
            return {Code::TransportMissing, std::string("the port is ") + stateName(view->attributes.state)};
        device->infiniband = view->attributes.link_layer == IBV_LINK_LAYER_INFINIBAND;
        device->max_message = view->attributes.max_msg_sz;
        if (const Status reachable = checkGids(*device, *view); !reachable) return reachable;
        if (const Status made = makeQueues(*device); !made) return made;
        return device;
    }

    Status checkGids(const Device& device, const PortView& view) const {
        const std::uint32_t wanted = device.settings.gid_index;
        if (view.gids.empty() && wanted != PortSettings::kAnyGid)
            return {Code::TransportMissing, "it has no GID of index " + std::to_string(wanted) + " (gid_index)"};
        if (view.by_cm || (exchange && config.rdma_connect != "cm" && !view.gids.empty())) return {};
        if (device.infiniband)
            return {Code::TransportMissing, "an InfiniBand port is connected by exchange alone, which " +
                                                std::string(exchange ? "rdma.connect = cm forbids: set it to auto"
                                                                     : "needs a control connection")};
        return {Code::TransportMissing,
                "no GID with an address that peers can connect to: give its network interface an IP address"};
    }

    Status makeQueues(Device& device) const {
        device.pd_ = api->allocPd(device.context());
        if (device.pd_ == nullptr) return errnoStatus(Code::ResourceExhausted, "allocate a protection domain", errno);
        const auto most = static_cast<std::uint32_t>(std::max(device.attributes.max_cqe, 1));
        device.completions = std::min(config.rdma_completion_queue, most);
        return device.renewQueue();
    }
};

Result<std::vector<std::shared_ptr<Device>>> Device::openAll(const std::shared_ptr<VerbsApi>& api, const Config& config,
                                                             bool exchange, const Logger& log) {
    const auto settings = DeviceSettings::parse(config);
    if (!settings) return settings.status();
    std::vector<std::string> listed;
    std::string reasons;
    const auto isWanted = [&](const std::string& found) {
        listed.push_back(found);
        const std::string why_not = settings->whyNot(found);
        if (why_not.empty()) return true;
        // As it was asked for, so no warning; where nothing else is left it is the reason.
        log->debug("rdma: device {} is not used: {}", found, why_not);
        reasons += "; " + found + ": " + why_not;
        return false;
    };
    std::vector<VerbsApi::Opened> opened;
    if (const int error = api->openDevices(isWanted, opened); error != 0) {
        // What libibverbs says where the kernel has no /sys/class/infiniband_verbs.
        if (error == ENOSYS)
            return {Code::TransportMissing,
                    "no usable RDMA device: the kernel's support for them is not there (module ib_uverbs is not "
                    "loaded)"};
        return errnoStatus(Code::TransportMissing, "no list of RDMA devices", error);
    }
    const auto leaveOut = [&](const std::string& which, const Status& why) {
        log->warn("rdma: device {} is not used: {}", which, why.message());
        reasons += "; " + which + ": " + why.message();
    };
    std::vector<std::shared_ptr<Device>> devices;
    std::map<std::string, unsigned> ports;  // Of each device that could be asked.
    const DeviceOpener opener{api, config, *settings, exchange};
    for (const VerbsApi::Opened& entry : opened) {
        if (entry.transport != IBV_TRANSPORT_IB) {
            leaveOut(entry.name, {Code::Unsupported, transportName(entry.transport) +
                                                         " has no reliable connections of InfiniBand or RoCE, which "
                                                         "this transport is made of"});
            continue;
        }
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
        ports.emplace(entry.name, attributes.phys_port_cnt);
        for (std::uint8_t port = 1; port <= attributes.phys_port_cnt; ++port) {
            auto device = opener.openPort(context, entry.name, attributes, port);
            if (device)
                devices.push_back(std::move(*device));
            else
                leaveOut(entry.name + " port " + std::to_string(port), device.status());
        }
    }
    const auto isListed = [&](const std::string& wanted) {
        return std::find(listed.begin(), listed.end(), wanted) != listed.end();
    };
    for (const std::string& name : settings->named())
        if (!isListed(name)) leaveOut(name, Status(Code::NotFound, "rdma.devices names it, but there is none"));
    for (const std::string& name : settings->configured()) {
        const auto colon = name.find(':');
        const std::string device = name.substr(0, colon);
        const auto found = ports.find(device);
        if (!isListed(device))
            log->warn("rdma: rdma.per_device names {}, but there is none", name);
        else if (colon != std::string::npos && found != ports.end() &&
                 std::stoul(name.substr(colon + 1)) > found->second)
            log->warn("rdma: rdma.per_device names {}, but that device has {} port(s)", name, found->second);
    }
    if (devices.empty())
        return {Code::TransportMissing,
                "no usable RDMA device" + (reasons.empty() ? ": this machine has none" : reasons)};
    return devices;
}

GidScope scopeOf(const ibv_gid& gid) {
    if (gid.global.interface_id == 0 && gid.global.subnet_prefix == 0) return GidScope::Null;
    if (isMapped(gid)) return GidScope::MappedV4;
    if (gid.raw[0] == 0xfe && (gid.raw[1] & 0xc0) == 0x80) return GidScope::LinkLocal;
    return GidScope::GlobalV6;
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

std::string gidForPeople(const ibv_gid& gid) {
    const GidScope scope = scopeOf(gid);
    return scope == GidScope::MappedV4 || scope == GidScope::GlobalV6 ? addressOfGid(gid).host() : gidText(gid);
}

std::uint32_t mtuBytes(ibv_mtu mtu) { return 128u << std::clamp(static_cast<int>(mtu), 1, 5); }

ibv_mtu mtuOfBytes(std::uint32_t bytes) {
    int mtu = IBV_MTU_256;
    while (mtu < IBV_MTU_4096 && (128u << (mtu + 1)) <= bytes) ++mtu;
    return static_cast<ibv_mtu>(mtu);
}

}  // namespace troupe::verbs
