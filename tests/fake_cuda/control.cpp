// What tests ask of the fake beside the driver's API.

#include <algorithm>
#include <cstring>
#include <sstream>
#include <string>
#include <utility>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/state.h"

namespace {

using troupe::cuda::api::ContextObject;
using troupe::cuda::api::Result;
using troupe::cuda::api::StreamHandle;
using troupe::fake_cuda::Segment;
using troupe::fake_cuda::State;

void put(const std::string& text, char* buffer, std::size_t bytes) {
    if (bytes == 0) return;
    const std::size_t length = std::min(text.size(), bytes - 1);
    std::memcpy(buffer, text.data(), length);
    buffer[length] = 0;
}

bool move(std::uint64_t device, std::size_t bytes, void* to, const void* from) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    std::vector<Segment> segments;
    if (!state.resolve(device, bytes, -1, segments)) return false;
    std::size_t done = 0;
    for (const Segment& segment : segments) {
        if (to != nullptr)
            std::memcpy(static_cast<char*>(to) + done, segment.data, segment.bytes);
        else
            std::memcpy(segment.data, static_cast<const char*>(from) + done, segment.bytes);
        done += segment.bytes;
    }
    return true;
}

}  // namespace

extern "C" {

void fakeCudaReset() {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.configure();
}

void fakeCudaFail(const char* call, unsigned result, int count, int skip) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.faults[call] = {static_cast<Result>(result), count, skip};
}

void fakeCudaLose(int device, unsigned result, int operations) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    ContextObject& context = *state.primaries.at(static_cast<std::size_t>(device));
    context.lose_with = static_cast<Result>(result);
    context.lose_after = operations;
    if (operations == 0) state.lose(context, context.lose_with);
}

void fakeCudaLatency(unsigned us, unsigned ns_per_kib, unsigned jitter_us) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.settings.latency_us = us;
    state.settings.ns_per_kib = ns_per_kib;
    state.settings.jitter_us = jitter_us;
}

void fakeCudaHold(int held) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.held = held != 0;
    state.changed.notify_all();
}

void fakeCudaHoldCall(const char* call, int held) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    if (held != 0)
        state.held_calls.insert(call);
    else
        state.held_calls.erase(call);
    state.changed.notify_all();
}

void fakeCudaCaptureGraph(int capturing) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.capturing = capturing != 0;
}

int fakeCudaCaptureStream(void* stream, int capturing) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    auto* const handle = static_cast<StreamHandle>(stream);
    if (!state.isAlive(handle)) return 0;
    handle->capturing = capturing != 0;
    return std::exchange(handle->spoilt, false) ? 0 : 1;
}

void fakeCudaReuseAddresses(int reuse) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.settings.reuse = reuse != 0;
}

void fakeCudaOwnAddresses(int own) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.settings.own_addresses = own != 0;
}

unsigned fakeCudaDelay(void* stream, unsigned us) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    auto* const handle = static_cast<StreamHandle>(stream);
    if (!state.isAlive(handle)) return static_cast<unsigned>(Result::InvalidHandle);
    state.enqueue(*handle, [us](std::unique_lock<std::mutex>& running) {
        running.unlock();
        std::this_thread::sleep_for(std::chrono::microseconds(us));
        running.lock();
    });
    return 0;
}

int fakeCudaRead(unsigned long long from, void* to, std::size_t bytes) { return move(from, bytes, to, nullptr); }

int fakeCudaWrite(unsigned long long to, const void* from, std::size_t bytes) { return move(to, bytes, nullptr, from); }

unsigned fakeCudaCount(const char* what) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    if (std::strcmp(what, "contexts") == 0)
        return static_cast<unsigned>(std::count_if(state.primaries.begin(), state.primaries.end(),
                                                   [](const auto& context) { return context->retained > 0; }));
    const auto found = state.counts.find(what);
    return found != state.counts.end() ? found->second : 0;
}

unsigned fakeCudaViolations(char* buffer, std::size_t bytes) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    std::string text;
    for (const std::string& violation : state.violations) text += violation + "\n";
    put(text, buffer, bytes);
    return static_cast<unsigned>(state.violations.size());
}

void fakeCudaForgetViolations() {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    state.violations.clear();
}

unsigned fakeCudaLeftovers(char* buffer, std::size_t bytes) {
    State& state = State::get();
    const std::lock_guard lock(state.mutex);
    const auto contexts = std::count_if(state.primaries.begin(), state.primaries.end(),
                                        [](const auto& context) { return context->retained > 0; });
    std::string text;
    std::size_t all = 0;
    for (const auto& [count, what] :
         {std::pair<std::size_t, const char*>{static_cast<std::size_t>(contexts), "contexts"},
          {state.streams.size(), "streams"},
          {state.events.size(), "events"},
          {state.modules.size(), "modules"},
          {state.mappings.size(), "memory"},
          {state.physical.size(), "handles"}}) {
        all += count;
        if (count != 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
    }
    put(text, buffer, bytes);
    return static_cast<unsigned>(all);
}

}  // extern "C"
