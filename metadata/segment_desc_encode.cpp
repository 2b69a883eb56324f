#include <charconv>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "metadata/segment_desc.h"

namespace troupe {

namespace {

/// Writes JSON straight into a string. A descriptor may have a hundred thousand buffers and is encoded with every
/// registration: building a DOM for it took several times as long.
class Writer {
  public:
    void raw(std::string_view text) { out_.append(text); }
    void raw(char c) { out_.push_back(c); }

    /// `"name":`, with a comma before all but the first member.
    void key(std::string_view name) {
        if (out_.back() != '{') out_.push_back(',');
        out_.append(1, '"').append(name).append("\":");
    }

    template <class Number>
    requires std::is_unsigned_v<Number>
    void value(Number number) {
        char digits[20];
        const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
        out_.append(digits, end);
    }

    void value(const std::string& text) {
        for (const char c : text) {
            if (c >= ' ' && c <= '~' && c != '"' && c != '\\') continue;
            out_.append(escaped(text));
            return;
        }
        out_.append(1, '"').append(text).append(1, '"');
    }

    /// `[a,b]` with `each(element)` writing one element.
    template <class Range, class Each>
    void array(const Range& range, Each each) {
        out_.push_back('[');
        bool first = true;
        for (const auto& element : range) {
            if (!first) out_.push_back(',');
            first = false;
            each(element);
        }
        out_.push_back(']');
    }
    template <class Range>
    void array(const Range& range) {
        array(range, [this](const auto& element) { this->value(element); });
    }

    void reserve(std::size_t bytes) { out_.reserve(bytes); }
    std::string take() { return std::move(out_); }

  private:
    /// The rare string that needs escapes. Bytes that are no UTF-8 become U+FFFD.
    static std::string escaped(const std::string& text) {
        return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    }

    std::string out_;
};

void writeDevice(Writer& out, const DeviceDesc& device) {
    out.raw('{');
    out.key("name"), out.value(device.name);
    out.key("lid"), out.value(device.lid);
    out.key("gid"), out.value(device.gid);
    out.raw('}');
}

void writeBuffer(Writer& out, const BufferDesc& buffer) {
    out.raw('{');
    out.key("name"), out.value(buffer.location);
    out.key("addr"), out.value(buffer.addr);
    out.key("length"), out.value(buffer.length);
    out.key("rkey"), out.array(buffer.rkeys);
    out.key("lkey"), out.array(buffer.rkeys, [&](auto) { out.raw('0'); });
    out.raw('}');
}

void writeTroupe(Writer& out, const SegmentDesc& desc) {
    out.raw('{');
    out.key("incarnation"), out.value(desc.incarnation.toString());
    out.key("version"), out.value(desc.version);
    out.key("boot_id"), out.value(desc.boot_id);
    out.key("control"), out.value(desc.control.host.empty() ? std::string() : desc.control.toString());
    out.key("transports"), out.array(desc.transports);
    out.key("lane_ports"), out.array(desc.lane_ports);
    if (!desc.host_socket.empty()) out.key("host_socket"), out.value(desc.host_socket);
    if (desc.rdma_port != 0) out.key("rdma_port"), out.value(desc.rdma_port);
    if (desc.rdma_chunk_bytes != 0) out.key("rdma_chunk_bytes"), out.value(desc.rdma_chunk_bytes);
    out.key("buffers"), out.array(desc.buffers, [&](const BufferDesc& buffer) {
        out.raw('[');
        out.value(buffer.generation);
        out.raw(',');
        // Bit 0: accessible. Bits 1 and 2: RdmaWrites.
        out.value(static_cast<unsigned>(buffer.remote_accessible ? 1 : 0) | static_cast<unsigned>(buffer.rdma_writes)
                                                                                << 1);
        out.raw(']');
    });
    out.raw('}');
}

}  // namespace

std::string encodeSegmentDesc(const SegmentDesc& desc) {
    Writer out;
    out.reserve(1024 + 128 * desc.buffers.size());
    out.raw('{');
    // First, and incarnation and version first in it, so that a store reads them from the head of the text.
    if (!desc.incarnation.isNull()) {
        out.key("troupe");
        writeTroupe(out, desc);
    }
    out.key("name"), out.value(desc.name);
    out.key("protocol"), out.value(desc.protocol);
    out.key("devices"), out.array(desc.devices, [&](const auto& device) { writeDevice(out, device); });
    out.key("buffers"), out.array(desc.buffers, [&](const auto& buffer) { writeBuffer(out, buffer); });
    out.key("priority_matrix"), out.raw(encodePriorityMatrix(desc.priority_matrix));
    out.key("tcp_data_port"), out.value(desc.tcp_data_port);
    out.key("timestamp"), out.value(desc.timestamp);
    out.raw('}');
    return out.take();
}

Result<RecordHead> decodeRecordHead(std::string_view head) {
    constexpr std::string_view kBefore = R"({"troupe":{"incarnation":")";
    constexpr std::string_view kBetween = R"(","version":)";
    constexpr std::size_t kDigits = 32;
    const Status bad(Code::ProtocolError, "the record does not begin as Troupe writes it");
    if (head.substr(0, kBefore.size()) != kBefore) return bad;
    head.remove_prefix(kBefore.size());
    const auto incarnation = Incarnation::parse(head.substr(0, kDigits));
    if (!incarnation) return bad;
    head.remove_prefix(kDigits);
    if (head.substr(0, kBetween.size()) != kBetween) return bad;
    head.remove_prefix(kBetween.size());
    RecordHead result{*incarnation, 0};
    const auto [rest, error] = std::from_chars(head.data(), head.data() + head.size(), result.version);
    // Without what follows the number may have been cut off.
    if (error != std::errc() || rest == head.data() + head.size()) return bad;
    return result;
}

}  // namespace troupe
