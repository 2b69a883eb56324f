#include "apps/support/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

namespace troupe::apps {

namespace {

using Json = nlohmann::json;

/// A whole number in 0..kMaxTraceNumber, or what is wrong with it.
Result<std::uint64_t> wholeNumber(const Json& value, const std::string& what) {
    if (!value.is_number_unsigned())
        return {Code::InvalidArgument, fmt::format("{} must be a whole number that is not negative, it is {}", what,
                                                   value.is_number() ? value.dump() : std::string(value.type_name()))};
    const auto number = value.get<std::uint64_t>();
    if (number > kMaxTraceNumber) return {Code::InvalidArgument, fmt::format("{} is {}, more than 2^53", what, number)};
    return number;
}

Result<std::uint64_t> numberField(const Json& object, const char* name) {
    const auto field = object.find(name);
    if (field == object.end()) return {Code::InvalidArgument, fmt::format("the field '{}' is missing", name)};
    return wholeNumber(*field, fmt::format("'{}'", name));
}

Result<std::vector<std::uint64_t>> hashIds(const Json& object) {
    const auto field = object.find("hash_ids");
    if (field == object.end()) return {Code::InvalidArgument, "the field 'hash_ids' is missing"};
    if (!field->is_array())
        return {Code::InvalidArgument, fmt::format("'hash_ids' must be a list, it is {}", field->type_name())};
    if (field->size() > kMaxTraceBlocks)
        return {Code::InvalidArgument,
                fmt::format("'hash_ids' has {} entries, the most is {}", field->size(), kMaxTraceBlocks)};
    std::vector<std::uint64_t> ids;
    ids.reserve(field->size());
    for (const auto& entry : *field) {
        const auto id = wholeNumber(entry, fmt::format("'hash_ids[{}]'", ids.size()));
        if (!id) return id.status();
        ids.push_back(*id);
    }
    return ids;
}

enum class LineKind { Line, End, TooLong };

/// getline with a bound, so that a file without newlines costs bounded memory.
LineKind readLine(std::istream& in, std::string& line) {
    line.clear();
    auto& buffer = *in.rdbuf();
    constexpr auto kEof = std::char_traits<char>::eof();
    for (int c = buffer.sbumpc(); c != kEof; c = buffer.sbumpc()) {
        if (c == '\n') return LineKind::Line;
        if (line.size() == kMaxTraceLine) return LineKind::TooLong;
        line.push_back(std::char_traits<char>::to_char_type(c));
    }
    return line.empty() ? LineKind::End : LineKind::Line;
}

Status atLine(std::size_t number, const std::string& message) {
    return {Code::InvalidArgument, fmt::format("line {}: {}", number, message)};
}

}  // namespace

Result<TraceRequest> parseTraceLine(std::string_view line) {
    const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (object.is_discarded()) return {Code::InvalidArgument, "this is not JSON"};
    if (!object.is_object())
        return {Code::InvalidArgument, fmt::format("expected a JSON object, found {}", object.type_name())};
    const auto timestamp = numberField(object, "timestamp");
    if (!timestamp) return timestamp.status();
    const auto input = numberField(object, "input_length");
    if (!input) return input.status();
    const auto output = numberField(object, "output_length");
    if (!output) return output.status();
    auto ids = hashIds(object);
    if (!ids) return ids.status();
    return TraceRequest{*timestamp, *input, *output, std::move(ids).value()};
}

Result<std::vector<TraceRequest>> readTrace(std::istream& in, std::size_t limit) {
    std::vector<TraceRequest> requests;
    std::string line;
    for (std::size_t number = 1; limit == 0 || requests.size() < limit; ++number) {
        const LineKind kind = readLine(in, line);
        if (kind == LineKind::End) break;
        if (kind == LineKind::TooLong) return atLine(number, fmt::format("longer than {} bytes", kMaxTraceLine));
        if (std::all_of(line.begin(), line.end(), [](char c) { return c == ' ' || c == '\t' || c == '\r'; })) continue;
        auto request = parseTraceLine(line);
        if (!request) return atLine(number, request.status().message());
        if (!requests.empty() && request->timestamp_ms < requests.back().timestamp_ms)
            return atLine(number, fmt::format("'timestamp' {} is before that of the request before it, {}",
                                              request->timestamp_ms, requests.back().timestamp_ms));
        if (requests.size() == kMaxTraceRequests)
            return atLine(number, fmt::format("more than {} requests; use --requests", kMaxTraceRequests));
        requests.push_back(std::move(request).value());
    }
    if (in.bad()) return {Code::Internal, "reading failed"};
    if (requests.empty()) return {Code::InvalidArgument, "there is no request in it"};
    return requests;
}

Status checkTraceFile(const std::string& path) {
    // A stream over a directory opens, and its buffer throws at the first read.
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored))
        return {Code::InvalidArgument, fmt::format("trace '{}' is a directory; give a file", path)};
    errno = 0;
    const std::ifstream file(path, std::ios::binary);
    const int error = errno;
    if (!file) return {Code::InvalidArgument, fmt::format("cannot open trace '{}': {}", path, std::strerror(error))};
    return Status::ok();
}

Result<std::vector<TraceRequest>> readTraceFile(const std::string& path, std::size_t limit) {
    if (auto status = checkTraceFile(path); !status) return status;
    std::ifstream file(path, std::ios::binary);
    // The buffer of a file stream throws what the system refuses in mid-file, whatever the stream's mask.
    try {
        auto requests = readTrace(file, limit);
        if (!requests) return requests.status().withContext("trace '" + path + "'");
        return requests;
    } catch (const std::ios_base::failure& error) {
        return {Code::InvalidArgument, fmt::format("cannot read trace '{}': {}", path, error.what())};
    }
}

std::string formatTraceLine(const TraceRequest& request) {
    std::string line = fmt::format(R"({{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": [)",
                                   request.timestamp_ms, request.input_tokens, request.output_tokens);
    for (std::size_t i = 0; i < request.hash_ids.size(); ++i)
        line += (i == 0 ? "" : ", ") + std::to_string(request.hash_ids[i]);
    return line + "]}";
}

}  // namespace troupe::apps
