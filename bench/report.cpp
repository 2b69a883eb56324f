#include "bench/report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

namespace troupe::bench {

namespace {

constexpr const char* kLayout = "{:<28} {:>9} {:<10}  {:<14} {:>9}  {:>7}  {:<9} {}\n";

/// Three to four significant digits, with a suffix for thousands and millions.
std::string number(double value) {
    const double size = std::abs(value);
    if (size >= 1e6) return fmt::format("{:.2f} M", value / 1e6);
    if (size >= 1e4) return fmt::format("{:.1f} k", value / 1e3);
    if (size >= 100) return fmt::format("{:.0f}", value);
    return size >= 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

std::string number(const std::optional<double>& value) { return value ? number(*value) : "-"; }

/// ">= 0.95 x" for a ratio, ">= 3 M" for a value; empty for none.
std::string targetText(const Target& target) {
    using Kind = Target::Kind;
    switch (target.kind) {
        case Kind::None: return {};
        case Kind::RatioAtLeast: return fmt::format(">= {} x", target.bound);
        case Kind::RatioAtMost: return fmt::format("<= {} x", target.bound);
        case Kind::ValueAtLeast: return fmt::format(">= {}", number(target.bound));
        case Kind::ValueAtMost: return fmt::format("<= {}", number(target.bound));
    }
    return {};
}

nlohmann::json orNull(const std::optional<double>& value) {
    return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

nlohmann::json orNull(const std::string& text) { return text.empty() ? nlohmann::json(nullptr) : nlohmann::json(text); }

/// The rows of `before` that none of `outcomes` replaces.
nlohmann::json rowsBeside(const std::vector<Outcome>& outcomes, const KeptRows& before) {
    nlohmann::json kept = nlohmann::json::array();
    for (const std::string& text : before) {
        auto row = nlohmann::json::parse(text, nullptr, false);
        const auto is_new = [&](const Outcome& outcome) { return row.value("name", "") == outcome.name; };
        if (std::none_of(outcomes.begin(), outcomes.end(), is_new)) kept.push_back(std::move(row));
    }
    return kept;
}

}  // namespace

std::string tableHead() {
    return fmt::format(fmt::runtime(kLayout), "row", "Troupe", "unit", "peer", "peer's", "ratio", "target", "met") +
           std::string(104, '-') + "\n";
}

std::string tableLine(const Outcome& outcome) {
    const std::string ratio = outcome.ratio ? fmt::format("{:.2f} x", *outcome.ratio) : "";
    const char* met = !outcome.met ? "" : *outcome.met ? "yes" : "NO";
    std::string line =
        fmt::format(fmt::runtime(kLayout), outcome.name, number(outcome.value), outcome.unit, outcome.peer,
                    outcome.peer.empty() ? "" : number(outcome.peer_value), ratio, targetText(outcome.target), met);
    while (line.size() >= 2 && line[line.size() - 2] == ' ') line.erase(line.size() - 2, 1);
    return line;
}

Result<KeptRows> readRows(const std::string& path) {
    std::ifstream file(path);
    if (!file) return Status(Code::NotFound, path + " cannot be read");
    const auto before = nlohmann::json::parse(file, nullptr, false);
    KeptRows rows;
    bool good = before.is_array();
    for (const auto& row : good ? before : nlohmann::json::array()) {
        good = good && row.is_object() && row.contains("name") && row["name"].is_string();
        if (good) rows.push_back(row.dump());
    }
    if (!good) return Status(Code::InvalidArgument, path + " is no list of rows that --out wrote");
    return rows;
}

Result<KeptRows> rowsOfOut(const std::string& path) {
    std::error_code error;
    const bool is_there = std::filesystem::exists(path, error);
    if (std::filesystem::is_directory(path, error)) return Status(Code::InvalidArgument, path + " is a folder");
    const auto folder = std::filesystem::absolute(path, error).parent_path();
    if (!is_there && !std::filesystem::is_directory(folder, error)) std::filesystem::create_directories(folder, error);
    if (error) return Status(Code::InvalidArgument, fmt::format("{} cannot be written: {}", path, error.message()));
    // What is not there is made in its folder.
    if (::access(is_there ? path.c_str() : folder.c_str(), W_OK) != 0)
        return Status(Code::InvalidArgument, fmt::format("{} cannot be written: {}", path, std::strerror(errno)));
    if (!std::filesystem::is_regular_file(path, error) || std::filesystem::file_size(path, error) == 0)
        return KeptRows();
    auto rows = readRows(path);
    if (!rows) return Status(Code::InvalidArgument, rows.status().message() + "; give another file, or remove it");
    return rows;
}

Status writeJson(const std::vector<Outcome>& outcomes, const std::string& path, const KeptRows& keep) {
    nlohmann::json list = rowsBeside(outcomes, keep);
    for (const auto& outcome : outcomes) {
        nlohmann::json row = {{"name", outcome.name},
                              {"value", orNull(outcome.value)},
                              {"unit", outcome.unit},
                              {"peer", orNull(outcome.peer)},
                              {"peer_value", orNull(outcome.peer_value)},
                              {"ratio", orNull(outcome.ratio)},
                              {"target", orNull(targetText(outcome.target))},
                              {"met", outcome.met ? nlohmann::json(*outcome.met) : nlohmann::json(nullptr)}};
        if (!outcome.error.empty()) row["error"] = outcome.error;
        list.push_back(std::move(row));
    }
    const auto folder = std::filesystem::path(path).parent_path();
    std::error_code ignored;  // A folder that cannot be made shows as a file that cannot be opened.
    if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
    std::ofstream file(path);
    file << list.dump(2) << "\n";
    file.close();
    if (!file) return {Code::ResourceExhausted, path + " cannot be written"};
    return Status::ok();
}

}  // namespace troupe::bench
