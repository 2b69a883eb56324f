#include <algorithm>
#include <array>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "metadata/segment_desc.h"

namespace troupe {

namespace {

// Bounds of what a descriptor may hold. Every one is far above what a real one does.
constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxDevices = 1024;
constexpr std::size_t kMaxLocations = 4096;
// In all lists of the priority matrix together: 1,024 devices for each of 64 locations. Without it the bounds of its
// lists alone would let in eight million, for three bytes each.
constexpr std::size_t kMaxMatrixNames = 1u << 16;
constexpr std::size_t kMaxLanes = 1024;
constexpr std::size_t kMaxTransports = 64;
constexpr std::uint64_t kMaxRight = static_cast<std::uint64_t>(RdmaWrites::None) << 1 | 1;
constexpr std::size_t kMaxShortText = 256;  ///< Names of devices, locations and transports, gids, the timestamp.

// How long a text may be for what it says: several times what encodeSegmentDesc needs, so that fields of other engines,
// local keys and an indented layout find room, and megabytes of anything else do not.
constexpr std::size_t kRoom = 1u << 20;     ///< Of everything that is not counted below.
constexpr std::size_t kRoomPerEntry = 512;  ///< A region with its rights, a device, a location.
constexpr std::size_t kRoomPerKey = 64;     ///< Keys come in pairs, as remote and local ones.
constexpr std::size_t kRoomPerName = 64;
constexpr std::size_t kRoomPerByte = 6;  ///< Of a text: "\u0000".

/// What the parser is in the middle of.
enum class In : std::uint8_t {
    Start,  ///< Before the descriptor's own brace.
    Root,
    Devices,
    Device,
    Buffers,
    Buffer,
    Rkeys,
    Matrix,
    Location,       ///< One member of the matrix: two lists.
    LocationNames,  ///< One of the two.
    Troupe,
    Transports,
    LanePorts,
    Rights,   ///< troupe.buffers.
    Right,    ///< One pair of it.
    Unknown,  ///< Within a field that is ignored.
};

enum class Field : std::uint8_t {
    Unknown,
    Name,
    Protocol,
    Devices,
    Buffers,
    PriorityMatrix,
    TcpDataPort,
    Timestamp,
    Troupe,
    DeviceName,
    Lid,
    Gid,
    Location,
    Addr,
    Length,
    Rkey,
    Incarnation,
    BootId,
    Control,
    Transports,
    LanePorts,
    HostSocket,
    RdmaPort,
    RdmaChunkBytes,
    Version,
    Rights,
};

struct FieldEntry {
    In in;
    std::string_view name;
    Field field;
    bool required;
};

constexpr std::array kFields = {
    FieldEntry{In::Buffer, "name", Field::Location, true},
    FieldEntry{In::Buffer, "addr", Field::Addr, true},
    FieldEntry{In::Buffer, "length", Field::Length, true},
    FieldEntry{In::Buffer, "rkey", Field::Rkey, false},
    FieldEntry{In::Root, "name", Field::Name, true},
    FieldEntry{In::Root, "protocol", Field::Protocol, true},
    FieldEntry{In::Root, "devices", Field::Devices, false},
    FieldEntry{In::Root, "buffers", Field::Buffers, true},
    FieldEntry{In::Root, "priority_matrix", Field::PriorityMatrix, false},
    FieldEntry{In::Root, "tcp_data_port", Field::TcpDataPort, false},
    FieldEntry{In::Root, "timestamp", Field::Timestamp, false},
    FieldEntry{In::Root, "troupe", Field::Troupe, false},
    FieldEntry{In::Device, "name", Field::DeviceName, true},
    FieldEntry{In::Device, "lid", Field::Lid, false},
    FieldEntry{In::Device, "gid", Field::Gid, false},
    FieldEntry{In::Troupe, "incarnation", Field::Incarnation, true},
    FieldEntry{In::Troupe, "boot_id", Field::BootId, true},
    FieldEntry{In::Troupe, "control", Field::Control, true},
    FieldEntry{In::Troupe, "transports", Field::Transports, true},
    FieldEntry{In::Troupe, "lane_ports", Field::LanePorts, true},
    FieldEntry{In::Troupe, "host_socket", Field::HostSocket, false},
    FieldEntry{In::Troupe, "rdma_port", Field::RdmaPort, false},
    FieldEntry{In::Troupe, "rdma_chunk_bytes", Field::RdmaChunkBytes, false},
    FieldEntry{In::Troupe, "version", Field::Version, true},
    FieldEntry{In::Troupe, "buffers", Field::Rights, true},
};

constexpr std::uint32_t bitOf(Field field) { return 1u << static_cast<unsigned>(field); }

/// Bytes that a text may have which says this.
std::size_t roomFor(const SegmentDesc& desc) {
    const auto ofText = [](const std::string& text) { return kRoomPerByte * text.size(); };
    std::size_t room = kRoom;
    for (const BufferDesc& buffer : desc.buffers)
        room += kRoomPerEntry + ofText(buffer.location) + kRoomPerKey * buffer.rkeys.size();
    for (const DeviceDesc& device : desc.devices) room += kRoomPerEntry + ofText(device.name) + ofText(device.gid);
    for (const auto& [location, lists] : desc.priority_matrix) {
        room += kRoomPerEntry + ofText(location);
        for (const auto* list : {&lists.first, &lists.second})
            for (const std::string& name : *list) room += kRoomPerName + ofText(name);
    }
    return room;
}

bool isObject(In in) {
    return in == In::Root || in == In::Device || in == In::Buffer || in == In::Troupe || in == In::Matrix;
}

/// Fills a SegmentDesc from the parser's events: one pass, no tree, so that ten thousand buffers cost a few
/// milliseconds and hostile text costs no more memory than the descriptor it would make. A handler that returns
/// false ends the parse with `error_` set.
class Decoder final : public nlohmann::json_sax<nlohmann::json> {
  public:
    /// For a text of so many bytes.
    Result<SegmentDesc> finish(std::size_t bytes) {
        if (!error_) return error_;
        if (const std::size_t room = roomFor(desc_); bytes > room)
            return bad("the text", "has " + std::to_string(bytes) + " bytes, more than " + std::to_string(room) +
                                       " for what it says of " + std::to_string(desc_.buffers.size()) +
                                       " buffers and " + std::to_string(desc_.devices.size()) + " devices");
        if (has_troupe_ && rights_.size() != desc_.buffers.size())
            return bad("troupe.buffers", "has " + std::to_string(rights_.size()) + " entries for " +
                                             std::to_string(desc_.buffers.size()) + " buffers");
        for (std::size_t i = 0; i < desc_.buffers.size(); ++i) {
            auto& buffer = desc_.buffers[i];
            const std::uint64_t chunks =
                desc_.rdma_chunk_bytes == 0 ? 1 : (buffer.length - 1) / desc_.rdma_chunk_bytes + 1;
            // Chunks are bounded first, so that the product does not wrap.
            if (!buffer.rkeys.empty() &&
                (chunks > kMaxBufferKeys || buffer.rkeys.size() != chunks * desc_.devices.size()))
                return bad("buffers[" + std::to_string(i) + "].rkey",
                           "has " + std::to_string(buffer.rkeys.size()) + " entries for " +
                               std::to_string(desc_.devices.size()) + " devices and " + std::to_string(chunks) +
                               " chunks");
            if (!has_troupe_) continue;
            buffer.generation = rights_[i].generation;
            buffer.remote_accessible = (rights_[i].remote & 1) != 0;
            buffer.rdma_writes = static_cast<RdmaWrites>(rights_[i].remote >> 1);
        }
        return std::move(desc_);
    }

    bool null() override { return scalar("null"); }
    bool boolean(bool) override { return scalar("a boolean"); }
    bool number_integer(std::int64_t) override { return scalar("negative"); }
    bool number_float(double, const std::string&) override { return scalar("not an integer"); }
    bool binary(binary_t&) override { return scalar("binary"); }

    bool number_unsigned(std::uint64_t value) override {
        switch (in_) {
            case In::Rkeys: return pushNumber(desc_.buffers.back().rkeys, value, 0, kMaxBufferKeys);
            case In::LanePorts: return pushNumber(desc_.lane_ports, value, 1, kMaxLanes);
            case In::Right: return addRight(value);
            default: break;
        }
        if (!isObject(in_)) return scalar("a number");
        switch (field_) {
            case Field::TcpDataPort: return setNumber(desc_.tcp_data_port, value);
            case Field::RdmaPort: return setNumber(desc_.rdma_port, value);
            case Field::RdmaChunkBytes: return setNumber(desc_.rdma_chunk_bytes, value);
            case Field::Version: return setNumber(desc_.version, value);
            case Field::Lid: return setNumber(desc_.devices.back().lid, value);
            case Field::Addr: return setNumber(desc_.buffers.back().addr, value);
            case Field::Length: return setNumber(desc_.buffers.back().length, value);
            default: return scalar("a number");
        }
    }

    bool string(std::string& value) override {
        switch (in_) {
            case In::Transports: return pushText(desc_.transports, value, kMaxTransports);
            case In::LocationNames: return addDeviceName(value);
            default: break;
        }
        if (!isObject(in_)) return scalar("a string");
        switch (field_) {
            case Field::Name:
                if (value.empty()) return fail("is empty");
                return setText(desc_.name, value, kMaxSegmentName);
            case Field::Protocol: return setText(desc_.protocol, value, kMaxShortText);
            case Field::Timestamp: return setText(desc_.timestamp, value, kMaxShortText);
            case Field::DeviceName: return setText(desc_.devices.back().name, value, kMaxShortText);
            case Field::Gid: return setText(desc_.devices.back().gid, value, kMaxShortText);
            case Field::Location: return setText(desc_.buffers.back().location, value, kMaxShortText);
            case Field::BootId: return setText(desc_.boot_id, value, kMaxShortText);
            case Field::HostSocket: return setShown(desc_.host_socket, value, kMaxShortText);
            case Field::Incarnation: return setIncarnation(value);
            case Field::Control: return setControl(value);
            default: return scalar("a string");
        }
    }

    bool start_object(std::size_t) override {
        switch (in_) {
            case In::Start: return push(In::Root);
            case In::Unknown: return push(In::Unknown);
            case In::Devices:
                if (desc_.devices.size() == kMaxDevices) return tooMany(kMaxDevices);
                desc_.devices.emplace_back();
                return push(In::Device);
            case In::Buffers:
                if (desc_.buffers.size() == kMaxBuffers) return tooMany(kMaxBuffers);
                desc_.buffers.emplace_back();
                return push(In::Buffer);
            default: break;
        }
        if (!isObject(in_) || in_ == In::Matrix) return fail("is an object");
        switch (field_) {
            case Field::Unknown: return push(In::Unknown);
            case Field::PriorityMatrix: return push(In::Matrix);
            case Field::Troupe: has_troupe_ = true; return push(In::Troupe);
            default: return fail("is an object");
        }
    }

    bool start_array(std::size_t) override {
        switch (in_) {
            case In::Unknown: return push(In::Unknown);
            case In::Matrix: lists_ = 0; return push(In::Location);
            case In::Location:
                if (lists_ == 2) return fail("has more than two lists");
                names_ = lists_++ == 0 ? &location_->first : &location_->second;
                return push(In::LocationNames);
            case In::Rights:
                if (rights_.size() == kMaxBuffers) return tooMany(kMaxBuffers);
                rights_.emplace_back();
                right_size_ = 0;
                return push(In::Right);
            default: break;
        }
        if (!isObject(in_)) return in_ == In::Start ? scalar("an array") : fail("is an array");
        switch (field_) {
            case Field::Unknown: return push(In::Unknown);
            case Field::Devices: return push(In::Devices);
            case Field::Buffers: return push(In::Buffers);
            case Field::Rkey: return push(In::Rkeys);
            case Field::Transports: return push(In::Transports);
            case Field::LanePorts: return push(In::LanePorts);
            case Field::Rights: return push(In::Rights);
            default: return fail("is an array");
        }
    }

    bool key(std::string& name) override {
        if (in_ == In::Unknown) return true;
        if (in_ == In::Matrix) return startLocation(name);
        field_ = Field::Unknown;
        for (const auto& entry : kFields) {
            if (entry.in != in_ || entry.name != name) continue;
            field_ = entry.field;
            if ((seen_ & bitOf(field_)) != 0) return fail("stands twice");
            seen_ |= bitOf(field_);
            break;
        }
        return true;
    }

    bool end_object() override {
        if (in_ != In::Unknown && in_ != In::Matrix && !checkRequired()) return false;
        if (in_ == In::Buffer && !checkBuffer()) return false;
        return pop();
    }

    bool end_array() override {
        if (in_ == In::Location && lists_ != 2) return fail("does not have two lists");
        if (in_ == In::Right && right_size_ != 2) return fail("is not a pair");
        return pop();
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) override {
        error_ = Status(Code::ProtocolError, "segment descriptor: not JSON at byte " + std::to_string(position));
        return false;
    }

  private:
    struct Level {
        In in;
        Field field;
        std::uint32_t seen;
    };
    struct RightPair {
        std::uint64_t generation = 0;
        std::uint64_t remote = 0;
    };

    bool push(In in) {
        if (stack_.size() == kMaxDepth) {
            error_ = bad(path(), "is nested more than " + std::to_string(kMaxDepth) + " levels deep");
            return false;
        }
        stack_.push_back({in_, field_, seen_});
        in_ = in;
        seen_ = 0;
        return true;
    }
    bool pop() {
        in_ = stack_.back().in;
        field_ = stack_.back().field;
        seen_ = stack_.back().seen;
        stack_.pop_back();
        return true;
    }

    static Status bad(const std::string& where, const std::string& why) {
        return {Code::ProtocolError, "segment descriptor: " + where + " " + why};
    }
    bool fail(const std::string& why) {
        error_ = bad(path(), why);
        return false;
    }
    bool tooMany(std::size_t bound) { return fail("has more than " + std::to_string(bound) + " entries"); }
    /// A value of the wrong kind, unless it is ignored anyway.
    bool scalar(const char* kind) {
        if (in_ == In::Unknown || (isObject(in_) && in_ != In::Matrix && field_ == Field::Unknown)) return true;
        if (in_ == In::Start) {
            error_ = bad("the text", "is not a JSON object");
            return false;
        }
        return fail(std::string("is ") + kind + ", which it may not be");
    }

    template <class Number>
    bool setNumber(Number& target, std::uint64_t value) {
        constexpr std::uint64_t kMax = std::numeric_limits<Number>::max();
        if (value > kMax) return fail("is " + std::to_string(value) + ", more than " + std::to_string(kMax));
        target = static_cast<Number>(value);
        return true;
    }
    template <class Number>
    bool pushNumber(std::vector<Number>& target, std::uint64_t value, std::uint64_t least, std::size_t bound) {
        if (target.size() == bound) return tooMany(bound);
        if (value < least) return fail("is " + std::to_string(value) + ", less than " + std::to_string(least));
        return setNumber(target.emplace_back(), value);
    }
    bool setText(std::string& target, std::string& value, std::size_t bound) {
        if (value.size() > bound)
            return fail("has " + std::to_string(value.size()) + " bytes, more than " + std::to_string(bound));
        target = std::move(value);
        return true;
    }
    /// The same of what errors and the log say as it is.
    bool setShown(std::string& target, std::string& value, std::size_t bound) {
        if (value != printable(value)) return fail("holds what cannot be printed");
        return setText(target, value, bound);
    }
    bool pushText(std::vector<std::string>& target, std::string& value, std::size_t bound) {
        if (target.size() == bound) return tooMany(bound);
        return setText(target.emplace_back(), value, kMaxShortText);
    }
    bool addDeviceName(std::string& name) {
        if (name.empty()) return fail("has a device without a name");
        if (++matrix_names_ > kMaxMatrixNames) {
            error_ = bad("priority_matrix", "has more than " + std::to_string(kMaxMatrixNames) + " names of devices");
            return false;
        }
        return pushText(*names_, name, kMaxDevices);
    }
    bool setIncarnation(const std::string& text) {
        const auto parsed = Incarnation::parse(text);
        if (!parsed || parsed->isNull()) return fail("is not an incarnation of 32 hexadecimal digits");
        desc_.incarnation = *parsed;
        return true;
    }
    bool setControl(const std::string& text) {
        if (text.empty()) return true;  // Says that nobody listens.
        if (text != printable(text)) return fail("holds what cannot be printed");
        auto parsed =
            text.size() <= kMaxSegmentName ? Endpoint::parse(text) : Status(Code::InvalidArgument, "too long");
        if (!parsed) return fail("is not host:port: " + parsed.status().message());
        desc_.control = std::move(*parsed);
        return true;
    }
    bool addRight(std::uint64_t value) {
        if (right_size_ == 2) return fail("is not a pair");
        if (right_size_ == 1 && value > kMaxRight)
            return fail("says " + std::to_string(value) + " where at most " + std::to_string(kMaxRight) + " is due");
        (right_size_++ == 0 ? rights_.back().generation : rights_.back().remote) = value;
        return true;
    }
    bool startLocation(std::string& name) {
        auto& matrix = desc_.priority_matrix;
        if (name.size() > kMaxShortText) return fail("has a name of " + std::to_string(name.size()) + " bytes");
        if (matrix.size() == kMaxLocations) return tooMany(kMaxLocations);
        const auto [place, is_new] = matrix.try_emplace(std::move(name));
        if (!is_new) return fail("has '" + printable(place->first) + "' twice");
        location_ = &place->second;
        return true;
    }

    bool checkRequired() {
        for (const auto& entry : kFields) {
            if (entry.in != in_ || !entry.required || (seen_ & bitOf(entry.field)) != 0) continue;
            field_ = entry.field;
            return fail("is missing");
        }
        return true;
    }
    bool checkBuffer() {
        const auto& buffer = desc_.buffers.back();
        field_ = Field::Length;
        if (buffer.length == 0) return fail("is 0");
        if (buffer.length > UINT64_MAX - buffer.addr) return fail("makes the range wrap around the address space");
        return true;
    }

    /// The field that is being read: "buffers[3].length".
    std::string path() const;
    std::string fieldName() const {
        for (const auto& entry : kFields)
            if (entry.field == field_) return std::string(entry.name);
        return "?";
    }

    SegmentDesc desc_;
    Status error_;
    In in_ = In::Start;
    Field field_ = Field::Unknown;  ///< The last key of the object that is being read.
    std::uint32_t seen_ = 0;        ///< Bits of the fields it had.
    std::vector<Level> stack_;      ///< The levels around it.
    bool has_troupe_ = false;
    std::vector<RightPair> rights_;  ///< troupe.buffers may stand before buffers, so they are joined at the end.
    int right_size_ = 0;
    std::pair<std::vector<std::string>, std::vector<std::string>>* location_ = nullptr;
    std::vector<std::string>* names_ = nullptr;
    std::size_t matrix_names_ = 0;  ///< In all its lists.
    int lists_ = 0;
};

std::string Decoder::path() const {
    const auto at = [](const char* list, std::size_t size) {
        return std::string(list) + "[" + std::to_string(size == 0 ? 0 : size - 1) + "]";
    };
    switch (in_) {
        case In::Start: return "the text";
        case In::Root: return fieldName();
        case In::Devices: return "devices";
        case In::Device: return at("devices", desc_.devices.size()) + "." + fieldName();
        case In::Buffers: return "buffers";
        case In::Buffer: return at("buffers", desc_.buffers.size()) + "." + fieldName();
        case In::Rkeys: return at("buffers", desc_.buffers.size()) + ".rkey";
        case In::Matrix: return "priority_matrix";
        case In::Location:
        case In::LocationNames: return "an entry of priority_matrix";
        case In::Troupe: return "troupe." + fieldName();
        case In::Transports: return "troupe.transports";
        case In::LanePorts: return "troupe.lane_ports";
        case In::Rights: return "troupe.buffers";
        case In::Right: return at("troupe.buffers", rights_.size());
        case In::Unknown: return "an unknown field";
    }
    return "?";
}

}  // namespace

Result<SegmentDesc> decodeSegmentDesc(std::string_view text) {
    // For the parser it is the end of the text, whatever follows.
    if (const auto nul = text.find('\0'); nul != std::string_view::npos)
        return {Code::ProtocolError, "segment descriptor: not JSON at byte " + std::to_string(nul)};
    Decoder decoder;
    nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &decoder);
    return decoder.finish(text.size());
}

}  // namespace troupe
