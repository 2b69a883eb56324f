#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "base/fault_injector.h"
#include "base/printable.h"
#include "base/wire_code.h"
#include "tcp_backend/crc32c.h"
#include "tcp_backend/lane.h"

namespace troupe::tcp {

/// Takes the frames of the answers; answers come in the order of the requests.
class Lane::Receiver {
  public:
    Receiver(Lane& lane, Sweep& sweep) : lane_(lane), sweep_(sweep) {}

    bool onHeader(const std::byte* bytes, Payload& next) {
        ResponseHeader& response = lane_.response_;
        // Only the oldest request that was sent whole can be answered.
        if (!decodeResponse(bytes, response) || response.id != lane_.ring_.first() || response.id >= lane_.sent_)
            return false;
        switch (response.kind) {
            case ResponseKind::WriteAck: return onAck(response.value);
            case ResponseKind::ReadData: return onData(next);
            case ResponseKind::Error:
                next = {lane_.message_.data(), response.length};
                if (next.length == 0) onPayload();
                return true;
        }
        return false;
    }

    void onBytes(std::byte* data, std::size_t size) {
        if (lane_.shared_.faults != nullptr && lane_.response_.kind == ResponseKind::ReadData)
            lane_.shared_.faults->corrupt(lane_.shared_.name, {data, size});
        if (lane_.response_.crc) lane_.response_crc_ = crc32c(lane_.response_crc_, data, size);
    }

    void onPayload() {
        const ResponseHeader& response = lane_.response_;
        const WorkRequest request = lane_.ring_.front().request;
        const bool staged = lane_.ring_.front().device != Gpu::kNone;
        lane_.retire();
        if (response.kind == ResponseKind::Error) {
            const std::string text = printable({reinterpret_cast<const char*>(lane_.message_.data()), response.length});
            const Code code = codeFromWire(response.value);
            // Damage is about this request. What else is refused the tracker says of the whole task.
            const bool damaged = code == Code::ChecksumMismatch;
            const std::string who = damaged ? lane_.describe(request) : lane_.where();
            sweep_.failed.push_back({request, {code, who + ": " + text}, damaged, true});
        } else if (response.crc && lane_.response_crc_ != response.value) {
            sweep_.failed.push_back(
                {request,
                 {Code::ChecksumMismatch, lane_.describe(request) + ": the CRC32C of the bytes that came differs"},
                 true,
                 true});
        } else if (staged) [[unlikely]] {
            return onStagedData(request);
        } else {
            sweep_.complete(request.cookie, request.length);
        }
        if (staged) [[unlikely]]
            lane_.receives_.take().reset();
    }

    Room roomFor(std::span<std::byte>& here) { return lane_.receives_.roomFor(here); }
    void onStaged(std::size_t size) { lane_.receives_.commit(size); }
    void onSilence() { lane_.receives_.onSilence(); }

    bool onFault() { return false; }

    std::size_t headerRoom() const { return SIZE_MAX; }

  private:
    bool onAck(std::uint32_t count) {
        if (count > lane_.sent_ - lane_.ring_.first()) return false;
        for (std::uint32_t i = 0; i < count; ++i) {
            const WorkRequest& request = lane_.ring_.front().request;
            if (request.opcode != Opcode::Write) return false;
            sweep_.complete(request.cookie, request.length);
            lane_.retire();
        }
        return true;
    }

    bool onData(Payload& next) {
        const WorkRequest& request = lane_.ring_.front().request;
        if (request.opcode != Opcode::Read || lane_.response_.length != request.length ||
            lane_.response_.crc != lane_.shared_.config.tcp_crc)
            return false;
        lane_.response_crc_ = 0;
        next = {request.local, request.length};
        if (lane_.ring_.front().device != Gpu::kNone) [[unlikely]]
            next = lane_.stagedPayload();
        if (next.length == 0) onPayload();
        return true;
    }

    /// All bytes for a GPU have come, or were dropped.
    void onStagedData(const WorkRequest& request) {
        std::unique_ptr<device::StagedSink> sink = lane_.receives_.take();
        const Status lost = sink ? sink->state() : std::exchange(lane_.gpu_refusal_, {});
        if (lost)
            lane_.shared_.gpu.land(lane_.path_.id, request, std::move(sink));
        else
            sweep_.failed.push_back({request, lost, false, true, true});
    }

    Lane& lane_;
    Sweep& sweep_;
};

/// Where the bytes of the oldest READ, which are for a GPU, go.
Payload Lane::stagedPayload() {
    const Outstanding& entry = ring_.front();
    const ByteRange range{reinterpret_cast<std::uint64_t>(entry.request.local), entry.request.length};
    const auto staging = shared_.gpu.at(entry.device);
    gpu_refusal_ = staging.status();
    if (!staging) return {nullptr, range.length};
    receives_.begin(**staging, range);
    return {nullptr, range.length, true};
}

bool Lane::receive(TimePoint now, Sweep& sweep) {
    bool moved = false;
    std::size_t budget = kPassBytes;
    Receiver receiver(*this, sweep);
    const ReadEnd end = reader_.read(fd.get(), shared_.scratch, budget, receiver, moved);
    receives_.pause();
    shared_.pass_bytes += kPassBytes - budget;
    starved_ = end == ReadEnd::Starved;
    switch (end) {
        case ReadEnd::Starved:
        case ReadEnd::Drained:
        case ReadEnd::Budget: return moved;
        case ReadEnd::Closed:
            lose(now, {Code::ConnectionLost, "the peer closed the connection"}, true, sweep.failed);
            break;
        case ReadEnd::Violation:
            lose(now, {Code::ProtocolError, "the peer sent an answer that fits no request"}, true, sweep.failed);
            break;
        case ReadEnd::Failed:
            if (reader_.error() == EFAULT)
                lose(now, errnoStatus(Code::InvalidArgument, "cannot write the local buffer", EFAULT), true,
                     sweep.failed, ring_.first());
            else
                lose(now, errnoStatus(Code::ConnectionLost, "recv", reader_.error()), true, sweep.failed);
            break;
    }
    return true;
}

}  // namespace troupe::tcp
