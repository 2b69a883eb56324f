#include "apps/support/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "apps/support/say.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

constexpr std::chrono::milliseconds kSilence{1000};  ///< A shorter command says nothing.
constexpr std::chrono::milliseconds kTerminalInterval{200};
constexpr std::chrono::milliseconds kFirstLineInterval{2000};
constexpr std::chrono::milliseconds kLastLineInterval{30000};  ///< So that a log of hours stays readable.

}  // namespace

Progress::Progress(std::FILE* to, std::string label)
    : to_(to),
      label_(std::move(label)),
      terminal_(to != nullptr && ::isatty(::fileno(to)) == 1),
      started_(Clock::now()),
      next_(started_ + kSilence),
      interval_(terminal_ ? kTerminalInterval : kFirstLineInterval) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
    if (shown_ == 0) return;
    say(to_, "\r{:{}}\r", "", shown_);
    shown_ = 0;
}

bool Progress::due() const { return to_ != nullptr && Clock::now() >= next_; }

void Progress::update(double fraction, std::string_view detail) {
    if (!due()) return;
    const auto now = Clock::now();
    std::string line = label_;
    if (fraction >= 0) line += fmt::format(" {:3.0f} %", std::min(fraction, 1.0) * 100);
    line += fmt::format(" {:.0f} s", toSeconds(now - started_));
    if (!detail.empty()) line.append("  ").append(detail);
    if (terminal_) {
        say(to_, "\r{:{}}", line, shown_);
        shown_ = line.size();
    } else {
        say(to_, "{}\n", line);
        interval_ = std::min<Duration>(interval_ * 3 / 2, kLastLineInterval);
    }
    next_ = now + interval_;
}

}  // namespace troupe::apps
