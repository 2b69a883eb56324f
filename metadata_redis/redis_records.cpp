#include "metadata_redis/redis_records.h"

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "metadata_redis/redis_errors.h"

namespace troupe {

namespace {

// Names have at most kMaxSegmentName bytes, each up to six in JSON.
constexpr std::size_t kMaxEvent = 6 * kMaxSegmentName + 512;

using Json = nlohmann::json;

}  // namespace

std::string RedisRecords::pattern() const {
    std::string result;
    for (const char c : prefix_) {
        if (c == '*' || c == '?' || c == '[' || c == ']' || c == '\\' || c == '^') result.push_back('\\');
        result.push_back(c);
    }
    return result + "*";
}

std::string RedisRecords::encodeEvent(const SegmentEvent& event) {
    const Json json = {{"kind", event.kind == SegmentEvent::Kind::Published ? "published" : "withdrawn"},
                       {"name", event.name},
                       {"incarnation", event.incarnation.toString()},
                       {"version", event.version}};
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<SegmentEvent> RedisRecords::decodeEvent(std::string_view text) {
    const Status bad(Code::ProtocolError, "a message that is no change of a segment");
    if (text.size() > kMaxEvent) return bad;
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) return bad;
    const auto textOf = [&](const char* key) {
        const auto found = json.find(key);
        return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
    };
    SegmentEvent event;
    const std::string kind = textOf("kind");
    if (kind != "published" && kind != "withdrawn") return bad;
    event.kind = kind == "published" ? SegmentEvent::Kind::Published : SegmentEvent::Kind::Withdrawn;
    event.name = textOf("name");
    const auto incarnation = Incarnation::parse(textOf("incarnation"));
    const auto version = json.find("version");
    if (event.name.empty() || event.name.size() > kMaxSegmentName || !incarnation || version == json.end() ||
        !version->is_number_unsigned())
        return bad;
    event.incarnation = *incarnation;
    event.version = version->get<std::uint64_t>();
    return event;
}

Status checkSegmentName(const std::string& name) {
    try {
        static_cast<void>(Json(name).dump());
        return Status::ok();
    } catch (const Json::exception&) {
        return {Code::InvalidArgument, "a segment's name in Redis must be UTF-8; this one is not"};
    }
}

const std::string_view kPublishScript = R"lua(
local head = redis.call('GETRANGE', KEYS[1], 0, 127)
if head ~= '' then
    local holder, version = string.match(head, '^{"troupe":{"incarnation":"(%x+)","version":(%d+)')
    if holder ~= ARGV[3] then return redis.call('GETRANGE', KEYS[1], 0, 1023) end
    if tonumber(version) > tonumber(ARGV[4]) and version ~= ARGV[7] then return {version} end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('PUBLISH', ARGV[5], ARGV[6])
return 1
)lua";

const std::string_view kRenewScript = R"lua(
local head = redis.call('GETRANGE', KEYS[1], 0, 127)
local holder, version = string.match(head, '^{"troupe":{"incarnation":"(%x+)","version":(%d+)')
if holder ~= ARGV[2] or version ~= ARGV[3] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
)lua";

const std::string_view kLookScript = R"lua(
local lost = {}
for i, key in ipairs(KEYS) do
    local head = redis.pcall('GETRANGE', key, 0, 127)
    if type(head) == 'table' then head = 'no record' end
    local holder, version = string.match(head, '^{"troupe":{"incarnation":"(%x+)","version":(%d+)')
    if holder ~= ARGV[2 * i - 1] or version ~= ARGV[2 * i] then lost[#lost + 1] = head == '' and i or -i end
end
return lost
)lua";

const std::string_view kRemoveScript = R"lua(
local head = redis.call('GETRANGE', KEYS[1], 0, 127)
local holder = string.match(head, '^{"troupe":{"incarnation":"(%x+)"')
if holder ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
)lua";

const std::string_view kReadScript = R"lua(
local beyond = redis.pcall('GETRANGE', KEYS[1], ARGV[1], ARGV[1])
if type(beyond) == 'table' then
    if string.find(beyond.err, 'WRONGTYPE') then return {1} end
    return beyond
end
if beyond ~= '' then return {2} end
local text = redis.call('GET', KEYS[1])
if text then return {0, text} end
local refused = redis.pcall('DEL', KEYS[1])
if type(refused) == 'table' and string.find(refused.err, 'READONLY') then return refused end
return false
)lua";

Result<std::optional<std::string>> decodeRead(const RedisReply& reply, std::size_t max_bytes) {
    if (reply.type == RedisReply::Type::Nil) return std::optional<std::string>();
    const auto& parts = reply.elements;
    if (reply.type == RedisReply::Type::Array && !parts.empty() && parts[0].type == RedisReply::Type::Integer) {
        if (parts[0].integer == 0 && parts.size() == 2 && parts[1].isString()) return std::optional(parts[1].text);
        if (parts[0].integer == 1) return redisErrorStatus("WRONGTYPE");
        if (parts[0].integer == 2)
            return Status(Code::CapacityExceeded,
                          "it has more than " + std::to_string(max_bytes) + " bytes (max_descriptor_bytes)");
    }
    return wrongReply(reply, "a record");
}

std::string describeHolder(std::string_view head) {
    const auto record = decodeRecordHead(head);
    if (!record) return "a record that no Troupe engine wrote (remove it by hand if nobody uses it)";
    std::string text = "incarnation " + record->incarnation.toString();
    constexpr std::string_view kControl = R"("control":")";
    if (const std::size_t at = head.find(kControl); at != std::string_view::npos) {
        const std::string_view rest = head.substr(at + kControl.size());
        text += ", control " + printable(std::string(rest.substr(0, std::min<std::size_t>(rest.find('"'), 128))));
    }
    return text;
}

}  // namespace troupe
