#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/log.h"

namespace troupe {

/// Says in the log that somebody was refused, as a warning, but not more often than every ten seconds: whoever is
/// refused can come again as often as he likes. Those in between are counted, and seen at the level "debug". One owner.
class RefusalLog {
  public:
    void say(const Logger& log, TimePoint now, const std::string& text) {
        if (now < next_) {
            ++unsaid_;
            log->debug("{}", text);
            return;
        }
        log->warn("{}{}", text,
                  unsaid_ == 0 ? "" : " (and " + std::to_string(unsaid_) + " others since the last such word)");
        next_ = now + std::chrono::seconds(10);
        unsaid_ = 0;
    }

  private:
    TimePoint next_{};
    std::uint64_t unsaid_ = 0;
};

}  // namespace troupe
