#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace troupe {

/// Rations one kind of word in the log, of what anybody can make happen as often as he likes: it is said when it
/// begins, and while it goes on every 10 s, with how many were not said since. One thread.
class RareWord {
  public:
    /// What to say behind the word, "" or how many went unsaid; nothing when it is not to be said now.
    std::optional<std::string> turn(TimePoint now) {
        if (now < again_) {
            ++unsaid_;
            return std::nullopt;
        }
        std::string more = unsaid_ == 0 ? "" : "; " + std::to_string(unsaid_) + " others since the last such word";
        again_ = now + kEvery;
        unsaid_ = 0;
        return more;
    }

  private:
    static constexpr std::chrono::seconds kEvery{10};

    TimePoint again_{};  ///< Not before.
    std::uint64_t unsaid_ = 0;
};

}  // namespace troupe
