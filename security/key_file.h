#pragma once

#include <string>

#include "base/status.h"

namespace troupe {

/// The first line of a file with a secret. InvalidArgument, naming the file and what to do, when it cannot be read, is
/// no regular file, belongs to somebody else, may be read by others than its owner (of root's files: than its group),
/// may be written by others, or has an empty or too long (`max_bytes`) first line.
Result<std::string> readKeyFile(const std::string& path, std::size_t max_bytes);

}  // namespace troupe
