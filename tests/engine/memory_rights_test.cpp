// What the mappings of registered memory allow is found out before a peer's request could end the process.

#include "engine/memory_rights.h"

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/engine_pair.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;

constexpr std::size_t kPage = 4096;

void protect(std::byte* addr, std::size_t length, int rights) { ASSERT_EQ(::mprotect(addr, length, rights), 0); }

/// Pages of a file in memory.
class FilePages {
  public:
    explicit FilePages(std::size_t bytes) : file_(::memfd_create("troupe-test", MFD_CLOEXEC)), bytes_(bytes) {
        resize(bytes);
        data_ = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
    }
    FilePages(const FilePages&) = delete;
    FilePages& operator=(const FilePages&) = delete;
    ~FilePages() { ::munmap(data_, bytes_); }
    void resize(std::size_t bytes) { ASSERT_EQ(::ftruncate(file_.get(), static_cast<off_t>(bytes)), 0); }
    std::byte* data() const { return data_; }

  private:
    UniqueFd file_;
    std::size_t bytes_;
    std::byte* data_ = nullptr;
};

class Rights : public testing::TestWithParam<MemoryRights::Ask> {
  protected:
    Result<bool> ask(const std::byte* addr, std::size_t length) {
        return MemoryRights(GetParam()).areAllWritable({reinterpret_cast<std::uint64_t>(addr), length});
    }
    void expectWritable(const std::byte* addr, std::size_t length, bool writable) {
        const auto answer = ask(addr, length);
        ASSERT_TRUE(answer) << answer.status().toString();
        EXPECT_EQ(*answer, writable);
    }
    void expectRefused(const std::byte* addr, std::size_t length, const std::byte* bad, const char* why) {
        const auto answer = ask(addr, length);
        ASSERT_FALSE(answer);
        EXPECT_EQ(answer.status().code(), Code::InvalidArgument);
        EXPECT_THAT(answer.status().message(),
                    HasSubstr("at " + hexAddress(reinterpret_cast<std::uint64_t>(bad)) + " " + why));
    }
    Buffer memory_{16 * kPage};
    std::byte* at(std::size_t page) { return memory_.data() + page * kPage; }
};

INSTANTIATE_TEST_SUITE_P(HowTheKernelIsAsked, Rights,
                         testing::Values(MemoryRights::Ask::AsItCan, MemoryRights::Ask::List),
                         [](const auto& each) { return each.param == MemoryRights::Ask::List ? "List" : "AsItCan"; });

TEST_P(Rights, AStretchThatMayNotBeTouchedIsRefusedWhereverItLies) {
    const char* const why = "may be neither read nor written";
    expectWritable(at(0), 16 * kPage, true);
    protect(at(4), 2 * kPage, PROT_NONE);
    expectRefused(at(0), 16 * kPage, at(4), why);
    expectRefused(at(4) + 7, 1, at(4) + 7, why);
    expectRefused(at(5), 8 * kPage, at(5), why);
    expectWritable(at(0), 4 * kPage, true);
    expectWritable(at(6), 10 * kPage, true);
    protect(at(0), 16 * kPage, PROT_NONE);
    expectRefused(at(0), 16 * kPage, at(0), why);
}

TEST_P(Rights, AStretchInTheMiddleThatIsReadOnlyMakesAllOfItReadOnly) {
    protect(at(8), kPage, PROT_READ);
    expectWritable(at(0), 16 * kPage, false);
    expectWritable(at(8) + 10, 10, false);
    expectWritable(at(0), 8 * kPage, true);
    expectWritable(at(9), 7 * kPage, true);
}

TEST_P(Rights, WhatLiesBehindTheEndOfItsFileIsRefused) {
    FilePages pages(8 * kPage);
    expectWritable(pages.data(), 8 * kPage, true);
    pages.resize(3 * kPage - 100);
    expectWritable(pages.data(), 3 * kPage, true);
    const char* const why = "lies behind the end of its file";
    expectRefused(pages.data(), 8 * kPage, pages.data() + 3 * kPage, why);
    expectRefused(pages.data() + 2 * kPage + 1, kPage, pages.data() + 3 * kPage, why);
    expectRefused(pages.data() + 7 * kPage + 5, 9, pages.data() + 7 * kPage + 5, why);
    pages.resize(0);
    expectRefused(pages.data() + 1, kPage, pages.data() + 1, why);
}

TEST_P(Rights, OneObjectAnswersForMany) {
    protect(at(4), kPage, PROT_READ);
    protect(at(8), kPage, PROT_NONE);
    MemoryRights rights(GetParam());
    for (std::size_t i = 0; i < 16; ++i) {
        const auto answer = rights.areAllWritable({reinterpret_cast<std::uint64_t>(at(i)), kPage});
        EXPECT_EQ(answer.isOk(), i != 8) << i;
        if (answer) {
            EXPECT_EQ(*answer, i != 4) << i;
        }
    }
}

TEST(RightsOfRegions, AreFoundOutByEveryWayToRegister) {
    const auto engine = startEngine();
    Buffer memory(16 * kPage);
    Buffer sound(kPage);
    protect(memory.data() + 4 * kPage, kPage, PROT_NONE);
    const std::string bad = hexAddress(memory.address(4 * kPage));
    for (const Status& refused :
         {engine->registerLocalMemory(memory.data(), memory.size()),
          engine->registerLocalMemoryBatch({{sound.data(), kPage}, {memory.data(), memory.size()}})}) {
        expectCode(refused, Code::InvalidArgument);
        EXPECT_THAT(refused.message(), HasSubstr(bad));
    }
    EXPECT_TRUE(engine->registerLocalMemory(sound.data(), kPage)) << "nothing stays behind";
    // One read-only page: all of it can be read, and nothing of it is written by its owner's own reads.
    protect(memory.data() + 4 * kPage, kPage, PROT_READ);
    ASSERT_TRUE(engine->registerLocalMemory(memory.data(), memory.size()));
    const auto batch = engine->allocateBatchID(1);
    ASSERT_TRUE(batch);
    expectCode(engine->submitTransfer(*batch,
                                      {makeRequest(Opcode::Read, kLocalSegmentID, memory.data(), sound.address(), 64)}),
               Code::AccessDenied);
    EXPECT_TRUE(engine->freeBatchID(*batch));
}

}  // namespace
}  // namespace troupe::test
