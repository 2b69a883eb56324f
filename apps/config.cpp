#include "apps/config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/support/arguments.h"
#include "apps/support/session.h"
#include "apps/support/table.h"

namespace troupe::apps {

namespace {

Status showConfig(const CommonOptions& options, Console& console) {
    const auto loader = loadConfig(options);
    if (!loader) return loader.status();
    auto list = nlohmann::json::array();
    Table table({"setting", "value", "unit", "range", "from", "meaning"});
    table.alignLeft();
    for (const auto& key : ConfigLoader::schema()) {
        const std::string value = key.get(loader->config());
        const std::string origin = loader->provenance(key.name);
        list.push_back({{"name", key.name},
                        {"value", value},
                        {"unit", key.unit},
                        {"range", key.range},
                        {"origin", origin},
                        {"description", key.description}});
        table.add({key.name, value, key.unit, key.range, origin, key.description});
    }
    if (options.json)
        fmt::print(console.out, "{}\n", nlohmann::json{{"ok", true}, {"settings", list}}.dump(2));
    else
        fmt::print(console.out, "{}", table.toString());
    return Status::ok();
}

}  // namespace

void addConfigCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<CommonOptions>();
    auto* command = addCommand(app, "config", "Show every setting: value, unit, range, and where the value came from");
    addCommonOptions(*command, *options);
    command->callback([options, &chosen] {
        chosen.name = "config";
        chosen.json = options->json;
        chosen.check = [options] { return loadConfig(*options).status(); };
        chosen.run = [options](Console& console) { return showConfig(*options, console); };
    });
}

}  // namespace troupe::apps
