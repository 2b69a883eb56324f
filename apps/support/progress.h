#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace troupe::apps {

/// Says how far a command is once it runs longer than a second: one line rewritten in place on a terminal, else plain
/// lines, ever rarer. One thread.
class Progress {
  public:
    /// `to` is not owned; null says nothing.
    Progress(std::FILE* to, std::string label);
    /// Wipes the line on a terminal.
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    /// Call as often as you like. `fraction` in 0..1, negative when the end is unknown.
    void update(double fraction, std::string_view detail);
    /// Wipes the line on a terminal, before something else is printed.
    void clear();
    /// True when the next update would write, for callers whose detail costs something to make.
    bool due() const;

  private:
    std::FILE* to_;
    std::string label_;
    bool terminal_;
    std::size_t shown_ = 0;  ///< Characters on the terminal's line now.
    TimePoint started_;
    TimePoint next_;
    Duration interval_;
};

}  // namespace troupe::apps
