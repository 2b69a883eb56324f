#include "actors/log_exception.h"

namespace troupe {

void logException(spdlog::logger& log, std::string_view what, const std::exception_ptr& thrown) noexcept {
    const auto say = [&](const char* why) {
        try {
            log.critical("an exception ended {}: {}", what, why);
        } catch (...) {  // NOLINT(bugprone-empty-catch): of the application's sink; see the header.
        }
    };
    try {
        std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
        say(e.what());
    } catch (...) {
        say("it is no std::exception");
    }
}

}  // namespace troupe
