#include "base/status.h"

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "base/wire_code.h"

namespace troupe {
namespace {

TEST(Status, IsOkUnlessAnErrorIsGiven) {
    const Status status;
    EXPECT_TRUE(status.isOk());
    EXPECT_TRUE(static_cast<bool>(status));
    EXPECT_EQ(status.code(), Code::Ok);
    EXPECT_EQ(status.message(), "");
    EXPECT_EQ(status.toString(), "Ok");
}

TEST(Status, SaysItsCodeAndItsMessage) {
    const Status status(Code::Timeout, "node7:7000 did not answer in 3s");
    EXPECT_FALSE(status.isOk());
    EXPECT_EQ(status.code(), Code::Timeout);
    EXPECT_EQ(status.toString(), "Timeout: node7:7000 did not answer in 3s");
    EXPECT_EQ(Status(Code::Internal, "").toString(), "Internal");
}

TEST(Status, MadeOfOkDropsItsMessage) {
    const Status status(Code::Ok, "ignored");
    EXPECT_TRUE(status.isOk());
    EXPECT_EQ(status.message(), "");
}

TEST(Status, ContextGoesBeforeTheMessageAndKeepsTheCode) {
    const Status status = Status(Code::NotFound, "no such segment").withContext("open a");
    EXPECT_EQ(status.code(), Code::NotFound);
    EXPECT_EQ(status.toString(), "NotFound: open a: no such segment");
    EXPECT_TRUE(Status::ok().withContext("open a").isOk());
}

TEST(Status, AnotherCodeKeepsTheNameOfTheFirstAndNoneIsNamedTwice) {
    const Status lost(Code::ConnectionLost, "the peer hung up");
    EXPECT_EQ(lost.withCode(Code::PeerDown).code(), Code::PeerDown);
    EXPECT_EQ(lost.withCode(Code::PeerDown).toString(), "PeerDown: ConnectionLost: the peer hung up");
    EXPECT_EQ(lost.withCode(Code::ConnectionLost).toString(), "ConnectionLost: the peer hung up");
    EXPECT_TRUE(Status::ok().withCode(Code::PeerDown).isOk());
}

TEST(Status, CopiesShareTheErrorAndOutliveTheOriginal) {
    Status copy;
    {
        const Status original(Code::PeerDown, "gone");
        copy = original;
    }
    EXPECT_EQ(copy.toString(), "PeerDown: gone");
}

TEST(CodeName, NamesEveryCodeOnce) {
    std::set<std::string_view> names;
    for (int code = 0; code <= static_cast<int>(Code::DeviceLost); ++code)
        names.insert(codeName(static_cast<Code>(code)));
    EXPECT_EQ(names.size(), static_cast<std::size_t>(Code::DeviceLost) + 1);
    EXPECT_EQ(names.count("Unknown"), 0u);
}

TEST(CodeFromWire, IsInternalForWhatIsUnknownAndForWhatOnlyThisSideSaysOfItself) {
    EXPECT_EQ(codeFromWire(UINT32_MAX), Code::Internal);
    EXPECT_EQ(codeFromWire(0), Code::Ok);
    EXPECT_EQ(codeFromWire(static_cast<std::uint32_t>(Code::AccessDenied)), Code::AccessDenied);
    EXPECT_EQ(codeFromWire(static_cast<std::uint32_t>(Code::DeviceLost)), Code::DeviceLost);
    EXPECT_EQ(codeFromWire(static_cast<std::uint32_t>(Code::DeviceLost) + 1), Code::Internal);
    for (const Code ours : {Code::Canceled, Code::Timeout, Code::PathReset})
        EXPECT_EQ(codeFromWire(static_cast<std::uint32_t>(ours)), Code::Internal) << codeName(ours);
}

TEST(CodeName, OfANumberFromAnotherVersionIsUnknown) { EXPECT_EQ(codeName(static_cast<Code>(4711)), "Unknown"); }

TEST(Result, HoldsAValue) {
    const Result<std::string> result(std::string("seven"));
    ASSERT_TRUE(result.isOk());
    EXPECT_TRUE(result.status().isOk());
    EXPECT_EQ(*result, "seven");
    EXPECT_EQ(result.value(), "seven");
}

TEST(Result, HoldsTheReasonWhyThereIsNoValue) {
    const Result<std::string> result(Code::AccessDenied, "local only");
    EXPECT_FALSE(result.isOk());
    EXPECT_EQ(result.status().toString(), "AccessDenied: local only");
}

TEST(Result, GivesUpAValueThatCannotBeCopied) {
    Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
    const std::unique_ptr<int> value = std::move(result).value();
    EXPECT_EQ(*value, 7);
}

TEST(Result, PointsIntoItsValue) {
    Result<std::string> result(std::string("four"));
    result->push_back('!');
    EXPECT_EQ(*result, "four!");
}

TEST(ResultDeathTest, ValueOfAnErrorEndsTheProgramAndSaysWhy) {
    const Result<std::string> failed(Code::Timeout, "node7 did not answer");
    Result<std::string> changeable = failed;
    const auto says = "Timeout: node7 did not answer";
    EXPECT_EXIT(static_cast<void>(failed.value().size()), testing::KilledBySignal(SIGABRT), says);
    EXPECT_EXIT(changeable.value().clear(), testing::KilledBySignal(SIGABRT), says);
    EXPECT_EXIT(static_cast<void>(std::move(changeable).value().size()), testing::KilledBySignal(SIGABRT), says);
}

#ifndef NDEBUG
TEST(ResultDeathTest, AssertGuardsTheOperators) {
    Result<std::string> failed(Code::Timeout, "node7 did not answer");
    EXPECT_EXIT(static_cast<void>((*failed).size()), testing::KilledBySignal(SIGABRT), "without a value");
    EXPECT_EXIT(failed->clear(), testing::KilledBySignal(SIGABRT), "without a value");
}
#endif

}  // namespace
}  // namespace troupe
