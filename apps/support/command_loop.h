#pragma once

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "actors/loop.h"
#include "base/status.h"

namespace caf {
class actor_system;
class actor_system_config;
}  // namespace caf

namespace troupe::apps {

/// A loop with a thread of its own, for what a command does without an engine or beside one.
class CommandLoop {
  public:
    /// `thread`: its name. Why it cannot be started.
    static Result<std::unique_ptr<CommandLoop>> start(const std::string& thread);
    /// Stops it. What lives on the loop is gone by then.
    ~CommandLoop();
    CommandLoop(const CommandLoop&) = delete;
    CommandLoop& operator=(const CommandLoop&) = delete;

    Loop& loop() { return *loop_; }

    /// Runs `begin(answer)` on the loop and waits until `answer` is called, once. Not on the loop's thread.
    template <class T, class Begin>
    T ask(Begin begin) {
        const auto promise = std::make_shared<std::promise<T>>();
        auto answer = promise->get_future();
        loop_->post([begin = std::move(begin), promise] {
            begin([promise](T value) { promise->set_value(std::move(value)); });
        });
        return answer.get();
    }
    /// Runs `work()` on the loop and waits for its end.
    template <class Work>
    void run(Work work) {
        ask<bool>([work = std::move(work)](auto answer) {
            work();
            answer(true);
        });
    }

  private:
    CommandLoop();

    // Each ends before those above it.
    std::unique_ptr<caf::actor_system_config> system_config_;
    std::unique_ptr<caf::actor_system> system_;
    std::unique_ptr<Loop> loop_;
};

}  // namespace troupe::apps
