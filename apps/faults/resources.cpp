#include "apps/faults/resources.h"

#include <malloc.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

namespace troupe::apps::faults {

Result<Resources> resourcesOf(pid_t process) {
    const std::string directory = "/proc/" + std::to_string(process);
    // proc(5): the second figure of statm is the resident pages.
    std::ifstream statm(directory + "/statm");
    std::uint64_t size = 0;
    std::uint64_t resident = 0;
    std::error_code error;
    std::filesystem::directory_iterator entry(directory + "/fd", error);
    if (error || !(statm >> size >> resident))
        return {Code::NotFound, "process " + std::to_string(process) + " is gone"};
    Resources resources;
    resources.memory = resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    for (; entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        if (error) break;
        ++resources.descriptors;
    }
    return resources;
}

Result<Resources> ownResources() {
    ::malloc_trim(0);
    return resourcesOf(::getpid());
}

}  // namespace troupe::apps::faults
