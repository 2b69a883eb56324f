#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace troupe {

/// What is in a file that a setting names: a page of text, not data. InvalidArgument when it is missing, may not be
/// read, is a directory, or has more than `max_bytes`; the message says which, and the caller which file it was. A
/// pipe is read to its end, and refused when nothing comes out of it for 5 s.
Result<std::string> readSmallFile(const std::string& path, std::size_t max_bytes);

/// The first line of a file with nothing but one secret or name in it, of at most `max_bytes`, without its end.
/// InvalidArgument, as above, also when that line is empty.
Result<std::string> readFirstLine(const std::string& path, std::size_t max_bytes);

}  // namespace troupe
