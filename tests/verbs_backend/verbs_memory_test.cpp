// Registering memory with the devices, and giving it back: on the strict software device.

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include "tests/verbs_backend/soft_pair.h"

namespace troupe::verbs {
namespace {

using namespace testing;

constexpr std::size_t kPage = 4096;

/// A node on several devices, of whose transport regions are asked directly.
struct Registrar {
    explicit Registrar(std::vector<std::string> names, const Config& base = softConfig(""),
                       const std::function<void(SoftVerbs&)>& arrange = {})
        : soft(std::make_shared<SoftVerbs>(names)) {
        soft->registerUnseen();
        if (arrange) arrange(*soft);
        node = std::make_unique<Node>(base, soft, "n");
    }
    /// Nothing looks into it but a device, and this one does not.
    static Region region(std::uint64_t id, std::uint64_t length) {
        Region made;
        made.id = id;
        made.range = {id << 40, length};
        return made;
    }
    Status add(const Region& region) { return node->transport->registerMemory(region); }
    Status remove(const Region& region) { return node->transport->unregisterMemory(region); }
    std::vector<std::uint32_t> keysOf(const Region& region) {
        SegmentDesc desc;
        BufferDesc buffer;
        buffer.addr = region.range.addr;
        buffer.length = region.range.length;
        desc.buffers.push_back(buffer);
        node->transport->describe(desc);
        return desc.buffers.front().rkeys;
    }

    std::shared_ptr<SoftVerbs> soft;
    CleanEnd clean_end{soft};
    std::unique_ptr<Node> node;
};

TEST(VerbsMemory, ARegistrationThatIsNotTakenBackIsNamedAndKeptUntilItIs) {
    Registrar pinned({"s0", "s1"});
    const Region region = Registrar::region(1, 3 * kPage);
    ASSERT_TRUE(pinned.add(region));
    pinned.soft->fail("deregMr", EBUSY, 1, 1);
    const Status kept = pinned.remove(region);
    EXPECT_EQ(kept.code(), Code::BatchBusy);
    for (const std::string& part : {std::string("device s1"), region.range.toString(), std::string("errno 16")})
        EXPECT_NE(kept.message().find(part), std::string::npos) << kept.toString();
    EXPECT_EQ(pinned.soft->count("mr"), 1u);
    EXPECT_TRUE(pinned.keysOf(region).empty()) << "nobody is given it any more";
    pinned.soft->fail("deregMr", EBUSY, 1);
    EXPECT_EQ(pinned.remove(region).code(), Code::BatchBusy) << "it is still there";
    EXPECT_TRUE(pinned.remove(region));
    EXPECT_EQ(pinned.soft->count("mr"), 0u);
    EXPECT_TRUE(pinned.remove(region)) << "of nothing there is nothing to take back";
}

TEST(VerbsMemory, WhatIsLeftOfARefusedRegistrationCanBeTakenBackLater) {
    Registrar pinned({"s0", "s1"});
    const Region region = Registrar::region(1, kPage);
    pinned.soft->fail("regMr", ENOMEM, 1, 1);
    pinned.soft->fail("deregMr", EIO, 1);
    EXPECT_EQ(pinned.add(region).code(), Code::ResourceExhausted);
    EXPECT_EQ(pinned.soft->count("mr"), 1u);
    pinned.soft->fail("deregMr", EIO, 1);
    EXPECT_EQ(pinned.remove(region).code(), Code::BatchBusy);
    EXPECT_TRUE(pinned.remove(region));
    EXPECT_EQ(pinned.soft->count("mr"), 0u);
}

TEST(VerbsMemory, TheEndOfTheTransportTriesOnceMore) {
    Registrar pinned({"s0"});
    const Region region = Registrar::region(1, kPage);
    ASSERT_TRUE(pinned.add(region));
    pinned.soft->fail("deregMr", EIO, 1);
    EXPECT_FALSE(pinned.remove(region));
    // ~Registrar finds nothing left over.
}

TEST(VerbsMemory, ALargeRegionIsRegisteredWithAllDevicesAtOnceAndEachKeyIsInItsPlace) {
    Config config = softConfig("");
    config.rdma_max_chunk_bytes = 1u << 20;
    Registrar pinned({"s0", "s1", "s2", "s3", "s4"}, config);
    const Region region = Registrar::region(1, 100u << 20);
    ASSERT_TRUE(pinned.add(region));
    const auto keys = pinned.keysOf(region);
    ASSERT_EQ(keys.size(), 500u);
    EXPECT_EQ(std::set<std::uint32_t>(keys.begin(), keys.end()).size(), 500u);
    for (std::size_t i = 0; i < keys.size(); ++i)
        EXPECT_TRUE(
            pinned.soft->covers(keys[i], "s" + std::to_string(i % 5), {region.range.addr + (i / 5 << 20), 1u << 20}))
            << i;
    EXPECT_TRUE(pinned.remove(region));
    for (const int skip : {0, 1, 57, 250, 499}) {
        pinned.soft->fail("regMr", ENOMEM, 1, skip);
        EXPECT_EQ(pinned.add(region).code(), Code::ResourceExhausted) << skip;
        EXPECT_EQ(pinned.soft->count("mr"), 0u) << skip;
    }
}

TEST(VerbsMemory, ARegionAboveWhatADeviceTakesIsSplitForAll) {
    Registrar pinned({"s0", "s1"}, softConfig(""), [](SoftVerbs& soft) { soft.setMaxMrSize("s1", 2 * kPage + 100); });
    const Region region = Registrar::region(1, 5 * kPage);
    ASSERT_TRUE(pinned.add(region));
    EXPECT_EQ(pinned.keysOf(region).size(), 6u);
    EXPECT_TRUE(pinned.remove(region));
    // Where that makes too many pieces, the error says what makes them small.
    const Status refused = pinned.add(Registrar::region(2, std::uint64_t{1} << 30));
    EXPECT_EQ(refused.code(), Code::CapacityExceeded);
    EXPECT_NE(refused.message().find("max_mr_size of device s1 port 1"), std::string::npos) << refused.toString();
    EXPECT_NE(refused.message().find("8292 bytes"), std::string::npos) << refused.toString();
}

TEST(VerbsMemory, WhereASettingMakesTooManyPiecesItIsTheSettingThatIsNamed) {
    Config config = softConfig("");
    config.rdma_max_chunk_bytes = kPage;
    Registrar pinned({"s0", "s1"}, config);
    const Status refused = pinned.add(Registrar::region(1, std::uint64_t{1} << 30));
    EXPECT_EQ(refused.code(), Code::CapacityExceeded);
    EXPECT_NE(refused.message().find("rdma.max_chunk_bytes"), std::string::npos) << refused.toString();
}

TEST(VerbsMemory, ALimitOnLockedMemoryIsSaidInBytesAndInTheUnitOfTheShell) {
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
    Registrar pinned({"s0", "s1"});
    // Only the soft one, which comes back.
    const rlimit lower{std::min<rlim_t>(before.rlim_max, 64 * 1024), before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &lower), 0);
    pinned.soft->fail("regMr", ENOMEM, 1);
    const Status refused = pinned.add(Registrar::region(1, 10 * kPage));
    ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
    for (const char* part : {"is 65536 bytes, 64 KiB;", "`ulimit -l`, which takes KiB", "80 KiB or 81920 bytes"})
        EXPECT_NE(refused.message().find(part), std::string::npos) << refused.toString();
}

TEST(VerbsMemory, ARefusalNamesThePlannedBytesOfAllDevicesAndEachLimit) {
    Registrar pinned({"s0", "s1"});
    const Region region = Registrar::region(1, 10 * kPage);
    pinned.soft->fail("regMr", ENOMEM, 1);
    const Status refused = pinned.add(region);
    for (const char* part : {"40960 bytes is pinned on 2 device(s), 81920 bytes in all", "limit on locked memory",
                             "ulimit -l", "100000 registrations (max_mr)", "1099511627776 bytes (max_mr_size)"})
        EXPECT_NE(refused.message().find(part), std::string::npos) << refused.toString();
    pinned.soft->fail("regMr", EINVAL, 1);
    EXPECT_NE(pinned.add(region).message().find("(max_mr_size)"), std::string::npos);
}

}  // namespace
}  // namespace troupe::verbs
