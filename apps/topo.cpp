#include "apps/topo.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "apps/support/arguments.h"
#include "apps/support/session.h"
#include "apps/support/table.h"

namespace troupe::apps {

namespace {

Status showTopology(const CommonOptions& options, Console& console) {
    const auto matrix = TransferEngine().getLocalTopology();
    if (options.json) {
        // The form that segment descriptors have: location -> [[preferred], [available]].
        auto object = nlohmann::json::object();
        for (const auto& [location, devices] : matrix)
            object[location] = nlohmann::json::array({devices.first, devices.second});
        fmt::print(console.out, "{}\n", nlohmann::json{{"priority_matrix", object}}.dump(2));
        return Status::ok();
    }
    Table table({"location", "preferred", "available"});
    table.alignLeft();
    for (const auto& [location, devices] : matrix)
        table.add({location, fmt::format("{}", fmt::join(devices.first, " ")),
                   fmt::format("{}", fmt::join(devices.second, " "))});
    fmt::print(console.out, "{}", table.toString());
    if (matrix.empty()) fmt::print(console.out, "no devices but the ordinary network of this machine\n");
    return Status::ok();
}

}  // namespace

void addTopoCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<CommonOptions>();
    auto* command = addCommand(app, "topo", "Show which devices of this machine serve which memory");
    addCommonOptions(*command, *options);
    command->callback([options, &chosen] {
        chosen.name = "topo";
        chosen.json = options->json;
        chosen.check = [options] { return loadConfig(*options).status(); };
        chosen.run = [options](Console& console) { return showTopology(*options, console); };
    });
}

}  // namespace troupe::apps
