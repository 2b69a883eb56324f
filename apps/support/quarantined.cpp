#include "apps/support/quarantined.h"

#include <fmt/format.h>

#include <chrono>

#include "apps/support/units.h"

namespace troupe::apps {

nlohmann::json toJson(const Quarantined& quarantined, TimePoint now) {
    auto entries = nlohmann::json::array();
    for (const QuarantineEntry& entry : quarantined.entries) {
        const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - entry.since);
        nlohmann::json region;
        if (entry.region.length != 0) region = {{"addr", entry.region.addr}, {"length", entry.region.length}};
        if (!entry.holder.empty()) {
            entries.push_back({{"addr", entry.range.addr},
                               {"length", entry.range.length},
                               {"region", region},
                               {"holder", entry.holder},
                               {"nic", entry.nic},
                               {"ms", age.count()},
                               {"cause", entry.cause.toString()}});
            continue;
        }
        entries.push_back({{"addr", entry.range.addr},
                           {"length", entry.range.length},
                           {"region", region},
                           {"may_still_be", entry.opcode == Opcode::Read ? "written" : "read"},
                           {"segment", entry.segment},
                           {"nic", entry.nic},
                           {"batch", entry.batch},
                           {"task", entry.first_task},
                           {"tasks", entry.task_count},
                           {"ms", age.count()},
                           {"cause", entry.cause.toString()}});
    }
    return {{"bytes", quarantined.bytes},
            {"ever", quarantined.ever},
            {"proven", quarantined.proven},
            {"entries", std::move(entries)}};
}

std::string describe(const Quarantined& quarantined, TimePoint now) {
    if (quarantined.ever == 0) return {};
    std::string text = fmt::format(
        "quarantine: of {} it was not proven in time that nobody touches them any more; of {} since, {} left\n",
        counted(quarantined.ever, "piece of memory", "pieces of memory"), quarantined.proven,
        formatBytes(quarantined.bytes));
    for (const QuarantineEntry& entry : quarantined.entries) text += "  " + entry.toString(now) + "\n";
    return text;
}

}  // namespace troupe::apps
