#include "control/field_reader.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace troupe {

/// Fills the reader's members from the parser's events. A method that returns false ends the parse.
class FieldReader::Handler : public nlohmann::json_sax<nlohmann::json> {
  public:
    explicit Handler(FieldReader& reader) : reader_(reader) {}

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_unsigned(std::uint64_t value) override { return add(value); }
    bool number_integer(std::int64_t) override { return add(Nested{}); }
    bool number_float(double, const std::string&) override { return add(Nested{}); }
    bool binary(binary_t&) override { return add(Nested{}); }
    bool string(std::string& value) override { return depth_ == 1 ? add(std::move(value)) : add(Nested{}); }
    bool start_object(std::size_t) override { return enter(true); }
    bool start_array(std::size_t) override { return enter(false); }
    bool end_object() override { return leave(); }
    bool end_array() override { return leave(); }

    bool key(std::string& name) override {
        if (depth_ != 1) return true;
        if (reader_.members_.size() == kMaxMembers) return refuse("more than 64 fields");
        for (const auto& member : reader_.members_)
            if (member.name == name) return refuse("field '" + printable(name.substr(0, 64)) + "' stands twice");
        reader_.members_.push_back({std::move(name), Nested{}});
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
        return refuse("not JSON at byte " + std::to_string(position));
    }

  private:
    bool refuse(const std::string& why) {
        reader_.status_ = Status(Code::ProtocolError, reader_.what_ + ": " + why);
        return false;
    }
    bool add(Value value) {
        if (depth_ == 0) return refuse("not a JSON object");
        if (depth_ == 1) reader_.members_.back().value = std::move(value);
        return true;
    }
    bool enter(bool object) {
        if (depth_ == 0 && !object) return refuse("not a JSON object");
        if (++depth_ > kMaxDepth) return refuse("nested more than 16 levels deep");
        return true;
    }
    bool leave() {
        --depth_;
        return true;
    }

    FieldReader& reader_;
    std::size_t depth_ = 0;
};

FieldReader::FieldReader(std::string_view text, std::string what) : what_(std::move(what)) {
    // For the parser it is the end of the text, whatever follows.
    if (const auto nul = text.find('\0'); nul != std::string_view::npos) {
        status_ = Status(Code::ProtocolError, what_ + ": not JSON at byte " + std::to_string(nul));
        return;
    }
    Handler handler(*this);
    nlohmann::json::sax_parse(text, &handler);
}

void FieldReader::fail(std::string_view name, const std::string& why) {
    if (status_) status_ = Status(Code::ProtocolError, what_ + ": field '" + std::string(name) + "' " + why);
}

const FieldReader::Value* FieldReader::find(std::string_view name) {
    if (!status_) return nullptr;
    const auto found = std::find_if(members_.begin(), members_.end(), [&](const auto& m) { return m.name == name; });
    if (found != members_.end()) return &found->value;
    fail(name, "is missing");
    return nullptr;
}

std::uint64_t FieldReader::takeNumber(std::string_view name, std::uint64_t max) {
    const auto* value = find(name);
    if (!value) return 0;
    const auto* number = std::get_if<std::uint64_t>(value);
    if (number && *number <= max) return *number;
    fail(name, "is not an integer from 0 to " + std::to_string(max));
    return 0;
}

std::string FieldReader::takeString(std::string_view name, std::size_t max_bytes) {
    const auto* value = find(name);
    if (!value) return {};
    const auto* text = std::get_if<std::string>(value);
    if (text && text->size() <= max_bytes) return *text;
    fail(name,
         text ? "has " + std::to_string(text->size()) + " bytes, at most " + std::to_string(max_bytes) + " are accepted"
              : "is not a string");
    return {};
}

std::string FieldReader::takeBytes(std::string_view name, std::size_t max_bytes) {
    const std::string text = takeString(name, 2 * max_bytes);
    const auto digit = [](char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; };
    std::string bytes;
    bytes.reserve(text.size() / 2);
    for (std::size_t i = 0; i < text.size(); i += 2) {
        const int high = digit(text[i]);
        const int low = i + 1 < text.size() ? digit(text[i + 1]) : -1;
        if (high < 0 || low < 0) {
            fail(name, "is not made of hexadecimal bytes");
            return {};
        }
        bytes += static_cast<char>(high * 16 + low);
    }
    return bytes;
}

Incarnation FieldReader::takeIncarnation(std::string_view name) {
    const auto* value = find(name);
    if (!value) return {};
    if (const auto* text = std::get_if<std::string>(value)) {
        auto parsed = Incarnation::parse(*text);
        if (parsed && !parsed->isNull()) return *parsed;
    }
    fail(name, "is not an incarnation of 32 hexadecimal digits");
    return {};
}

Incarnation FieldReader::takeIncarnationOrNull(std::string_view name) {
    const auto* value = find(name);
    if (!value || std::holds_alternative<std::nullptr_t>(*value)) return {};
    return takeIncarnation(name);
}

}  // namespace troupe
