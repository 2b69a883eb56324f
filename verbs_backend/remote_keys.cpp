#include "verbs_backend/remote_keys.h"

#include <algorithm>
#include <numeric>

#include "transports/range_fault.h"

namespace troupe::verbs {

namespace {

/// "cuda:1", whoever made the GPU: what is said of the host's memory is "*" or its NUMA nodes.
bool isOnDevice(const BufferDesc& buffer) {
    const auto begins = [&](const char* with) { return buffer.location.rfind(with, 0) == 0; };
    return !buffer.location.empty() && !begins("*") && !begins("cpu:") && !begins("segments");
}

}  // namespace

RemoteKeys::RemoteKeys(std::shared_ptr<const Peer> peer) : peer_(std::move(peer)) {
    const auto& buffers = peer_->desc->buffers;
    const auto by_addr = [](const BufferDesc& a, const BufferDesc& b) { return a.addr < b.addr; };
    // Engines publish them sorted; a descriptor from elsewhere need not be.
    if (std::is_sorted(buffers.begin(), buffers.end(), by_addr)) return;
    order_.resize(buffers.size());
    std::iota(order_.begin(), order_.end(), 0u);
    std::sort(order_.begin(), order_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return by_addr(buffers[a], buffers[b]); });
}

const BufferDesc* RemoteKeys::bufferAt(std::uint64_t addr) const {
    const auto& buffers = peer_->desc->buffers;
    const auto at = [&](std::size_t i) -> const BufferDesc& { return buffers[order_.empty() ? i : order_[i]]; };
    const auto holds = [addr](const BufferDesc& buffer) {
        return addr >= buffer.addr && addr - buffer.addr < buffer.length;
    };
    if (last_ < buffers.size() && holds(at(last_))) return &at(last_);
    std::size_t low = 0;
    std::size_t high = buffers.size();
    while (low < high) {
        const std::size_t middle = low + (high - low) / 2;
        if (at(middle).addr <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || !holds(at(low - 1))) return nullptr;
    last_ = low - 1;
    return &at(last_);
}

Status RemoteKeys::refusal(std::uint64_t addr, const BufferDesc* buffer) const {
    const std::string who = "segment '" + peer_->name + "' through RDMA: ";
    if (buffer != nullptr && buffer->remote_accessible && buffer->rkeys.empty() && isOnDevice(*buffer))
        return {Code::Unsupported,
                who + hexAddress(addr) + " is memory of " + buffer->location + ", which no RDMA device there reaches"};
    if (buffer != nullptr && buffer->remote_accessible)
        return {Code::AddressNotRegistered, who + hexAddress(addr) + " has no RDMA key"};
    const RangeFault fault{buffer == nullptr ? Code::AddressNotRegistered : Code::AccessDenied, addr};
    const std::string as_of = buffer != nullptr ? ""
                                                : " as of version " + std::to_string(peer_->desc->version) +
                                                      " of its descriptor (syncSegmentCache fetches a newer one)";
    return {fault.code, who + fault.toString() + as_of};
}

Result<RemoteKeys::Found> RemoteKeys::find(std::uint64_t addr, std::size_t device) const {
    const BufferDesc* buffer = bufferAt(addr);
    const std::size_t devices = peer_->desc->devices.size();
    if (buffer == nullptr || !buffer->remote_accessible || buffer->rkeys.empty()) return refusal(addr, buffer);
    const std::uint64_t chunk_bytes =
        peer_->desc->rdma_chunk_bytes != 0 ? peer_->desc->rdma_chunk_bytes : buffer->length;
    const std::uint64_t offset = addr - buffer->addr;
    const std::uint64_t chunk = offset / chunk_bytes;
    const std::uint64_t index = chunk * devices + device;
    if (device >= devices || index >= buffer->rkeys.size()) return refusal(addr, buffer);
    const std::uint64_t left = std::min(chunk_bytes - offset % chunk_bytes, buffer->length - offset);
    return Found{buffer->rkeys[index], left, buffer->rdma_writes == RdmaWrites::ReadBack};
}

Status RemoteKeys::covers(const ByteRange& range, Opcode opcode) const {
    if (range.wraps()) return {Code::InvalidArgument, RangeFault{Code::InvalidArgument, range.addr}.toString()};
    std::uint64_t at = range.addr;
    while (at < range.end()) {
        const BufferDesc* buffer = bufferAt(at);
        if (buffer == nullptr || !buffer->remote_accessible || buffer->rkeys.empty()) return refusal(at, buffer);
        if (opcode == Opcode::Write && buffer->rdma_writes == RdmaWrites::None)
            return {Code::Unsupported, "segment '" + peer_->name + "' through RDMA: " + hexAddress(at) +
                                           " is memory of " + buffer->location +
                                           ", which does not see what RDMA devices write"};
        at = buffer->addr + buffer->length;
    }
    return {};
}

}  // namespace troupe::verbs
