// What several threads do with the events of an application: those that submit, and the loops on which tasks end.
// Without engines, so that ThreadSanitizer sees it.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/cuda_backend/cuda_fixture.h"
#include "transports/done_events.h"
#include "transports/event_captures.h"

namespace troupe::cuda {
namespace {

using namespace device;
using testing::CudaTest;
using testing::noise;

constexpr int kThreads = 3;
constexpr int kRounds = 60;
constexpr std::chrono::seconds kPatience{60};

/// From the threads that submit to those that end.
template <class T>
class Handed {
  public:
    void give(T value) {
        const std::lock_guard lock(mutex_);
        values_.push_back(std::move(value));
    }
    bool take(T& value) {
        const std::lock_guard lock(mutex_);
        if (values_.empty()) return false;
        value = std::move(values_.back());
        values_.pop_back();
        return true;
    }

  private:
    std::mutex mutex_;
    std::vector<T> values_;
};

class EventOrder : public CudaTest {
  protected:
    std::shared_ptr<Device> open() {
        gpu(0);
        return gpus[0];
    }
    bool comes(const DeviceEvent& event) {
        const auto limit = Clock::now() + kPatience;
        while (!must(gpu(0).isDone(event)) && Clock::now() < limit)
            std::this_thread::sleep_for(std::chrono::microseconds(100));
        return must(gpu(0).isDone(event));
    }
};

TEST_F(EventOrder, CapturesAreMadeByManyThreadsAndGivenBackByOthers) {
    const auto device = open();
    auto captures = std::make_shared<EventCaptures>(device);
    Handed<std::unique_ptr<EventCaptures::Captured>> handed;
    std::atomic<int> captured{0};
    std::atomic<int> submitting{kThreads};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
        threads.emplace_back([&] {
            const DeviceStream stream = std::move(*device->makeStream());
            const DeviceEvent event = std::move(*device->makeEvent());
            for (int round = 0; round < kRounds; ++round) {
                control.delay(stream.get(), 200);
                EXPECT_TRUE(device->record(event, stream));
                auto made = captures->capture(EventRef(event.get()));
                ASSERT_TRUE(made) << made.status().toString();
                if (!*made) continue;
                ++captured;
                EXPECT_TRUE((*made)->begin());
                handed.give(std::move(*made));
            }
            EXPECT_TRUE(device->synchronize(stream));
            --submitting;
        });
    for (int thread = 0; thread < 2; ++thread)
        threads.emplace_back([&, ends_early = thread == 0] {
            std::unique_ptr<EventCaptures::Captured> taken;
            for (;;) {
                const bool last = submitting.load() == 0;
                if (!handed.take(taken)) {
                    if (last) return;
                    std::this_thread::yield();
                    continue;
                }
                for (bool done = ends_early; !done; std::this_thread::yield()) {
                    const auto asked = taken->isDone();
                    ASSERT_TRUE(asked) << asked.status().toString();
                    done = *asked;
                }
                taken.reset();
            }
        });
    for (auto& thread : threads) thread.join();
    EXPECT_GT(captured.load(), 0);
    EXPECT_LE(control.count("cuStreamCreate"), EventCaptures::kMost + kThreads);
}

TEST_F(EventOrder, WorkIsBegunByManyThreadsAndEndedByOthers) {
    const auto device = open();
    const auto events = must(DoneEvents::create(device, -1, nullptr));
    struct Begun {
        std::shared_ptr<DoneEvents::Work> work;
        std::shared_ptr<DeviceEvent> event;
    };
    Handed<Begun> handed;
    std::atomic<int> submitting{kThreads};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
        threads.emplace_back([&] {
            for (int round = 0; round < kRounds; ++round) {
                const auto event = std::make_shared<DeviceEvent>(std::move(*device->makeEvent()));
                auto work = events->record(EventRef(event->get()));
                ASSERT_TRUE(work) << work.status().toString();
                const auto early = device->isDone(*event);
                EXPECT_TRUE(early && !*early) << "it has not ended";
                handed.give({std::move(*work), event});
            }
            --submitting;
        });
    for (int thread = 0; thread < 2; ++thread)
        threads.emplace_back([&] {
            std::vector<std::shared_ptr<DeviceEvent>> ended;
            Begun taken;
            for (;;) {
                const bool last = submitting.load() == 0;
                if (handed.take(taken)) {
                    taken.work.reset();
                    ended.push_back(std::move(taken.event));
                } else if (last) {
                    break;
                } else {
                    std::this_thread::yield();
                }
            }
            for (const auto& event : ended) EXPECT_TRUE(comes(*event));
        });
    for (auto& thread : threads) thread.join();
}

TEST_F(EventOrder, WhatIsWrittenBeforeAnEndIsSeenBehindItsEvent) {
    const auto device = open();
    const auto events = must(DoneEvents::create(device, -1, nullptr));
    const HostMemory source = must(device->allocateHost(4096));
    const DeviceMemory target = must(device->allocate(4096));
    const DeviceStream stream = must(device->makeStream());
    const DeviceEvent event = must(device->makeEvent());
    auto* const bytes = reinterpret_cast<std::uint8_t*>(source.get());
    for (unsigned round = 0; round < 20; ++round) {
        auto work = must(events->record(EventRef(event.get())));
        must(device->wait(stream, event));
        must(device->copy(stream, target.get(), source.get(), 4096));
        const auto written = noise(4096, round);
        std::copy(written.begin(), written.end(), bytes);
        work.reset();
        must(device->synchronize(stream));
        EXPECT_TRUE(control.read(target.get(), 4096) == written);
    }
}

TEST_F(EventOrder, AWordThatComesAroundIsCountedInACircle) {
    const auto device = open();
    const HostMemory memory = must(device->allocateHost(4096));
    auto* const word = new (reinterpret_cast<void*>(memory.get())) std::atomic<std::uint32_t>(UINT32_MAX - 1);
    const auto* const plain = reinterpret_cast<const std::uint32_t*>(word);
    const DeviceStream stream = must(device->makeStream());
    const DeviceEvent event = must(device->makeEvent());
    must(device->waitForValue(stream, plain, UINT32_MAX - 1));
    must(device->synchronize(stream));
    // Two further on is 0.
    must(device->waitForValue(stream, plain, 0));
    must(device->record(event, stream));
    word->store(UINT32_MAX, std::memory_order_release);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(must(device->isDone(event)));
    word->store(0, std::memory_order_release);
    EXPECT_TRUE(comes(event));
}

}  // namespace
}  // namespace troupe::cuda
