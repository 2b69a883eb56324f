#include "apps/faults/target.h"

#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/endpoint.h"

namespace troupe::apps::faults {

namespace {

constexpr std::chrono::seconds kKilled{10};

}  // namespace

Status Target::launch() {
    std::vector<std::string> arguments;
    if (options_.network != nullptr) arguments = options_.network->wrapper();
    for (const std::string& each :
         {ownProgramPath(), std::string("serve"), std::string("--json"), std::string("--until-eof"),
          std::string("--size"), std::to_string(options_.size), std::string("--transport"), options_.transport,
          std::string("--metadata"), options_.metadata, std::string("--host"), options_.host, std::string("--port"),
          std::to_string(port_)})
        arguments.push_back(each);
    if (!options_.name.empty()) arguments.insert(arguments.end(), {"--name", options_.name});
    for (const std::string& setting : options_.settings) arguments.insert(arguments.end(), {"--set", setting});
    // What it logs of the faults that are done to it is of no interest.
    auto process = ChildProcess::start(arguments, {.stderr_path = "/dev/null", .environment = {}});
    if (!process) return process.status();
    process_.emplace(std::move(*process));
    return Status::ok();
}

Result<bool> Target::isUp() {
    const auto line = process_->readLine(std::chrono::milliseconds(1));
    if (!line && line.status().code() == Code::Timeout) return false;
    if (!line) return line.status().withContext("the target did not start");
    const auto answer = nlohmann::json::parse(*line, nullptr, false);
    if (!answer.is_object() || !answer.contains("segment") || !answer.contains("addr") || !answer.contains("length"))
        return {Code::Internal, "the target did not start: " + line->substr(0, 200)};
    segment_ = answer["segment"].get<std::string>();
    memory_ = {answer["addr"].get<std::uint64_t>(), answer["length"].get<std::uint64_t>()};
    if (const auto endpoint = Endpoint::parse(segment_); options_.name.empty() && endpoint) port_ = endpoint->port;
    return true;
}

void Target::kill() {
    if (!process_) return;
    process_->signal(SIGKILL);
    static_cast<void>(process_->wait(kKilled));
    process_.reset();
}

void Target::stopWholly() {
    stop();
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(process_->pid()), &info, WSTOPPED) != 0 && errno == EINTR) {
    }
}

Status Target::setFewFiles(bool few) { return setLimit(files_, few); }

Status Target::setFewMemory(bool few) {
#ifdef __SANITIZE_ADDRESS__
    return {Code::Unsupported, "AddressSanitizer ends a process that gets no memory"};
#endif
    // New mappings, and what is made of the ones that there are.
    const Status set = setLimit(address_space_, few);
    return set ? setLimit(data_, few) : set;
}

Status Target::setLimit(Limit& limit, bool few) {
    const auto resource = static_cast<__rlimit_resource>(limit.resource);
    const pid_t pid = process_->pid();
    if (few && ::prlimit(pid, resource, nullptr, &limit.before) != 0)
        return {Code::Internal, std::string("prlimit: ") + std::strerror(errno)};
    const rlimit wanted{few ? limit.few : limit.before.rlim_cur, limit.before.rlim_max};
    if (::prlimit(pid, resource, &wanted, nullptr) != 0)
        return {Code::Internal, std::string("prlimit: ") + std::strerror(errno)};
    return Status::ok();
}

}  // namespace troupe::apps::faults
