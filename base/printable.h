#pragma once

#include <string>

namespace troupe {

/// Words that somebody else chose, fit for the log, an error and a terminal: each byte of a control character (C0, DEL,
/// C1) and each that is no UTF-8 becomes '?'. As long as it was; what is printable stays as it is.
std::string printable(std::string text);

}  // namespace troupe
