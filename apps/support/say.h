#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace troupe::apps {

/// Writes what is formatted, and goes on whatever becomes of it. For everything but results: a standard error that is
/// full or closed must not end a command (fmt::print throws there). `to` may be null: then nothing is said.
template <class... Args>
void say(std::FILE* to, fmt::format_string<Args...> format, Args&&... args) {
    if (to == nullptr) return;
    const std::string text = fmt::format(format, std::forward<Args>(args)...);
    static_cast<void>(std::fwrite(text.data(), 1, text.size(), to));
    static_cast<void>(std::fflush(to));
}

/// Opens /dev/null for each of the descriptors 0 to 2 that is closed, or a socket would become what others read and
/// write as standard input, output and error. Results still go nowhere with an error: what stands for a closed standard
/// output cannot be written. To be called first.
void openStandardDescriptors();

}  // namespace troupe::apps
