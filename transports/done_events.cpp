#include "transports/done_events.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "base/byte_range.h"
#include "topology/location.h"

namespace troupe::device {

namespace {

constexpr std::uint64_t kPage = 4096;
/// Each word in a line of its own: a GPU looks at it again and again.
constexpr std::uint64_t kLine = 128;

}  // namespace

void logRecordedAtEnd(const Logger& log, const Device& device, const Status& why) {
    if (!log) return;
    log->warn(
        "{}: the done_event of a transfer is recorded when its bytes are there, and not at submit, so what is given to "
        "the GPU behind it before that does not wait: {}",
        device.info().location, why.toString());
}

Result<std::shared_ptr<DoneEvents>> DoneEvents::create(std::shared_ptr<Device> device, int numa_node, Logger log) {
    if (!device->info().waits_for_values)
        return Status(Code::Unsupported, "this driver has no call for it (CUDA 11.7 or newer has)");
    std::shared_ptr<DoneEvents> made(new DoneEvents(std::move(device), std::move(log)));
    if (Status status = made->make(numa_node); !status) return status;
    return made;
}

Status DoneEvents::make(int numa_node) {
    auto memory = MemoryFile::create(kPage, false, Location::onNode(numa_node));
    if (!memory) return memory.status();
    memory_ = std::move(*memory);
    const ByteRange words{reinterpret_cast<std::uint64_t>(memory_->data()), kPage};
    auto pinning = device_->pin(words);
    if (!pinning) return pinning.status();
    pinning_ = std::move(*pinning);
    if (Status reached = device_->reachesPinned(words); !reached) return reached;
    static_assert(kStreams * kLine <= kPage);
    for (std::size_t index = 0; index < kStreams; ++index) {
        Lane lane;
        lane.word = new (memory_->data() + index * kLine) Word(0);
        auto stream = device_->makeStream();
        if (!stream) return stream.status();
        lane.stream = std::move(*stream);
        lanes_.push_back(std::move(lane));
    }
    return {};
}

DoneEvents::~DoneEvents() {
    // A GPU that has not looked yet must not find the words gone. Of one that is lost nothing runs any more.
    for (const Lane& lane : lanes_) device_->synchronize(lane.stream).isOk();
}

std::shared_ptr<DoneEvents::Work> DoneEvents::begin() {
    const std::lock_guard lock(mutex_);
    const auto least = std::min_element(lanes_.begin(), lanes_.end(),
                                        [](const Lane& a, const Lane& b) { return a.ended.size() < b.ended.size(); });
    if (least->ended.size() >= kMostEach) return nullptr;
    least->ended.push_back(false);
    return std::shared_ptr<Work>(
        new Work(shared_from_this(), static_cast<std::size_t>(least - lanes_.begin()), ++least->last));
}

void DoneEvents::end(const Work& work) {
    const std::lock_guard lock(mutex_);
    Lane& lane = lanes_[work.lane_];
    // Counted from the newest, in a circle as the GPU does.
    lane.ended[lane.ended.size() - 1 - (lane.last - work.number_)] = true;
    if (!lane.ended.front()) return;
    while (!lane.ended.empty() && lane.ended.front()) lane.ended.pop_front();
    // With release, and behind what was seen of the work's end: who waits for the event sees the work's bytes.
    lane.word->store(lane.last - static_cast<std::uint32_t>(lane.ended.size()), std::memory_order_release);
}

Result<std::shared_ptr<DoneEvents::Work>> DoneEvents::record(EventRef event) {
    const std::lock_guard lock(recording_);
    if (is_refused_) return std::shared_ptr<Work>();
    auto work = begin();
    if (work == nullptr)
        return Status(
            Code::CapacityExceeded,
            std::to_string(kStreams * kMostEach) +
                " are outstanding on that GPU, which is the most: let some transfers end first, or name one event in "
                "several requests of a submit");
    const Lane& lane = lanes_[work->lane_];
    Status status =
        device_->waitForValue(lane.stream, reinterpret_cast<const std::uint32_t*>(lane.word), work->number_);
    if (status.code() == Code::Unsupported) {
        is_refused_ = true;
        logRecordedAtEnd(log_, *device_, status);
        return std::shared_ptr<Work>();
    }
    if (status) status = device_->record(event, lane.stream);
    if (!status) return status;
    return work;
}

}  // namespace troupe::device
