#include "verbs_backend/verbs_transport.h"

#include <algorithm>

#include "verbs_backend/verbs_nic.h"

namespace troupe::verbs {

VerbsTransport::VerbsTransport(std::shared_ptr<VerbsApi> api) : api_(std::move(api)) {}

VerbsTransport::~VerbsTransport() = default;

Status VerbsTransport::install(const TransportContext& context) {
    auto devices = Device::openAll(api_, context.config, context.exchange != nullptr, context.log);
    if (!devices) return devices.status();
    auto memory = std::make_shared<MemoryTable>(*devices, context.config, context.log, context.device_memory);
    auto connector = std::make_shared<Connector>(api_, context.config, context.incarnation, context.log,
                                                 context.exchange, context.auth, context.described_anew);
    const auto port = connector->start(*devices);
    if (!port) return port.status();
    std::vector<PlacedNic> nics;
    for (std::size_t i = 0; i < devices->size(); ++i) {
        auto nic = VerbsNic::create(context, {connector, memory}, i, "*");
        if (!nic) return nic.status();
        nics.push_back({static_cast<unsigned>(i % std::max(context.data_loops, 1u)), std::move(*nic)});
        context.log->info("rdma: uses {}", (*devices)[i]->describe());
    }
    devices_ = std::move(*devices);
    memory_ = std::move(memory);
    connector_ = std::move(connector);
    port_ = *port;
    nics_ = std::move(nics);
    return {};
}

void VerbsTransport::describe(SegmentDesc& desc) const {
    if (devices_.empty()) return;
    desc.transports.push_back(name());
    // One that is out of use, or has no address now, keeps its place, by which keys are found, but nobody looks for it.
    for (const auto& device : devices_) {
        const auto view = device->isOut() ? std::make_shared<const PortView>() : device->view();
        const std::uint16_t lid = device->infiniband ? view->attributes.lid : std::uint16_t{0};
        desc.devices.push_back({device->name, lid, gidText(view->gid.gid)});
    }
    desc.rdma_port = port_;
    desc.rdma_chunk_bytes = memory_->chunkBytes();
    memory_->describe(desc);
}

Status VerbsTransport::reaches(const SegmentDesc& peer) const {
    if (std::find(peer.transports.begin(), peer.transports.end(), name()) == peer.transports.end())
        return {Code::TransportMissing, "segment '" + peer.name + "' does not serve rdma"};
    if (peer.devices.empty())
        return {Code::TransportMissing, "segment '" + peer.name + "' serves rdma but names no device"};
    if (peer.rdma_port == 0 && connector_ && !connector_->canExchange())
        return {Code::TransportMissing, "segment '" + peer.name + "' has no port for rdma_cm, and rdma.connect is cm"};
    return {};
}

void VerbsTransport::answer(const Asker& asker, std::string question, std::function<void(Result<std::string>)> reply) {
    if (!connector_) return reply(Status(Code::TransportMissing, "rdma is not installed"));
    connector_->answer(asker, std::move(question), std::move(reply));
}

void VerbsTransport::askerLeft(std::uint64_t connection) {
    if (connector_) connector_->askerLeft(connection);
}

void VerbsTransport::peerLeft(std::uint32_t peer) {
    if (connector_) connector_->peerLeft(peer);
}

std::string VerbsTransport::deviceWay(const DeviceRequest& request) const {
    if (request.from == nullptr || !request.from->isOnDevice()) return "straight, as its owner registered it";
    const auto map = memory_->keys().load();
    const RegionKeys* const keys = map->find(request.here.addr);
    if (keys == nullptr) return {};
    return keys->isDmabuf() ? "straight, by dma-buf" : "straight, by its address (peer memory driver)";
}

}  // namespace troupe::verbs
