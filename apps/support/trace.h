#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace troupe::apps {

/// Tokens of one block of a serving trace.
inline constexpr std::uint64_t kTokensPerBlock = 512;

/// One request of a serving trace. Equal hash ids mean equal blocks of input (and equal input before them).
struct TraceRequest {
    std::uint64_t timestamp_ms = 0;  ///< Since the trace's begin; never falls from line to line.
    std::uint64_t input_tokens = 0;
    std::uint64_t output_tokens = 0;
    std::vector<std::uint64_t> hash_ids;  ///< One per block of kTokensPerBlock input tokens.
};

/// One line of the format: a JSON object with timestamp, input_length, output_length and hash_ids. InvalidArgument
/// says which field is wrong and how. Other fields are ignored.
Result<TraceRequest> parseTraceLine(std::string_view line);

/// At most `limit` requests (0: all). InvalidArgument names the line: bytes that are not the format, time that runs
/// backwards, a line or a trace past the bounds below. Blank lines are skipped.
Result<std::vector<TraceRequest>> readTrace(std::istream& in, std::size_t limit = 0);
/// InvalidArgument when `path` is a directory or cannot be opened; what is in it is not looked at.
Status checkTraceFile(const std::string& path);
/// The errors of both, and InvalidArgument when reading fails; all name the path.
Result<std::vector<TraceRequest>> readTraceFile(const std::string& path, std::size_t limit = 0);

/// The line of a request, without newline.
std::string formatTraceLine(const TraceRequest& request);

inline constexpr std::size_t kMaxTraceLine = 16u << 20;   ///< Bytes; a million blocks are 512 M tokens.
inline constexpr std::size_t kMaxTraceBlocks = 1u << 20;  ///< Hash ids of one request.
inline constexpr std::size_t kMaxTraceRequests = 10'000'000;
inline constexpr std::uint64_t kMaxTraceNumber = 1ULL << 53;  ///< What JSON numbers carry exactly everywhere.

}  // namespace troupe::apps
