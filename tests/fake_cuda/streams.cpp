// Streams and events: a thread per stream does what it was given, in order.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

#include "tests/fake_cuda/reserve.h"
#include "tests/fake_cuda/state.h"

namespace troupe::fake_cuda {
namespace {

thread_local bool calling_back = false;

void runStream(const std::shared_ptr<StreamObject>& stream) {
    State& state = State::get();
    std::unique_lock lock(state.mutex);
    ContextObject& context = *stream->context;
    for (;;) {
        state.changed.wait(lock, [&] {
            return context.lost || (!stream->tasks.empty() && !state.held) || (stream->ending && stream->tasks.empty());
        });
        if (context.lost) {
            stream->tasks.clear();
            if (stream->ending) return;
            state.changed.notify_all();
            state.changed.wait(lock, [&] { return stream->ending || !context.lost; });
            continue;
        }
        if (stream->tasks.empty()) return;
        if (context.lose_after == 0) {
            state.lose(context, context.lose_with);
            continue;
        }
        if (context.lose_after > 0) --context.lose_after;
        const Task task = std::move(stream->tasks.front());
        stream->tasks.pop_front();
        stream->busy = true;
        ++state.counts["operations"];
        task(lock);
        stream->busy = false;
        state.changed.notify_all();
    }
}

/// Copies in the order of the bytes; the segments of the two sides need not fit.
void copyAll(const std::vector<Segment>& to, const std::vector<Segment>& from) {
    std::size_t target = 0;
    std::uint64_t used = 0;
    for (const Segment& source : from) {
        for (std::uint64_t done = 0; done < source.bytes;) {
            const std::uint64_t now = std::min(source.bytes - done, to[target].bytes - used);
            std::memmove(to[target].data + used, source.data + done, now);
            done += now;
            used += now;
            if (used == to[target].bytes) {
                ++target;
                used = 0;
            }
        }
    }
}

/// The memory of one side, as the operation begins.
bool look(State& state, std::uint64_t addr, std::uint64_t bytes, int device, std::vector<Segment>& segments) {
    if (state.isPageable(addr, bytes)) {
        segments.push_back(whole(reinterpret_cast<std::uint8_t*>(addr), bytes));
        return true;
    }
    return state.resolve(addr, bytes, device, segments);
}

void runCopy(std::unique_lock<std::mutex>& lock, ContextObject& context, std::uint64_t to, std::uint64_t from,
             std::uint64_t bytes) {
    State& state = State::get();
    ++state.counts["copies"];
    std::vector<Segment> target;
    std::vector<Segment> source;
    if (!look(state, to, bytes, context.device, target) || !look(state, from, bytes, context.device, source)) {
        state.violate("a copy began when its memory was there no more");
        state.lose(context, Result::IllegalAddress);
        return;
    }
    for (const std::uint64_t addr : {to, from}) {
        const Mapping* const mapping = state.find(addr);
        if (mapping == nullptr || mapping->kind != Mapping::Kind::Allocated || mapping->device == context.device)
            continue;
        ++state.counts[context.peers.count(mapping->context) != 0 ? "copies by peer access"
                                                                  : "copies between GPUs through the host"];
    }
    state.sleepFor(bytes, lock);
    lock.unlock();
    copyAll(target, source);
    lock.lock();
}

}  // namespace

bool isCallingBack() { return calling_back; }

std::shared_ptr<StreamObject> State::makeStream(ContextObject* context) {
    auto made = std::make_shared<StreamObject>();
    made->context = context;
    made->thread = std::thread([made] { runStream(made); });
    made->thread.detach();
    return made;
}

StreamObject* State::streamOf(StreamHandle handle, ContextObject* context) {
    const auto number = reinterpret_cast<std::uintptr_t>(handle);
    if (number != kStreamLegacy && number != kStreamPerThread) return isAlive(handle) ? handle : nullptr;
    const bool is_legacy = number == kStreamLegacy;
    auto& stream = default_streams[{context, is_legacy ? std::thread::id() : std::this_thread::get_id()}];
    if (!stream) {
        stream = makeStream(context);
        stream->legacy = is_legacy;
        stream->blocking = !is_legacy;
    }
    return stream.get();
}

void State::enqueue(StreamObject& stream, Task task) {
    if (stream.capturing) {
        ++counts["operations captured"];
        return;
    }
    // The legacy stream begins nothing before all blocking ones have done what they have, nor do they before it has.
    forEachStream([&](StreamObject& other) {
        const bool is_before =
            other.context == stream.context && ((stream.legacy && other.blocking) || (stream.blocking && other.legacy));
        if (!is_before || other.capturing || (other.tasks.empty() && !other.busy)) return;
        auto done = std::make_shared<bool>(false);
        other.tasks.emplace_back([done](std::unique_lock<std::mutex>&) { *done = true; });
        stream.tasks.emplace_back([this, done, context = stream.context](std::unique_lock<std::mutex>& running) {
            changed.wait(running, [&] { return *done || context->lost; });
        });
    });
    stream.tasks.push_back(std::move(task));
    changed.notify_all();
}

void State::spoil(StreamObject& stream) {
    if (stream.capturing) stream.spoilt = true;
}

StreamObject* State::capturedBesideLegacy(const ContextObject& context) const {
    StreamObject* captured = nullptr;
    forEachStream([&](StreamObject& stream) {
        if (stream.context == &context && stream.blocking && stream.capturing) captured = &stream;
    });
    return captured;
}

void State::sleepFor(std::uint64_t bytes, std::unique_lock<std::mutex>& lock) {
    std::uint64_t ns = settings.latency_us * 1000ull + settings.ns_per_kib * (bytes / 1024);
    if (settings.jitter_us != 0) ns += random() % (settings.jitter_us * 1000ull);
    if (ns == 0) return;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    lock.lock();
}

void State::drain(int device, std::unique_lock<std::mutex>& lock) {
    changed.wait(lock, [&] {
        bool is_idle = true;
        forEachStream([&](const StreamObject& stream) {
            if (stream.context->device == device && !stream.context->lost && (!stream.tasks.empty() || stream.busy))
                is_idle = false;
        });
        return is_idle;
    });
}

}  // namespace troupe::fake_cuda

namespace troupe::cuda::api {

using fake_cuda::State;

namespace {

/// Of a stream that is alive, and of a default stream in the current context. Stream 0 is refused: which default stream
/// that is depends on how who names it was compiled.
Result findStream(State& state, ContextObject* context, StreamHandle& stream) {
    StreamObject* const found = state.streamOf(stream, context);
    if (found == nullptr) {
        state.violate(stream == nullptr ? "stream 0 was used" : "a stream that is not there was used");
        return Result::InvalidHandle;
    }
    stream = found;
    return Result::Success;
}

/// Of a stream that was found: whether it takes work here, which is in its own context.
Result takesWork(State& state, const ContextObject* context, const StreamObject* stream) {
    if (stream->context != context) {
        state.violate("a stream was used in the context of another device");
        return Result::InvalidContext;
    }
    if (StreamObject* const captured = stream->legacy ? state.capturedBesideLegacy(*context) : nullptr) {
        state.spoil(*captured);
        return Result::StreamCaptureImplicit;
    }
    return Result::Success;
}

/// What nobody may ask of a stream that is captured.
Result refuseCaptured(State& state, StreamObject& stream) {
    if (!stream.capturing) return Result::Success;
    state.spoil(stream);
    return Result::StreamCaptureUnsupported;
}

/// Of an event that is alive. A driver looks into what it is given, whatever that is.
Result eventOf(State& state, const char* call, EventHandle event) {
    if (state.events.count(event) != 0) return Result::Success;
    state.violate(std::string(call) + " of an event that is not there");
    return Result::InvalidHandle;
}

#define TROUPE_ENTER_STREAM(name, stream)                                                                      \
    TROUPE_ENTER_CONTEXT(name)                                                                                 \
    if (const Result refused = findStream(state, context, stream); refused != Result::Success) return refused; \
    if (const Result refused = takesWork(state, context, stream); refused != Result::Success) return refused;

/// The word that a stream waits for, as its GPU reaches it; null: it does not.
std::uint32_t* wordAt(State& state, const ContextObject& context, DevicePtr address) {
    const fake_cuda::Mapping* const mapping = state.find(address);
    const bool is_reached = mapping != nullptr && mapping->kind != fake_cuda::Mapping::Kind::Managed &&
                            (mapping->kind != fake_cuda::Mapping::Kind::Registered || mapping->for_kernels);
    std::vector<fake_cuda::Segment> segments;
    if (!is_reached || !state.resolve(address, sizeof(std::uint32_t), context.device, segments)) return nullptr;
    return reinterpret_cast<std::uint32_t*>(segments.front().data);
}

bool hasCome(std::uint32_t word, std::uint32_t value, unsigned how) {
    switch (how) {
        case kStreamWaitValueGeq: return static_cast<std::int32_t>(word - value) >= 0;
        case kStreamWaitValueAnd: return (word & value) != 0;
        default: return word == value;
    }
}

/// Who stores the word is no part of the driver, and tells nobody: it is looked at so often.
constexpr std::chrono::microseconds kWordLooks{50};

}  // namespace

extern "C" {

Result cuStreamCreate(StreamHandle* stream, unsigned flags) {
    TROUPE_ENTER_CONTEXT("cuStreamCreate")
    if (flags > kStreamNonBlocking) return Result::InvalidValue;
    auto made = State::makeStream(context);
    made->blocking = flags != kStreamNonBlocking;
    *stream = made.get();
    state.streams[made.get()] = std::move(made);
    return Result::Success;
}

/// What it was given is done all the same.
Result cuStreamDestroy_v2(StreamHandle stream) {
    TROUPE_ENTER("cuStreamDestroy")
    const auto found = state.streams.find(stream);
    if (found == state.streams.end()) return Result::InvalidHandle;
    if (!stream->tasks.empty() || stream->busy) ++state.counts["streams destroyed with work"];
    stream->ending = true;
    state.streams.erase(found);
    state.changed.notify_all();
    return Result::Success;
}

Result cuStreamQuery(StreamHandle stream) {
    TROUPE_ENTER_STREAM("cuStreamQuery", stream)
    if (const Result refused = refuseCaptured(state, *stream); refused != Result::Success) return refused;
    return stream->tasks.empty() && !stream->busy ? Result::Success : Result::NotReady;
}

Result cuStreamSynchronize(StreamHandle stream) {
    TROUPE_ENTER_STREAM("cuStreamSynchronize", stream)
    if (const Result refused = refuseCaptured(state, *stream); refused != Result::Success) return refused;
    const auto kept = stream->shared_from_this();
    state.changed.wait(lock, [&] { return context->lost || (kept->tasks.empty() && !kept->busy); });
    return context->lost ? *context->lost : Result::Success;
}

Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned flags) {
    TROUPE_ENTER_STREAM("cuStreamWaitEvent", stream)
    if (const Result refused = eventOf(state, "cuStreamWaitEvent", event); refused != Result::Success) return refused;
    if (flags != 0) return Result::InvalidValue;
    if (event->was_captured) {
        if (!stream->capturing) state.violate("a stream was drawn into a graph by an event that is part of it");
        return Result::Success;
    }
    // As it was recorded last; what is recorded later does not matter.
    if (!event->recording) return Result::Success;
    state.enqueue(*stream, [&state, context, other = event->context,
                            recording = event->recording](std::unique_lock<std::mutex>& running) {
        state.changed.wait(running, [&] { return *recording || other->lost || context->lost; });
    });
    return Result::Success;
}

Result cuStreamWaitValue32_v2(StreamHandle stream, DevicePtr address, std::uint32_t value, unsigned flags) {
    TROUPE_ENTER_STREAM("cuStreamWaitValue32", stream)
    if (flags > kStreamWaitValueAnd || address % sizeof(std::uint32_t) != 0) return Result::InvalidValue;
    if (wordAt(state, *context, address) == nullptr) return Result::InvalidValue;
    state.enqueue(*stream, [&state, context, address, value, flags](std::unique_lock<std::mutex>& running) {
        while (!context->lost) {
            std::uint32_t* const word = wordAt(state, *context, address);
            if (word == nullptr) {
                state.violate("a stream waited for a word that its GPU does not reach any more");
                return;
            }
            if (hasCome(std::atomic_ref(*word).load(std::memory_order_acquire), value, flags)) return;
            state.changed.wait_for(running, kWordLooks);
        }
    });
    return Result::Success;
}

Result cuStreamIsCapturing(StreamHandle stream, CaptureStatus* status) {
    TROUPE_ENTER_CONTEXT("cuStreamIsCapturing")
    if (const Result refused = findStream(state, context, stream); refused != Result::Success) return refused;
    if (stream->legacy && state.capturedBesideLegacy(*context) != nullptr) return Result::StreamCaptureImplicit;
    *status = stream->spoilt      ? CaptureStatus::Invalidated
              : stream->capturing ? CaptureStatus::Active
                                  : CaptureStatus::None;
    return Result::Success;
}

Result cuStreamGetCtx(StreamHandle stream, ContextHandle* of_stream) {
    TROUPE_ENTER_CONTEXT("cuStreamGetCtx")
    if (const Result refused = findStream(state, context, stream); refused != Result::Success) return refused;
    if (const Result refused = refuseCaptured(state, *stream); refused != Result::Success) return refused;
    *of_stream = stream->context;
    return Result::Success;
}

Result cuLaunchHostFunc(StreamHandle stream, HostFunction function, void* argument) {
    TROUPE_ENTER_STREAM("cuLaunchHostFunc", stream)
    state.enqueue(*stream, [function, argument](std::unique_lock<std::mutex>& running) {
        running.unlock();
        fake_cuda::calling_back = true;
        function(argument);
        fake_cuda::calling_back = false;
        running.lock();
    });
    return Result::Success;
}

Result cuEventCreate(EventHandle* event, unsigned) {
    TROUPE_ENTER_CONTEXT("cuEventCreate")
    auto made = std::make_shared<EventObject>();
    made->context = context;
    *event = made.get();
    state.events[made.get()] = std::move(made);
    return Result::Success;
}

Result cuEventRecord(EventHandle event, StreamHandle stream) {
    TROUPE_ENTER_CONTEXT("cuEventRecord")
    if (const Result refused = findStream(state, context, stream); refused != Result::Success) return refused;
    if (const Result refused = eventOf(state, "cuEventRecord", event); refused != Result::Success) return refused;
    // A driver looks at that itself.
    if (event->context != stream->context) return Result::InvalidHandle;
    if (const Result refused = takesWork(state, context, stream); refused != Result::Success) return refused;
    event->was_captured = stream->capturing;
    event->captured.reset();
    if (stream->capturing) {
        event->captured = stream->weak_from_this();
        return Result::Success;
    }
    event->recording = std::make_shared<bool>(false);
    state.enqueue(*stream, [recording = event->recording](std::unique_lock<std::mutex>&) { *recording = true; });
    return Result::Success;
}

Result cuEventQuery(EventHandle event) {
    TROUPE_ENTER_CONTEXT("cuEventQuery")
    if (const Result refused = eventOf(state, "cuEventQuery", event); refused != Result::Success) return refused;
    if (event->context->lost) return *event->context->lost;
    if (event->was_captured) {
        if (const auto stream = event->captured.lock()) state.spoil(*stream);
        return Result::CapturedEvent;
    }
    return !event->recording || *event->recording ? Result::Success : Result::NotReady;
}

Result cuEventDestroy_v2(EventHandle event) {
    TROUPE_ENTER("cuEventDestroy")
    return state.events.erase(event) != 0 ? Result::Success : Result::InvalidHandle;
}

Result cuMemcpyAsync(DevicePtr to, DevicePtr from, std::size_t bytes, StreamHandle stream) {
    TROUPE_ENTER_STREAM("cuMemcpyAsync", stream)
    bool pageable = false;
    for (const DevicePtr addr : {to, from}) {
        std::vector<fake_cuda::Segment> segments;
        if (state.isPageable(addr, bytes))
            pageable = true;
        else if (!state.resolve(addr, bytes, context->device, segments))
            return Result::InvalidValue;
    }
    state.enqueue(*stream, [context, to, from, bytes](std::unique_lock<std::mutex>& running) {
        fake_cuda::runCopy(running, *context, to, from, bytes);
    });
    if (!pageable) return Result::Success;
    // The driver stages it, and keeps the caller meanwhile.
    ++state.counts["pageable copies"];
    const auto kept = stream->shared_from_this();
    state.changed.wait(lock, [&] { return context->lost || (kept->tasks.empty() && !kept->busy); });
    return context->lost ? *context->lost : Result::Success;
}

Result cuMemsetD8Async(DevicePtr to, unsigned char value, std::size_t bytes, StreamHandle stream) {
    TROUPE_ENTER_STREAM("cuMemsetD8Async", stream)
    std::vector<fake_cuda::Segment> segments;
    if (!state.resolve(to, bytes, context->device, segments)) return Result::InvalidValue;
    state.enqueue(*stream, [&state, segments, value, bytes](std::unique_lock<std::mutex>& running) {
        state.sleepFor(bytes, running);
        for (const auto& segment : segments) std::memset(segment.data, value, segment.bytes);
    });
    return Result::Success;
}

}  // extern "C"
}  // namespace troupe::cuda::api
