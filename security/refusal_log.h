#pragma once

#include <string>

#include "base/log.h"
#include "base/rare_word.h"

namespace troupe {

/// Says in the log that somebody was refused, as a warning, as often as a RareWord: whoever is refused can come again
/// as often as he likes. Those in between are seen at the level "debug". One owner.
class RefusalLog {
  public:
    void say(const Logger& log, TimePoint now, const std::string& text) {
        if (const auto more = word_.turn(now))
            log->warn("{}{}", text, *more);
        else
            log->debug("{}", text);
    }

  private:
    RareWord word_;
};

}  // namespace troupe
