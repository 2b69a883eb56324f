#include "transports/event_captures.h"

#include <string>
#include <utility>

namespace troupe::device {

namespace {

/// Of lanes whose tasks ended early so many are asked whether they have passed before another stream is made.
constexpr std::size_t kLooks = 8;

}  // namespace

EventCaptures::Captured::~Captured() {
    if (lane_.stream)
        owner_->giveBack(std::move(lane_), !waits_);
    else
        owner_->forget();
}

Status EventCaptures::Captured::begin() {
    Status status = owner_->device_->wait(lane_.stream, event_);
    // Of a GPU that is lost nobody is to take it for done.
    waits_ = status.isOk() || status.code() == Code::DeviceLost;
    if (!status) return status;
    status = owner_->device_->record(lane_.passed, lane_.stream);
    // The stream waits, and nothing would say until when. A driver ends it when that has come, and keeps nobody for it.
    if (!status) lane_ = {};
    return status;
}

Result<bool> EventCaptures::Captured::isDone() {
    if (!waits_) return true;
    auto done = owner_->device_->isDone(lane_.passed);
    if (done && *done) waits_ = false;
    return done;
}

Result<std::unique_ptr<EventCaptures::Captured>> EventCaptures::capture(EventRef event) {
    // Not for speed alone: of an event that was recorded into a graph this is refused, where a stream that waits for it
    // would become part of the graph.
    const auto done = device_->isDone(event);
    if (!done) return done.status();
    if (*done) return std::unique_ptr<Captured>();
    auto lane = take();
    if (!lane) return lane.status();
    return std::unique_ptr<Captured>(new Captured(shared_from_this(), std::move(*lane), event));
}

Result<EventCaptures::Lane> EventCaptures::take() {
    Lane lane;
    bool may_make = false;
    {
        const std::lock_guard lock(mutex_);
        if (!idle_.empty()) {
            lane = std::move(idle_.back());
            idle_.pop_back();
            return lane;
        }
        may_make = made_ < kMost;
    }
    if (findPassed(may_make ? kLooks : kMost, lane)) return lane;
    return make();
}

Result<EventCaptures::Lane> EventCaptures::make() {
    {
        const std::lock_guard lock(mutex_);
        if (made_ >= kMost)
            return Status(Code::CapacityExceeded,
                          device_->info().location + ": transfers of one data loop wait for " + std::to_string(kMost) +
                              " events that are not done, those of transfers that ended early among them; requests of "
                              "one submit that name one event count once");
        ++made_;
    }
    auto stream = device_->makeStream();
    auto passed = stream ? device_->makeEvent() : Result<DeviceEvent>(stream.status());
    if (passed) return Lane{std::move(*stream), std::move(*passed)};
    const std::lock_guard lock(mutex_);
    --made_;
    return passed.status();
}

/// One that waits no more, of the `looks` that have been there longest. What is not known stays with the others.
bool EventCaptures::findPassed(std::size_t looks, Lane& found) {
    for (; looks > 0; --looks) {
        {
            const std::lock_guard lock(mutex_);
            if (waiting_.empty()) return false;
            found = std::move(waiting_.front());
            waiting_.pop_front();
        }
        const auto passed = device_->isDone(found.passed);
        if (passed && *passed) return true;
        const std::lock_guard lock(mutex_);
        waiting_.push_back(std::move(found));
    }
    return false;
}

void EventCaptures::giveBack(Lane lane, bool has_passed) {
    const std::lock_guard lock(mutex_);
    if (has_passed)
        idle_.push_back(std::move(lane));
    else
        waiting_.push_back(std::move(lane));
}

/// A lane that is no more.
void EventCaptures::forget() {
    const std::lock_guard lock(mutex_);
    --made_;
}

}  // namespace troupe::device
