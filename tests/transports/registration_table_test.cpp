#include "transports/registration_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "transports/device.h"

namespace troupe {
namespace {

Region region(std::uint64_t addr, std::uint64_t length, bool remote = true) {
    Region result;
    result.range = {addr, length};
    result.remote_accessible = remote;
    return result;
}

std::uint64_t registered(RegistrationTable& table, std::uint64_t addr, std::uint64_t length, bool remote = true) {
    const auto reserved = table.reserve(region(addr, length, remote));
    EXPECT_TRUE(reserved.isOk()) << reserved.status().toString();
    if (!reserved.isOk()) return 0;
    table.commit(reserved->id);
    return reserved->id;
}

Code coverage(const RegistrationTable& table, std::uint64_t addr, std::uint64_t length, bool remote = true) {
    return table.regions().load()->covers({addr, length}, remote).code();
}

TEST(RegistrationTable, ARegionIsSeenOnlyOnceCommitted) {
    RegistrationTable table;
    const auto reserved = table.reserve(region(0x1000, 0x1000));
    ASSERT_TRUE(reserved.isOk());
    EXPECT_EQ(coverage(table, 0x1000, 1), Code::AddressNotRegistered);
    table.commit(reserved->id);
    EXPECT_EQ(coverage(table, 0x1000, 0x1000), Code::Ok);
    ASSERT_NE(table.regions().load()->find(0x1fff), nullptr);
    EXPECT_EQ(table.regions().load()->find(0x1fff)->id, reserved->id);
    EXPECT_EQ(table.regions().load()->find(0x2000), nullptr);
    EXPECT_EQ(table.regions().load()->find(0xfff), nullptr);
}

TEST(RegistrationTable, RefusesRangesThatCannotBe) {
    RegistrationTable table;
    EXPECT_EQ(table.reserve(region(0, 4096)).status().code(), Code::InvalidArgument);
    EXPECT_EQ(table.reserve(region(4096, 0)).status().code(), Code::InvalidArgument);
    EXPECT_EQ(table.reserve(region(UINT64_MAX - 10, 100)).status().code(), Code::InvalidArgument);
}

TEST(RegistrationTable, OverlapIsRefusedInEveryStateAndTouchingIsNot) {
    RegistrationTable table;
    const auto pending = table.reserve(region(0x1000, 0x1000));
    ASSERT_TRUE(pending.isOk());
    const auto refused = [&](std::uint64_t addr, std::uint64_t length) {
        return table.reserve(region(addr, length)).status().code();
    };
    for (int state = 0; state < 3; ++state) {
        EXPECT_EQ(refused(0x1000, 0x1000), Code::AddressOverlapped);
        EXPECT_EQ(refused(0x1fff, 1), Code::AddressOverlapped);
        EXPECT_EQ(refused(0x0fff, 2), Code::AddressOverlapped);
        EXPECT_EQ(refused(0x0800, 0x4000), Code::AddressOverlapped);
        EXPECT_EQ(refused(0x1400, 0x100), Code::AddressOverlapped);
        if (state == 0) table.commit(pending->id);
        if (state == 1) {
            ASSERT_TRUE(table.beginRemoval(0x1000).isOk());
        }
    }
    EXPECT_TRUE(table.reserve(region(0x0800, 0x800)).isOk());
    EXPECT_TRUE(table.reserve(region(0x2000, 0x800)).isOk());
}

TEST(RegistrationTable, AnIdIsNeverUsedTwice) {
    RegistrationTable table;
    const auto first = registered(table, 0x1000, 0x1000);
    ASSERT_TRUE(table.beginRemoval(0x1000).isOk());
    table.remove(first);
    EXPECT_GT(registered(table, 0x1000, 0x1000), first);
}

TEST(RegistrationTable, WhatATransportDoesNotLetGoOfStaysClaimedAndHiddenUntilItDoes) {
    RegistrationTable table;
    const auto id = registered(table, 0x1000, 0x1000);
    ASSERT_TRUE(table.beginRemoval(0x1000).isOk());
    for (int tries = 0; tries < 3; ++tries) {
        table.hold(id);
        EXPECT_EQ(coverage(table, 0x1000, 1), Code::AddressNotRegistered);
        const Status kept = table.reserve(region(0x1800, 0x1000)).status();
        EXPECT_EQ(kept.code(), Code::AddressOverlapped);
        EXPECT_NE(kept.message().find("a device keeps: call unregisterLocalMemory of it again"), std::string::npos)
            << kept.message();
        const auto again = table.beginRemoval(0x1000);
        ASSERT_TRUE(again.isOk());
        EXPECT_EQ(again->id, id);
        EXPECT_EQ(table.beginRemoval(0x1000).status().code(), Code::BatchBusy);
        if (tries != 1) continue;
        // Its users do not end in time: that does not bring it back.
        table.cancelRemoval(id);
        EXPECT_EQ(coverage(table, 0x1000, 1), Code::AddressNotRegistered);
        ASSERT_TRUE(table.beginRemoval(0x1000).isOk());
    }
    table.remove(id);
    EXPECT_TRUE(table.reserve(region(0x1800, 0x1000)).isOk());
    // One that was refused, and of which something is left.
    const auto refused = table.reserve(region(0x4000, 0x1000));
    ASSERT_TRUE(refused.isOk());
    table.hold(refused->id);
    EXPECT_EQ(table.reserve(region(0x4000, 0x1000)).status().code(), Code::AddressOverlapped);
    ASSERT_TRUE(table.beginRemoval(0x4000).isOk());
    table.remove(refused->id);
    EXPECT_TRUE(table.reserve(region(0x4000, 0x1000)).isOk());
}

TEST(RegistrationTable, RemovalHidesAtOnceAndKeepsTheClaim) {
    RegistrationTable table;
    const auto id = registered(table, 0x1000, 0x1000);
    EXPECT_EQ(table.beginRemoval(0x1001).status().code(), Code::AddressNotRegistered);
    const auto closing = table.beginRemoval(0x1000);
    ASSERT_TRUE(closing.isOk());
    EXPECT_EQ(closing->id, id);
    EXPECT_EQ(coverage(table, 0x1000, 1), Code::AddressNotRegistered);
    EXPECT_EQ(table.beginRemoval(0x1000).status().code(), Code::BatchBusy);
    table.cancelRemoval(id);
    EXPECT_EQ(coverage(table, 0x1000, 1), Code::Ok);
    table.remove(id);  // Visible: must not be forgotten.
    EXPECT_EQ(coverage(table, 0x1000, 1), Code::Ok);
    ASSERT_TRUE(table.beginRemoval(0x1000).isOk());
    table.remove(id);
    EXPECT_EQ(table.beginRemoval(0x1000).status().code(), Code::AddressNotRegistered);
    EXPECT_TRUE(table.reserve(region(0x1000, 0x1000)).isOk());
}

TEST(RegistrationTable, ManyRegionsBeginTheirRemovalInOneVersionUpToTheFirstThatCannot) {
    RegistrationTable table;
    std::vector<std::uint64_t> addrs;
    for (std::uint64_t i = 1; i <= 1000; ++i) {
        registered(table, i * 0x1000, 0x800);
        addrs.push_back(i * 0x1000);
    }
    const std::uint64_t version = table.regions().version();
    std::vector<std::uint64_t> asked(addrs.begin(), addrs.begin() + 500);
    asked.push_back(7);
    asked.push_back(addrs[600]);
    std::vector<Region> begun;
    EXPECT_EQ(table.beginRemoval(asked, begun).code(), Code::AddressNotRegistered);
    ASSERT_EQ(begun.size(), 500u);
    EXPECT_EQ(begun[499].range.addr, addrs[499]);
    EXPECT_EQ(table.regions().version(), version + 1);
    EXPECT_EQ(table.regions().load()->size(), 500u);
    EXPECT_EQ(coverage(table, addrs[499], 1), Code::AddressNotRegistered);
    EXPECT_EQ(coverage(table, addrs[500], 1), Code::Ok);
    EXPECT_EQ(coverage(table, addrs[600], 1), Code::Ok);
    // Twice in one list, it is closing by then.
    begun.clear();
    EXPECT_EQ(table.beginRemoval(std::vector<std::uint64_t>{addrs[700], addrs[700]}, begun).code(), Code::BatchBusy);
    EXPECT_EQ(begun.size(), 1u);
    begun.clear();
    EXPECT_TRUE(table.beginRemoval(std::span<const std::uint64_t>(), begun));
    EXPECT_TRUE(begun.empty());
}

TEST(RegionMap, TouchingRegionsCountAsOne) {
    RegistrationTable table;
    registered(table, 0x1000, 0x1000);
    registered(table, 0x2000, 0x1000);
    registered(table, 0x4000, 0x1000, false);
    registered(table, 0x5000, 0x1000);
    EXPECT_EQ(coverage(table, 0x1800, 0x1000), Code::Ok);
    EXPECT_EQ(coverage(table, 0x1000, 0x2000), Code::Ok);
    EXPECT_EQ(coverage(table, 0x1000, 0x2001), Code::AddressNotRegistered);
    EXPECT_EQ(coverage(table, 0x0fff, 2), Code::AddressNotRegistered);
    EXPECT_EQ(coverage(table, 0x5000, 0x10), Code::Ok);
    EXPECT_EQ(coverage(table, 0x4fff, 2), Code::AccessDenied);
    EXPECT_EQ(coverage(table, 0x4fff, 2, false), Code::Ok);
    EXPECT_EQ(coverage(table, 0x1000, UINT64_MAX), Code::InvalidArgument);
    EXPECT_EQ(coverage(table, 0x9999999, 0), Code::Ok);
}

TEST(RegionMap, WhatIsOfAGpuIsFoundAndBordersOfItAreRefused) {
    RegistrationTable table;
    const auto add = [&](std::uint64_t addr, std::uint64_t allocation) {
        Region made;
        made.range = {addr, 0x1000};
        if (allocation != 0) {
            device::PlacedMemory place;
            place.memory.device = 1;
            place.memory.pieces.push_back({made.range, made.range, allocation});
            made.location = "cuda:1";
            made.place = std::make_shared<const device::PlacedMemory>(std::move(place));
        }
        const auto reserved = table.reserve(made);
        EXPECT_TRUE(reserved);
        table.commit(reserved->id);
    };
    add(0x10000, 0);
    add(0x11000, 7);
    add(0x12000, 7);
    add(0x13000, 8);
    add(0x14000, 0);
    const auto map = table.regions().load();
    EXPECT_EQ(map->devices(), 3u);
    const auto on = [&](std::uint64_t addr, std::uint64_t bytes) {
        const auto found = map->deviceOf({addr, bytes});
        EXPECT_TRUE(found) << found.status().toString();
        return found && *found != nullptr ? (*found)->range.addr : 0;
    };
    EXPECT_EQ(on(0x10000, 0x1000), 0u);
    EXPECT_EQ(on(0x11800, 0x800), 0x11000u);
    EXPECT_EQ(on(0x11800, 0x1000), 0x11000u) << "two regions of one allocation";
    for (const ByteRange& across :
         {ByteRange{0x10800, 0x1000}, {0x12800, 0x1000}, {0x13800, 0x1000}, {0x10000, 0x5000}}) {
        const auto refused = map->deviceOf(across);
        EXPECT_EQ(refused.status().code(), Code::InvalidArgument) << across.toString();
    }
    EXPECT_NE(map->deviceOf({0x13800, 0x1000}).status().message().find("memory of cuda:1"), std::string::npos);
}

/// What was taken before may still be on its way. It must not be touched by a processor because nobody may begin anew.
TEST(RegionMap, WorkThatWasTakenBeforeKnowsThatItsMemoryIsOfAGpuUntilItIsRemoved) {
    for (const std::size_t together : {std::size_t{1}, std::size_t{1000}}) {
        RegistrationTable table;
        std::vector<std::uint64_t> ids;
        const auto at = [](std::size_t index) { return (index + 1) * 0x1000; };
        const auto add = [&](std::size_t index) {
            Region made = region(at(index), 0x1000);
            device::PlacedMemory place;
            place.memory.device = 1;
            place.memory.pieces.push_back({made.range, made.range, index + 1});
            made.place = std::make_shared<const device::PlacedMemory>(std::move(place));
            const auto reserved = table.reserve(made);
            EXPECT_TRUE(reserved);
            ids.push_back(reserved->id);
        };
        for (std::size_t index = 0; index < together; ++index) add(index);
        table.commit(ids);
        ASSERT_TRUE(table.beginRemoval(at(0)));
        const auto isOfAGpu = [&] {
            const auto map = table.regions().load();
            const auto found = map->deviceOf({at(0) + 5, 10});
            EXPECT_TRUE(found);
            return map->devices() == together && found && *found != nullptr && map->findTaken(at(0)) == *found;
        };
        const auto isHidden = [&] {
            const auto map = table.regions().load();
            return coverage(table, at(0), 1) == Code::AddressNotRegistered && map->find(at(0)) == nullptr &&
                   map->size() == together - 1 && map->all().size() == together - 1;
        };
        EXPECT_TRUE(isOfAGpu());
        EXPECT_TRUE(isHidden());
        // A version that is made anew as a whole keeps it.
        const std::size_t before = ids.size();
        for (std::size_t index = 2000; index < 2200; ++index) add(index);
        const std::vector<std::uint64_t> more(ids.begin() + static_cast<std::ptrdiff_t>(before), ids.end());
        table.commit(more);
        EXPECT_EQ(table.regions().load()->devices(), together + 200);
        EXPECT_EQ(coverage(table, at(0), 1), Code::AddressNotRegistered);
        for (std::size_t index = 2000; index < 2200; ++index) {
            ASSERT_TRUE(table.beginRemoval(at(index)));
            table.remove(ids[before + index - 2000]);
        }
        EXPECT_TRUE(isOfAGpu());
        EXPECT_TRUE(isHidden());
        table.cancelRemoval(ids[0]);
        EXPECT_EQ(coverage(table, at(0), 0x1000), Code::Ok);
        EXPECT_EQ(table.regions().load()->size(), together);
        EXPECT_EQ(table.regions().load()->devices(), together);
        ASSERT_TRUE(table.beginRemoval(at(0)));
        table.hold(ids[0]);
        EXPECT_TRUE(isOfAGpu());
        ASSERT_TRUE(table.beginRemoval(at(0)));
        table.remove(ids[0]);
        EXPECT_EQ(table.regions().load()->devices(), together - 1);
        EXPECT_EQ(table.regions().load()->size(), together - 1);
        EXPECT_EQ(table.regions().load()->findTaken(at(0)), nullptr);
    }
}

TEST(RegionMap, ErrorsNameTheRangeAndTheFirstBadAddress) {
    RegistrationTable table;
    registered(table, 0x1000, 0x1000);
    const auto status = table.regions().load()->covers({0x1800, 0x1000}, true);
    EXPECT_NE(status.message().find("[0x1800, 0x2800)"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("0x2000"), std::string::npos) << status.message();
}

TEST(RegionMap, AnOldSnapshotStaysAsItWas) {
    RegistrationTable table;
    registered(table, 0x1000, 0x1000);
    const auto before = table.regions().load();
    registered(table, 0x3000, 0x1000);
    ASSERT_TRUE(table.beginRemoval(0x1000).isOk());
    EXPECT_EQ(before->size(), 1u);
    EXPECT_NE(before->find(0x1000), nullptr);
    EXPECT_EQ(before->find(0x3000), nullptr);
}

/// Compares the table with a plain map through many random registrations and removals.
TEST(RegionMap, AgreesWithAPlainMapThroughManyChanges) {
    RegistrationTable table;
    std::map<std::uint64_t, std::uint64_t> plain;  // addr -> id
    std::mt19937_64 random(7);
    const auto check = [&] {
        const auto map = table.regions().load();
        ASSERT_EQ(map->size(), plain.size());
        const auto all = map->all();
        ASSERT_EQ(all.size(), plain.size());
        std::size_t i = 0;
        for (const auto& [addr, id] : plain) {
            ASSERT_EQ(all[i].id, id);
            ASSERT_EQ(all[i++].range.addr, addr);
            ASSERT_EQ(map->find(addr + 15), map->find(addr));
            ASSERT_EQ(map->find(addr)->id, id);
        }
    };
    for (int step = 0; step < 6000; ++step) {
        const std::uint64_t addr = 16 * (1 + random() % 4000);
        const auto known = plain.find(addr);
        if (known == plain.end()) {
            plain[addr] = registered(table, addr, 16);
        } else if (random() % 2) {
            ASSERT_TRUE(table.beginRemoval(addr).isOk());
            if (random() % 4 == 0) {
                table.cancelRemoval(known->second);
            } else {
                table.remove(known->second);
                plain.erase(known);
            }
        }
        if (step % 200 == 0) check();
    }
    check();
    while (!plain.empty()) {
        ASSERT_TRUE(table.beginRemoval(plain.begin()->first).isOk());
        table.remove(plain.begin()->second);
        plain.erase(plain.begin());
        if (plain.size() % 300 == 0) check();
    }
}

TEST(RegistrationTable, ManyRegionsAppearInOneVersion) {
    RegistrationTable table;
    std::vector<std::uint64_t> ids;
    for (std::uint64_t i = 5000; i > 0; --i) ids.push_back(table.reserve(region(i * 64, 64))->id);
    const auto version = table.regions().version();
    table.commit(ids);
    EXPECT_EQ(table.regions().version(), version + 1);
    EXPECT_EQ(table.regions().load()->size(), 5000u);
    EXPECT_EQ(coverage(table, 64, 5000 * 64), Code::Ok);
    table.commit(ids);  // Again: nothing to do.
    EXPECT_EQ(table.regions().version(), version + 1);
}

TEST(RegistrationTable, ReadersSeeWholeVersionsWhileWritersChangeIt) {
    RegistrationTable table;
    registered(table, 0x100000, 0x1000);
    std::atomic<bool> stop{false};
    std::thread reader([&] {
        SnapshotReader<RegionMap> regions(table.regions());
        while (!stop) {
            EXPECT_TRUE(regions.get().covers({0x100000, 0x1000}, true).isOk());
            EXPECT_LE(regions.get().size(), 33u);
        }
    });
    std::vector<std::thread> writers;
    for (int w = 0; w < 2; ++w)
        writers.emplace_back([&, w] {
            for (std::uint64_t i = 0; i < 400; ++i) {
                const std::uint64_t addr = 0x1000 * (1 + i % 16) + (w ? 0x800 : 0);
                const auto id = registered(table, addr, 0x800);
                ASSERT_TRUE(table.beginRemoval(addr).isOk());
                table.remove(id);
            }
        });
    for (auto& writer : writers) writer.join();
    stop = true;
    reader.join();
    EXPECT_EQ(table.regions().load()->size(), 1u);
}

}  // namespace
}  // namespace troupe
