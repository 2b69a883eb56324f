#include "transports/task_events.h"

#include <utility>

namespace troupe::device {

Result<std::unique_ptr<TaskEvents>> TaskEvents::create(std::shared_ptr<Staging> staging, const EventHandles& handles) {
    std::unique_ptr<TaskEvents> events(new TaskEvents(std::move(staging), handles));
    if (handles.wait_stream == 0) return events;
    Device& device = events->staging_->device();
    auto event = device.makeEvent();
    if (!event) return event.status();
    events->of_stream_ = std::move(*event);
    const Status recorded = device.record(events->of_stream_, StreamRef(handles.wait_stream));
    if (!recorded) return recorded;
    return events;
}

Result<bool> TaskEvents::isReady() {
    Device& device = staging_->device();
    if (handles_.wait_event != 0) {
        const auto done = device.isDone(EventRef(handles_.wait_event));
        if (!done || !*done) return done;
        handles_.wait_event = 0;
    }
    if (!of_stream_) return true;
    const auto done = device.isDone(of_stream_);
    if (done && *done) of_stream_.reset();
    return done;
}

Status TaskEvents::signal() {
    if (handles_.done_event == 0) return {};
    return staging_->copier().record(EventRef(handles_.done_event));
}

}  // namespace troupe::device
