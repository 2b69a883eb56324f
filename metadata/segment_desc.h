#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/endpoint.h"
#include "base/incarnation.h"
#include "base/status.h"
#include "topology/topology.h"

namespace troupe {

/// A NIC as the common schema names it.
struct DeviceDesc {
    std::string name;
    std::uint16_t lid = 0;
    std::string gid;
    bool operator==(const DeviceDesc&) const = default;
};

/// What it takes until the owner of memory sees what an RDMA device wrote there.
enum class RdmaWrites : std::uint8_t {
    Plain,     ///< Nothing.
    ReadBack,  ///< A read by the same connection after them, which drives them into the memory: of a GPU.
    None,      ///< Nothing would do: they are refused, and go by another transport.
};

/// One registered region of a segment.
struct BufferDesc {
    std::string location;      ///< "cpu:0", "cuda:1" or "*"; the schema's `name`.
    std::uint64_t addr = 0;    ///< In the owner's address space.
    std::uint64_t length = 0;  ///< Bytes, > 0.
    /// One per device, in the order of `SegmentDesc::devices`; empty without RDMA. Of a buffer longer than
    /// `SegmentDesc::rdma_chunk_bytes` as many for each chunk, chunk by chunk.
    std::vector<std::uint32_t> rkeys;
    std::uint64_t generation = 0;   ///< Counts registrations of the owner; tells a region from its successor.
    bool remote_accessible = true;  ///< False: listed for completeness, never reachable.
    RdmaWrites rdma_writes = RdmaWrites::Plain;
    bool operator==(const BufferDesc&) const = default;
};

/// What a process tells others about the memory it serves. See docs/design.md for the JSON.
struct SegmentDesc {
    std::string name;
    std::string protocol = "tcp";  ///< First transport, for readers that know only the common schema.
    std::vector<DeviceDesc> devices;
    /// All that is registered, what is local-only too: look at `remote_accessible` before one is used.
    std::vector<BufferDesc> buffers;
    PriorityMatrix priority_matrix;
    std::uint16_t tcp_data_port = 0;  ///< First TCP lane port.
    std::string timestamp;            ///< When it was made, "2026-01-31 12:00:00"; for people only.

    // The "troupe" object.
    Incarnation incarnation;
    std::string boot_id;
    Endpoint control;                       ///< Where the owner's ControlServer listens.
    std::vector<std::string> transports;    ///< Names of the transports that can reach it, best first.
    std::vector<std::uint16_t> lane_ports;  ///< One TCP data port per data loop.
    std::string host_socket;                ///< Abstract unix socket of the transport "host"; empty: none.
    std::uint16_t rdma_port = 0;            ///< Where rdma_cm listens on all devices; 0 without RDMA.
    std::uint64_t rdma_chunk_bytes = 0;     ///< Bytes one rkey covers, but for the last of a buffer; 0: all.
    std::uint64_t version = 0;              ///< Grows with every change of this incarnation's descriptor.

    bool operator==(const SegmentDesc&) const = default;
};

/// The JSON of docs/design.md, compact. Local keys are written as zeros, as many as there are rkeys.
std::string encodeSegmentDesc(const SegmentDesc& desc);

/// Parses hostile text. ProtocolError names the field and what is wrong with it: not JSON, too deep, wrong type,
/// missing, a range that wraps or is empty, more than kMaxBuffers buffers, megabytes of unknown fields or of spaces.
/// Unknown fields of less are ignored; a missing "troupe" object gives a null incarnation.
Result<SegmentDesc> decodeSegmentDesc(std::string_view text);

/// Whose record it is, and which: what a store tells without reading the regions.
struct RecordHead {
    Incarnation incarnation;
    std::uint64_t version = 0;
    bool operator==(const RecordHead&) const = default;
};

/// Bytes of the beginning of encodeSegmentDesc's text that hold a RecordHead, whatever the values.
inline constexpr std::size_t kRecordHeadBytes = 128;

/// Reads the first kRecordHeadBytes of a record. ProtocolError when Troupe did not write it: other engines publish
/// records without incarnation, in an order of their own.
Result<RecordHead> decodeRecordHead(std::string_view head);

inline constexpr std::size_t kMaxBuffers = 1'000'000;
inline constexpr std::size_t kMaxBufferKeys = 65536;  ///< Of one buffer, all devices and chunks.
inline constexpr std::size_t kMaxSegmentName = 1024;  ///< Bytes.

}  // namespace troupe
