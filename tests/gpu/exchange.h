#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "tests/gpu/fixture.h"

namespace troupe::gpu::testing {

/// Bytes and where they begin: around a page, a chunk of the rings (64 KiB here), a slice (1 MiB), what the rings hold.
struct Shape {
    std::uint64_t bytes;
    std::uint64_t local;
    std::uint64_t remote;
};
inline constexpr Shape kShapes[] = {
    {1, 0, 3},
    {7, 5, 0},
    {4096, 0, 0},
    {4097, 511, 1},
    {(64u << 10) - 1, 1, 0},
    {64u << 10, 0, 64},
    {(64u << 10) + 1, 9, 9},
    {300001, 4096, 7},
    {(1u << 20) + 3, 2, 5},
    {5u << 20, 0, 1},
};
/// Many times what rings, windows and slices hold.
inline constexpr std::uint64_t kMany = test::kSanitized ? 16u << 20 : 64u << 20;
inline constexpr std::uint64_t kRoom = (5u << 20) + 8192;
inline constexpr std::uint64_t kEdge = 16;

/// Both directions of every shape; what lies beside the bytes must stay.
inline void exchange(TransferEngine& engine, SegmentID segment, Memory& local, Memory& remote) {
    unsigned seed = 1;
    for (const Shape& shape : kShapes) {
        for (const Opcode opcode : {Opcode::Write, Opcode::Read}) {
            SCOPED_TRACE(local.kind() + (opcode == Opcode::Write ? " -> " : " <- ") + remote.kind() + ", " +
                         std::to_string(shape.bytes) + " bytes");
            Memory& from = opcode == Opcode::Write ? local : remote;
            Memory& to = opcode == Opcode::Write ? remote : local;
            const std::uint64_t from_at = kEdge + (opcode == Opcode::Write ? shape.local : shape.remote);
            const std::uint64_t to_at = kEdge + (opcode == Opcode::Write ? shape.remote : shape.local);
            const Bytes sent = noise(shape.bytes, ++seed);
            const Bytes beside = noise(shape.bytes + 2 * kEdge, ++seed);
            from.write(from_at, sent);
            to.write(to_at - kEdge, beside);
            const auto status = runBatch(engine, {makeRequest(opcode, segment, local.pointer(kEdge + shape.local),
                                                              remote.addr(kEdge + shape.remote), shape.bytes)});
            expectCompleted(status, shape.bytes);
            Bytes wanted = beside;
            std::copy(sent.begin(), sent.end(), wanted.begin() + kEdge);
            ASSERT_TRUE(to.read(to_at - kEdge, wanted.size()) == wanted);
        }
    }
}

}  // namespace troupe::gpu::testing
