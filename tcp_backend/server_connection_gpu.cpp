// ServerConnection: requests for memory of GPUs.

#include <algorithm>
#include <utility>

#include "tcp_backend/server_connection.h"

namespace troupe::tcp {

namespace {

/// What is wrong with memory of a GPU here that `why` was said of.
RangeFault faultOfCopy(const Status& why, std::uint64_t addr) {
    // The memory is at fault, and not the range that was asked for, which was looked up.
    if (why.code() == Code::InvalidArgument) return {Code::AccessDenied, addr, Denial::NotCopied};
    return {why.code(), addr};
}

}  // namespace

/// Where the payload of `incoming_` goes.
Payload ServerConnection::stagedPayload() {
    const auto staging = shared_.gpu.at(incoming_.device);
    if (!staging) {
        incoming_.fault = {staging.status().code(), incoming_.range.addr};
        return {nullptr, incoming_.range.length};
    }
    receives_.begin(**staging, incoming_.range);
    return {nullptr, incoming_.range.length, true};
}

/// The write is received; it is applied when the last copy of it has ended. With a fault it is refused, but no sooner:
/// what the initiator does next could be overtaken by what is under way.
void ServerConnection::acknowledgeStaged(const RangeFault& fault) {
    landings_.push_back({responses_.end(), incoming_.range, fault, receives_.take()});
    responses_.push() = {
        ResponseKind::WriteAck, false, true, Denial::LocalOnly, static_cast<std::int16_t>(incoming_.device), 1,
        incoming_.id,           {}};
}

/// Of an answer that waits for a GPU: whether it can be given now. An error takes its place when the write failed.
bool ServerConnection::hasLanded(std::uint64_t number) {
    Landing& landing = landings_.front();
    const Status lost = landing.sink->state();
    RangeFault fault = landing.fault;
    if (!lost && !fault) fault = faultOfCopy(lost, landing.range.addr);
    const bool is_over = !lost   ? !shared_.gpu.touches(landing.range)
                         : fault ? landing.sink->isSettled()
                                 : landing.sink->isDone();
    if (!is_over) return false;
    Response& response = responses_[number];
    if (fault)
        response = refusal(response.id, fault);
    else
        response.device = Gpu::kNone;
    landings_.pop_front();
    return true;
}

/// Adds what is there of a frame that a GPU is concerned with, from `offset` on. False: not all of it is.
bool ServerConnection::addStaged(Gather& gather, std::uint64_t number, std::uint64_t offset) {
    Response& response = responses_[number];
    const auto wait = [&] {
        waits_for_gpu_ = true;
        return false;
    };
    if (response.kind == ResponseKind::WriteAck) {
        if (!hasLanded(number)) return wait();
        return addResponse(gather, response, offset) + offset == frameBytes(response);
    }
    const auto staging = shared_.gpu.at(response.device);
    Status failed = staging.status();
    std::span<const std::byte> bytes;
    const std::uint64_t done = offset < kResponseBytes ? 0 : offset - kResponseBytes;
    if (blocked_) blocked_ = !isWritable(fd.get());
    if (failed && !blocked_) copyAhead(number, **staging);
    if (failed && response.crc && !response.has_value) {
        const auto sum = staged_.checksum(number, **staging, response.range);
        failed = staged_.state(number);
        if (!sum && failed) return wait();
        if (sum) {
            response.value = *sum;
            response.has_value = true;
        }
    }
    if (failed) {
        bytes = staged_.ready(number, **staging, response.range, done, !blocked_);
        failed = staged_.state(number);
    }
    if (!failed) return failStaged(gather, number, offset, failed);
    // The header goes with the first bytes: until then an error can take its place.
    if (bytes.empty()) return wait();
    if (offset < kResponseBytes) {
        std::byte* head = gather.scratch(kResponseBytes);
        encodeResponse({response.kind, response.crc, response.value, response.id, response.range.length}, head);
        gather.add(head + offset, kResponseBytes - offset);
    }
    gather.add(bytes.data(), bytes.size());
    return done + bytes.size() == response.range.length;
}

/// A GPU does not give what a READ asked for. What was announced already cannot become an error: then the connection
/// ends, once what is before it was sent.
bool ServerConnection::failStaged(Gather& gather, std::uint64_t number, std::uint64_t offset, const Status& why) {
    if (offset != 0) {
        gpu_failure_ = number == responses_.first() ? why : Status();
        waits_for_gpu_ = true;
        return false;
    }
    Response& response = responses_[number];
    staged_.fail(number);
    forget(response);
    response = refusal(response.id, faultOfCopy(why, response.range.addr));
    return addResponse(gather, response, 0) == frameBytes(response);
}

/// Begins to copy this and what is sent after it.
void ServerConnection::copyAhead(std::uint64_t number, device::Staging& staging) {
    const int device = staging.device().info().ordinal;
    staged_.goAhead(number, responses_.end(), staging, [&](std::uint64_t each, ByteRange& range) {
        const Response& response = responses_[each];
        if (response.kind != ResponseKind::ReadData) return true;
        if (response.device == device) range = response.range;
        return response.device == device;
    });
}

/// Of the frame of a READ from a GPU the bytes from `before` to `after` were sent.
void ServerConnection::countStaged(std::uint64_t number, std::uint64_t before, std::uint64_t after) {
    const Response& response = responses_[number];
    if (response.kind != ResponseKind::ReadData) return;
    staged_.consume(number, after - std::min(after, std::max(before, std::uint64_t{kResponseBytes})));
    if (after == frameBytes(response)) staged_.finish(number);
}

}  // namespace troupe::tcp
