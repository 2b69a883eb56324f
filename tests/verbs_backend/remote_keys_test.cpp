#include "verbs_backend/remote_keys.h"

#include <gtest/gtest.h>

namespace troupe::verbs {
namespace {

std::shared_ptr<const Peer> peerWith(std::vector<BufferDesc> buffers, std::size_t devices, std::uint64_t chunk) {
    auto desc = std::make_shared<SegmentDesc>();
    desc->name = "p";
    desc->buffers = std::move(buffers);
    desc->devices.resize(devices);
    desc->rdma_chunk_bytes = chunk;
    auto peer = std::make_shared<Peer>();
    peer->name = "p";
    peer->desc = desc;
    return peer;
}

BufferDesc buffer(std::uint64_t addr, std::uint64_t length, std::vector<std::uint32_t> keys, bool remote = true) {
    BufferDesc result;
    result.addr = addr;
    result.length = length;
    result.rkeys = std::move(keys);
    result.remote_accessible = remote;
    return result;
}

TEST(VerbsRemoteKeys, FindTheKeyOfChunkAndDevice) {
    const RemoteKeys keys(peerWith({buffer(0x1000, 0x2800, {10, 11, 20, 21, 30, 31})}, 2, 0x1000));
    auto found = keys.find(0x1000, 1);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->key, 11u);
    EXPECT_EQ(found->length, 0x1000u);
    found = keys.find(0x2fff, 0);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->key, 20u);
    EXPECT_EQ(found->length, 1u);
    found = keys.find(0x3000, 0);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->key, 30u);
    EXPECT_EQ(found->length, 0x800u) << "the last chunk is shorter";
    EXPECT_FALSE(keys.find(0x3800, 0));
    EXPECT_FALSE(keys.find(0x1000, 2)) << "there is no third device";
}

TEST(VerbsRemoteKeys, AnUnsortedDescriptorIsSearchedAllTheSame) {
    const RemoteKeys keys(
        peerWith({buffer(0x9000, 0x100, {9}), buffer(0x1000, 0x100, {1}), buffer(0x5000, 0x100, {5})}, 1, 0));
    for (const std::uint64_t n : {1, 5, 9, 1}) {
        const auto found = keys.find(n * 0x1000 + 0x10, 0);
        ASSERT_TRUE(found) << n;
        EXPECT_EQ(found->key, n);
        EXPECT_EQ(found->length, 0xf0u);
    }
    EXPECT_FALSE(keys.find(0x1100, 0));
}

TEST(VerbsRemoteKeys, TouchingRegionsCountAsOne) {
    const RemoteKeys keys(
        peerWith({buffer(0x1000, 0x100, {1}), buffer(0x1100, 0x100, {2}), buffer(0x1201, 8, {3})}, 1, 0));
    EXPECT_TRUE(keys.covers({0x1000, 0x200}, Opcode::Read));
    EXPECT_TRUE(keys.covers({0x10ff, 2}, Opcode::Read));
    EXPECT_EQ(keys.covers({0x1000, 0x201}, Opcode::Read).code(), Code::AddressNotRegistered);
    EXPECT_EQ(keys.covers({UINT64_MAX, 2}, Opcode::Read).code(), Code::InvalidArgument);
}

TEST(VerbsRemoteKeys, RefusalsSayWhy) {
    const RemoteKeys keys(peerWith({buffer(0x1000, 0x100, {}, false), buffer(0x2000, 0x100, {})}, 1, 0));
    EXPECT_EQ(keys.covers({0x1000, 1}, Opcode::Read).code(), Code::AccessDenied);
    EXPECT_EQ(keys.covers({0x2000, 1}, Opcode::Read).code(), Code::AddressNotRegistered);
    const Status nowhere = keys.covers({0x3000, 1}, Opcode::Read);
    EXPECT_EQ(nowhere.code(), Code::AddressNotRegistered);
    EXPECT_NE(nowhere.message().find("0x3000"), std::string::npos);
    EXPECT_NE(nowhere.message().find("'p'"), std::string::npos);
}

TEST(VerbsRemoteKeys, WhatIsNotSeenThereIsNotWritten) {
    BufferDesc unseen = buffer(0x1000, 0x100, {1});
    unseen.location = "cuda:1";
    unseen.rdma_writes = RdmaWrites::None;
    BufferDesc late = buffer(0x1100, 0x100, {2});
    late.rdma_writes = RdmaWrites::ReadBack;
    const RemoteKeys keys(peerWith({unseen, late, buffer(0x2000, 0x100, {3})}, 1, 0));
    EXPECT_TRUE(keys.covers({0x1000, 0x200}, Opcode::Read));
    EXPECT_EQ(keys.covers({0x1000, 0x200}, Opcode::Write).code(), Code::Unsupported);
    EXPECT_TRUE(keys.covers({0x1100, 0x100}, Opcode::Write));
    EXPECT_TRUE(keys.find(0x1100, 0)->read_back);
    EXPECT_FALSE(keys.find(0x2000, 0)->read_back);
}

}  // namespace
}  // namespace troupe::verbs
