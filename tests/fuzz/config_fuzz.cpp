// Settings: a file's text, the environment, single values. What is taken is sound, and no secret is shown.

#include <string>

#include "base/config.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const std::uint8_t kind = input.byte();
    const std::string text(input.text());
    ConfigLoader loader;
    Status status;
    if (kind % 3 == 0) {
        status = loader.loadJson(text, "fuzz");
    } else if (kind % 3 == 1) {
        const std::string variable = "TROUPE_" + text.substr(0, text.find('\0'));
        const char* const environment[] = {variable.c_str(), nullptr};
        status = loader.loadEnvironment(environment);
    } else {
        const auto& schema = ConfigLoader::schema();
        const ConfigKey& key = schema[kind / 3 % schema.size()];
        status = loader.set(key.name, text);
        if (key.unit == "secret" && text.size() > 8)
            fuzz::require(status.message().find(text) == std::string::npos && key.get(loader.config()) != text,
                          "a secret is not shown");
    }
    if (status) {
        // Values may hinder each other, which is looked at once all layers are there.
        const Status sound = checkConfig(loader.config());
        fuzz::require(sound.isOk() || !sound.message().empty(), "a refusal says why");
        for (const ConfigKey& key : ConfigLoader::schema()) {
            if (sound) break;
            Config again = loader.config();
            fuzz::require(key.set(again, key.get(loader.config())).isOk(), "what was taken is in range");
        }
    } else {
        fuzz::require(status.code() == Code::InvalidArgument && !status.message().empty(), "a refusal says why");
        for (const ConfigKey& key : ConfigLoader::schema())
            fuzz::require(loader.provenance(key.name) == "default", "a refused layer leaves nothing behind");
    }
    return 0;
}
