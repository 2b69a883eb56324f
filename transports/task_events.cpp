#include "transports/task_events.h"

#include <string>
#include <utility>

namespace troupe::device {

Result<bool> TaskWait::isReady() {
    if (!lost_) return lost_;
    if (event_) {
        const auto done = event_->isDone();
        if (!done || !*done) return done;
        event_.reset();
    }
    if (stream_) {
        // Ours, but where it was recorded is not: of a stream that is captured into a graph each answer is an error.
        const auto done = stream_->device->isDone(EventRef(stream_->event.get()));
        if (!done || !*done) return done;
        stream_.reset();
    }
    return true;
}

Status TaskEvents::signal() {
    if (!done_) return {};
    if (!done_->lost_) return done_->lost_;
    // Of a GPU that was lost meanwhile the event never comes.
    if (done_->work_) return staging_->device().state();
    return staging_->copier().record(EventRef(done_->event_));
}

namespace {

/// What a submit is refused with.
Status refusal(std::size_t request, const Status& why, const char* handle) {
    return why.withContext(handle).withContext("request " + std::to_string(request));
}

}  // namespace

Result<std::unique_ptr<TaskEvents>> EventsOfSubmit::make(std::size_t request, const std::shared_ptr<Staging>& staging,
                                                         const EventHandles& handles) {
    request_ = request;
    auto waits = wait(staging, handles);
    if (!waits) return waits.status();
    if (!*waits && handles.done_event == 0) return std::unique_ptr<TaskEvents>();
    return std::make_unique<TaskEvents>(staging, std::move(*waits), done(staging, handles.done_event));
}

std::shared_ptr<TaskDone> EventsOfSubmit::done(const std::shared_ptr<Staging>& staging, std::uintptr_t event) {
    if (event == 0) return nullptr;
    auto& made = dones_[{staging.get(), event}];
    if (!made) {
        made = std::make_shared<TaskDone>();
        made->event_ = event;
        if (staging->doneEvents() != nullptr) to_record_.push_back({request_, staging, made});
    }
    return made;
}

Status EventsOfSubmit::begin() {
    for (const ToBegin& each : to_begin_) {
        const Status begun = each.captured->begin();
        // Who asks whether it is done hears that.
        if (!begun && begun.code() != Code::DeviceLost) return refusal(each.request, begun, "wait_event");
    }
    for (const ToRecord& each : to_record_) {
        auto recorded = each.staging->doneEvents()->record(EventRef(each.done->event_));
        if (recorded)
            each.done->work_ = std::move(*recorded);
        else if (recorded.status().code() == Code::DeviceLost)
            each.done->lost_ = recorded.status();
        else
            return refusal(each.request, recorded.status(), "done_event");
    }
    return {};
}

Result<std::shared_ptr<TaskWait>> EventsOfSubmit::wait(const std::shared_ptr<Staging>& staging,
                                                       const EventHandles& handles) {
    const std::tuple named{static_cast<const Staging*>(staging.get()), handles.wait_event, handles.wait_stream};
    if (const auto found = waits_.find(named); found != waits_.end()) return found->second;
    auto made = std::make_shared<TaskWait>();
    if (Status looked = look(*staging, handles, *made); looked.code() == Code::DeviceLost)
        made->lost_ = std::move(looked);
    else if (!looked)
        return looked;
    if (made->lost_ && !made->event_ && !made->stream_) made = nullptr;
    waits_.emplace(named, made);
    return made;
}

Status EventsOfSubmit::look(const Staging& staging, const EventHandles& handles, TaskWait& wait) {
    if (handles.wait_event != 0)
        if (const Status status = capture(staging, handles.wait_event, wait.event_); !status)
            return refusal(request_, status, "wait_event");
    if (handles.wait_stream)
        if (const Status status = mark(staging, *handles.wait_stream, wait.stream_); !status)
            return refusal(request_, status, "wait_stream");
    return {};
}

Status EventsOfSubmit::capture(const Staging& staging, std::uintptr_t event,
                               std::shared_ptr<EventCaptures::Captured>& captured) {
    const Named named{&staging, event};
    if (const auto found = events_.find(named); found != events_.end()) {
        captured = found->second;
        return {};
    }
    auto made = staging.captures().capture(EventRef(event));
    if (!made) return made.status();
    captured = std::move(*made);
    events_.emplace(named, captured);
    if (captured) to_begin_.push_back({request_, captured});
    return {};
}

Status EventsOfSubmit::mark(const Staging& staging, std::uintptr_t stream,
                            std::shared_ptr<TaskWait::StreamMark>& mark) {
    const Named named{&staging, stream};
    if (const auto found = streams_.find(named); found != streams_.end()) {
        mark = found->second;
        return {};
    }
    Device& device = staging.device();
    auto event = device.makeEvent();
    if (!event) return event.status();
    if (Status status = device.record(*event, StreamRef(stream)); !status) return status;
    const auto done = device.isDone(EventRef(event->get()));
    if (!done) return done.status();
    if (!*done)
        mark =
            std::make_shared<TaskWait::StreamMark>(TaskWait::StreamMark{device.shared_from_this(), std::move(*event)});
    streams_.emplace(named, mark);
    return {};
}

}  // namespace troupe::device
