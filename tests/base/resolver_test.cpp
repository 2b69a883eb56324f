#include "base/resolver.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <optional>
#include <thread>

#include "tests/support/test_reactor.h"

namespace {

std::atomic<int> freed{0};     ///< Answers of glibc's that were given back.
std::atomic<int> canceled{0};  ///< Queries that were taken back before it began with them.

template <class Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// In the place of glibc's, which they call.
void freeaddrinfo(addrinfo* answer) noexcept {
    ++freed;
    next<void(addrinfo*)>("freeaddrinfo")(answer);
}
int gai_cancel(gaicb* query) noexcept {
    const int result = next<int(gaicb*)>("gai_cancel")(query);
    if (result == EAI_CANCELED) ++canceled;
    return result;
}

namespace troupe::test {
namespace {

class Names : public testing::Test {
  protected:
    /// Resolves and waits for the answer.
    Result<std::string> resolve(const std::string& host, Duration within = std::chrono::seconds(30)) {
        std::optional<Result<std::string>> answer;
        resolver_->resolve(host, reactor_.now() + within, [&](Result<std::string> result) {
            EXPECT_FALSE(answer) << "answered twice";
            answer.emplace(std::move(result));
        });
        EXPECT_TRUE(reactor_.runUntil([&] { return answer.has_value(); }, std::chrono::seconds(60)));
        return answer ? *answer : Result<std::string>(Code::Internal, "no answer");
    }
    TestReactor reactor_;
    std::optional<Resolver> resolver_{std::in_place, reactor_};
};

TEST_F(Names, NumericHostsAreAnsweredAtOnce) {
    for (const std::string host : {"127.0.0.1", "::1", "10.1.2.3", "fe80::1"}) {
        std::string answer;
        resolver_->resolve(host, reactor_.now(), [&](const Result<std::string>& result) { answer = *result; });
        EXPECT_EQ(answer, host);
    }
    EXPECT_EQ(reactor_.timerCount(), 0u);
}

TEST_F(Names, TheOneWhoIsToldMayEndTheResolver) {
    int told = 0;
    for (int i = 0; i < 5; ++i)
        resolver_->resolve("localhost", reactor_.now() + std::chrono::seconds(30), [&](const Result<std::string>&) {
            ++told;
            resolver_.reset();
        });
    EXPECT_TRUE(reactor_.runUntil([&] { return told != 0; }, std::chrono::seconds(60)));
    reactor_.runIdle();
    EXPECT_EQ(told, 1);
    EXPECT_TRUE(reactor_.runUntil([&] { return reactor_.timerCount() == 0; }, std::chrono::seconds(60)));
}

TEST_F(Names, LocalhostIsALoopbackAddress) {
    const auto answer = resolve("localhost");
    ASSERT_TRUE(answer) << answer.status().toString();
    EXPECT_TRUE(*answer == "127.0.0.1" || *answer == "::1") << *answer;
    EXPECT_EQ(reactor_.timerCount(), 0u) << "nothing is open, so nothing is looked at";
}

TEST_F(Names, AnUnknownNameIsNotFoundOrLate) {
    const auto answer = resolve("no-such-host.invalid", std::chrono::seconds(20));
    ASSERT_FALSE(answer);
    EXPECT_TRUE(answer.status().code() == Code::NotFound || answer.status().code() == Code::Timeout)
        << answer.status().toString();
    EXPECT_NE(answer.status().message().find("no-such-host.invalid"), std::string::npos);
}

TEST_F(Names, ManyAtOnceAreEachAnsweredOnce) {
    std::vector<int> answers(50, 0);
    for (std::size_t i = 0; i < answers.size(); ++i)
        resolver_->resolve("localhost", reactor_.now() + std::chrono::seconds(30),
                           [&answers, i](const Result<std::string>&) { ++answers[i]; });
    ASSERT_TRUE(reactor_.runUntil([&] { return std::count(answers.begin(), answers.end(), 1) == 50; }));
    reactor_.runIdle();
    EXPECT_EQ(std::count(answers.begin(), answers.end(), 1), 50);
}

TEST_F(Names, ACallbackMayResolveAgain) {
    int depth = 0;
    std::function<void(const Result<std::string>&)> again = [&](const Result<std::string>&) {
        if (++depth < 3) resolver_->resolve("localhost", reactor_.now() + std::chrono::seconds(30), again);
    };
    resolver_->resolve("localhost", reactor_.now() + std::chrono::seconds(30), again);
    EXPECT_TRUE(reactor_.runUntil([&] { return depth == 3; }));
}

TEST_F(Names, NothingComesAfterItsEnd) {
    bool called = false;
    resolver_->resolve("no-such-host.invalid", kForever, [&](const Result<std::string>&) { called = true; });
    resolver_->resolve("localhost", kForever, [&](const Result<std::string>&) { called = true; });
    resolver_.reset();
    reactor_.runUntil([] { return false; }, std::chrono::milliseconds(50));
    EXPECT_FALSE(called);
    EXPECT_TRUE(reactor_.runUntil([&] { return reactor_.timerCount() == 0; }, std::chrono::seconds(60)));
}

TEST_F(Names, EveryAnswerThatNobodyHearsIsGivenBack) {
    freed = 0;
    canceled = 0;
    const auto overFor = [&](int queries) {
        return reactor_.runUntil([&] { return freed + canceled == queries; }, std::chrono::seconds(60));
    };
    // Mostly glibc is done with it before the end, and nobody has looked.
    resolver_->resolve("localhost", kForever, [](const Result<std::string>&) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    resolver_.reset();
    EXPECT_TRUE(overFor(1));
    // And mostly it is at work.
    resolver_.emplace(reactor_).resolve("localhost", kForever, [](const Result<std::string>&) {});
    resolver_.reset();
    EXPECT_TRUE(overFor(2));
    // Its time was over before it was looked at.
    bool told = false;
    resolver_.emplace(reactor_).resolve("localhost", reactor_.now(), [&](const Result<std::string>&) { told = true; });
    EXPECT_TRUE(reactor_.runUntil([&] { return told; }));
    EXPECT_TRUE(overFor(3));
    EXPECT_TRUE(reactor_.runUntil([&] { return reactor_.timerCount() == 0; }, std::chrono::seconds(60)));
}

}  // namespace
}  // namespace troupe::test
