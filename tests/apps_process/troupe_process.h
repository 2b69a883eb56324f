#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "apps/support/child_process.h"
#include "base/status.h"

namespace troupe::apps {

/// Long enough for a loaded machine and a sanitizer; a test that waits this long has failed.
inline constexpr std::chrono::seconds kPatience{60};

/// A real `troupe` process.
class TroupeProcess {
  public:
    explicit TroupeProcess(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
        static std::atomic<int> count{0};
        stderr_path_ =
            testing::TempDir() + "troupe_stderr_" + std::to_string(::getpid()) + "_" + std::to_string(count++);
        arguments.insert(arguments.begin(), TROUPE_PROGRAM);
        auto child = ChildProcess::start(arguments, {stderr_path_, std::move(environment)});
        EXPECT_TRUE(child) << child.status().toString();
        if (child) child_.emplace(std::move(child).value());
    }
    TroupeProcess(const TroupeProcess&) = delete;
    TroupeProcess& operator=(const TroupeProcess&) = delete;
    ~TroupeProcess() {
        child_.reset();
        ::unlink(stderr_path_.c_str());
    }

    ChildProcess& child() { return *child_; }
    std::string errors() const {
        std::ifstream file(stderr_path_);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }

  private:
    std::string stderr_path_;
    std::optional<ChildProcess> child_;
};

/// What a finished command left.
struct Outcome {
    int code = -1;
    std::string out;
    std::string err;

    nlohmann::json json() const { return nlohmann::json::parse(out, nullptr, false); }
};

/// "PeerDown: PeerDown" and the like, in whatever words around it; empty: no code is named twice in a row.
inline std::string doubledCode(const std::string& text) {
    for (int code = 1; codeName(static_cast<Code>(code)) != "Unknown"; ++code) {
        const std::string name(codeName(static_cast<Code>(code)));
        const std::string twice = name + ": " + name;
        if (text.find(twice) != std::string::npos) return twice;
    }
    return "";
}

/// Waits for the end of a process.
inline Outcome finish(TroupeProcess& process) {
    Outcome outcome;
    auto out = process.child().readAll(kPatience);
    EXPECT_TRUE(out) << out.status().toString();
    if (out) outcome.out = *out;
    auto code = process.child().wait(kPatience);
    EXPECT_TRUE(code) << code.status().toString();
    if (code) outcome.code = *code;
    outcome.err = process.errors();
    EXPECT_EQ(doubledCode(outcome.out + outcome.err), "") << outcome.out << outcome.err;
    return outcome;
}

inline Outcome runTroupe(std::vector<std::string> arguments, std::vector<std::string> environment = {}) {
    TroupeProcess process(std::move(arguments), std::move(environment));
    return finish(process);
}

/// `troupe serve` with its announcement read.
class Server {
  public:
    explicit Server(const std::string& size, std::vector<std::string> more = {}) : process_(arguments(size, more)) {
        const auto line = process_.child().readLine(kPatience);
        EXPECT_TRUE(line) << line.status().toString() << process_.errors();
        if (line) announcement_ = nlohmann::json::parse(*line, nullptr, false);
    }
    std::string segment() const { return announcement_.value("segment", ""); }
    const nlohmann::json& announcement() const { return announcement_; }
    TroupeProcess& process() { return process_; }

  private:
    static std::vector<std::string> arguments(const std::string& size, const std::vector<std::string>& more) {
        std::vector<std::string> list = {"serve", "--json", "--until-eof", "--size", size};
        list.insert(list.end(), more.begin(), more.end());
        return list;
    }
    TroupeProcess process_;
    nlohmann::json announcement_ = nlohmann::json::object();
};

}  // namespace troupe::apps
