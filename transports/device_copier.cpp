#include "transports/device_copier.h"

#include <algorithm>
#include <utility>

namespace troupe::device {
namespace {

constexpr unsigned kStreams = 2;
/// Copies under way at a time: enough to keep a copy engine busy between two passes of the loop with pages of 64 KiB.
constexpr unsigned kSlots = 64;

}  // namespace

Result<std::unique_ptr<DeviceCopier>> DeviceCopier::create(std::shared_ptr<Device> device,
                                                           std::shared_ptr<PagePacking> packing) {
    std::unique_ptr<DeviceCopier> copier(new DeviceCopier);
    copier->packing_ = packing ? std::move(packing) : std::make_shared<PagePacking>(device->info().location, nullptr);
    if (Status status = copier->make(std::move(device)); !status) return status.withContext("copies of a GPU");
    return copier;
}

Status DeviceCopier::make(std::shared_ptr<Device> device) {
    device_ = std::move(device);
    for (unsigned index = 0; index < kStreams; ++index) {
        auto stream = device_->makeStream();
        if (!stream) return stream.status();
        streams_.push_back(std::move(*stream));
    }
    auto told = device_->makeStream();
    if (!told) return told.status();
    told_ = std::move(*told);
    if (Status status = bell_.make(*device_); !status) return status;
    for (unsigned index = 0; index < kSlots; ++index) {
        auto event = device_->makeEvent();
        if (!event) return event.status();
        slots_.push_back({std::move(*event), {}, 0, false});
        free_.push_back(kSlots - 1 - index);
    }
    return {};
}

DeviceCopier::~DeviceCopier() {
    // Of a device that is lost nothing runs any more.
    for (const DeviceStream& stream : streams_) device_->synchronize(stream).isOk();
}

Status DeviceCopier::begin(std::span<const PageMove> moves, PageWay way, Begun& begun) {
    begun = {};
    if (free_.empty()) return Status(Code::Internal, "a copy of a GPU was begun without room for it");
    const DeviceStream& stream = streams_[++copies_ % kStreams];
    MovesBegun made;
    const Status status = packing_->begin(*device_, stream, way, moves, made);
    if (made.touched == 0) return status;
    const unsigned index = free_.back();
    free_.pop_back();
    busy_.push_back(index);
    Slot& slot = slots_[index];
    slot.moves.assign(moves.begin(), moves.begin() + static_cast<std::ptrdiff_t>(made.touched));
    slot.copy = copies_;
    const Status recorded = device_->record(slot.ended, stream);
    slot.unseen = !recorded;
    if (recorded) begun = {slot.copy, made.whole};
    return status ? recorded : status;
}

bool DeviceCopier::isUnderWay(std::uint64_t copy) const {
    return std::any_of(busy_.begin(), busy_.end(), [&](unsigned index) { return slots_[index].copy == copy; });
}

bool DeviceCopier::hasEnded(Slot& slot) {
    // What is recorded now comes after it on its stream.
    if (slot.unseen) slot.unseen = !device_->record(slot.ended, streams_[slot.copy % kStreams]);
    if (slot.unseen) return device_->state().code() == Code::DeviceLost;
    const auto ended = device_->isDone(slot.ended);
    // Another error leaves it under way: nobody knows that it is not.
    return ended ? *ended : ended.status().code() == Code::DeviceLost;
}

bool DeviceCopier::poll() {
    bell_.hear();
    const std::size_t before = busy_.size();
    // On each stream they end in order: what follows one that has not ended need not be asked for.
    bool waits[kStreams] = {};
    std::erase_if(busy_, [&](unsigned index) {
        Slot& slot = slots_[index];
        bool& waiting = waits[slot.copy % kStreams];
        if (waiting || !hasEnded(slot)) {
            waiting = true;
            return false;
        }
        slot.unseen = false;
        free_.push_back(index);
        return true;
    });
    return busy_.size() != before;
}

std::optional<ByteRange> DeviceCopier::touched(const ByteRange& memory) const {
    for (const unsigned index : busy_)
        for (const PageMove& move : slots_[index].moves)
            for (const ByteRange& end : {ByteRange{move.to, move.bytes}, ByteRange{move.from, move.bytes}})
                if (end.overlaps(memory)) return end;
    return std::nullopt;
}

bool DeviceCopier::arm() {
    if (busy_.empty() || bell_.isArmed()) return true;
    const Slot& first = slots_[busy_.front()];
    return !first.unseen && bell_.arm(first.ended);
}

}  // namespace troupe::device
