#pragma once

#include <string>

#include "base/status.h"

namespace troupe::apps {

/// An engine's message, where it names the calls and arguments of the C++ API, with the options of the program instead.
std::string inWordsOfTheCommandLine(std::string message);

/// A line of an engine's log that says host.peers is off, when it is `--transport tcp` (or rdma) that took it off.
std::string inWordsOfTransportOption(std::string line, const std::string& transport);

/// Ends the message of an error of a segment that was open: its owner was there.
inline constexpr const char* kOwnerEnded = "; the segment was open, so its owner has ended since";

/// Whether an error of a segment that was open says that its owner has ended, or is just about to. `reached`: a
/// transport reached it. No owner that a command talks to takes a transport away before it ends, so "nothing reaches
/// it" says so then.
bool tellsThatOwnerEnded(const Status& status, bool reached);

/// What a user of `troupe` can try after an error; empty where its message says it all.
std::string remedyFor(const Status& status);

}  // namespace troupe::apps
