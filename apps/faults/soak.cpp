#include "apps/faults/soak.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/faults/injection.h"
#include "apps/support/units.h"

namespace troupe::apps::faults {

namespace {

constexpr std::chrono::milliseconds kLongestAct{300'000};
constexpr std::chrono::milliseconds kShortestAct{4'000};
constexpr std::size_t kMostViolations = 20;

}  // namespace

Soak::Soak(const Options& options, std::function<bool(const std::string&)> tick)
    : options_(options), tick_(std::move(tick)), random_(options.seed) {}

Result<SoakReport> Soak::run() {
    const TimePoint began = Clock::now();
    const TimePoint end = began + options_.time;
    // So that each kind has its turn, and again, however short it is.
    const auto act = std::clamp(options_.time / 6, kShortestAct, kLongestAct);
    for (std::size_t i = 0; Clock::now() < end && !report_.stopped; ++i) {
        const Kind kind = kKinds[i % kKinds.size()];
        const Status played = play(kind, std::min(Clock::now() + act, end));
        if (played.code() == Code::Canceled) report_.stopped = true;
        if (!played && !report_.stopped) violate(played.toString());
        if (!first_resources_ && report_.acts > 0) {
            const auto resources = ownResources();
            if (!resources) return resources.status();
            first_resources_ = report_.before = *resources;
        }
        if (report_.violations.size() >= kMostViolations) break;
    }
    compareResources();
    report_.took = Clock::now() - began;
    for (auto& [name, kind] : report_.kinds) std::sort(kind.recoveries.begin(), kind.recoveries.end());
    if (report_.tally.wrong > 0) violate(report_.tally.first_wrong);
    if (report_.tally.hung > 0)
        violate(fmt::format("{} had not ended in time", counted(report_.tally.hung, "operation")));
    if (report_.tally.completed == 0 && !report_.stopped) violate("no operation completed");
    return report_;
}

void Soak::violate(const std::string& what) {
    if (report_.violations.size() < kMostViolations) report_.violations.push_back(what);
}

void Soak::compareResources() {
    const auto resources = ownResources();
    if (!resources || !first_resources_) return;
    report_.after = *resources;
    if (resources->descriptors > first_resources_->descriptors)
        violate(fmt::format("{} descriptors of this process became {}", first_resources_->descriptors,
                            resources->descriptors));
    if (resources->memory > first_resources_->memory + kMemorySlack)
        violate(fmt::format("{} of memory of this process became {}", formatBytes(first_resources_->memory),
                            formatBytes(resources->memory)));
}

// --- acts ------------------------------------------------------------------------------------------------------------

Scenario Soak::sceneOf(Kind kind) const {
    Scenario scene;
    scene.name = "soak";
    scene.settings = {"faults.enabled=true", fmt::format("faults.seed={}", options_.seed & 0xffffffff), "tcp.crc=true",
                      "keepalive_interval=200ms"};
    scene.settings.emplace_back(kind == Kind::Network ? "keepalive_timeout=500ms" : "keepalive_timeout=2s");
    if (kind == Kind::Network) scene.needs = {Need::Network};
    if (kind == Kind::Redis) scene.needs = {Need::Redis};
    if (kind == Kind::Processes) scene.bystanders = 2;
    return scene;
}

Status Soak::play(Kind kind, TimePoint until) {
    const Scenario scene = sceneOf(kind);
    const std::string need = scene.needs.empty() ? "" : nameOf(scene.needs.front());
    if (report_.left_out.contains(need)) return Status::ok();
    Stage::Options options = options_.stage;
    options.traffic.seed = random_.next();
    now_playing_ = "the scene is set";
    Stage stage(scene, options, [this] { return tick_(now_playing_); });
    if (const Status open = stage.open(); !open) {
        if (need.empty() || !stage.machineLacks()) return open;
        report_.left_out[need] = open.message();
        return Status::ok();
    }
    ++report_.acts;
    const TimePoint began = Clock::now();
    const Target* bystander = stage.bystander();
    const auto target_before = bystander ? resourcesOf(bystander->pid()) : Result<Resources>(Code::NotFound, "none");
    Status played = playEpisodes(kind, stage, until);
    if (const Status settled = stage.settle(); played && !settled) played = settled;
    report_.transferred += Clock::now() - began;
    report_.tally.add(stage.tally());
    const auto target_after = bystander ? resourcesOf(bystander->pid()) : Result<Resources>(Code::NotFound, "none");
    if (target_before && target_after) {
        const auto growth = [](const Resources& before, const Resources& after) {
            return static_cast<std::int64_t>(after.memory) - static_cast<std::int64_t>(before.memory);
        };
        if (report_.target_after.memory == 0 ||
            growth(*target_before, *target_after) > growth(report_.target_before, report_.target_after)) {
            report_.target_before = *target_before;
            report_.target_after = *target_after;
        }
        if (target_after->memory > target_before->memory + kMemorySlack)
            violate(fmt::format("{} of memory of a target became {}", formatBytes(target_before->memory),
                                formatBytes(target_after->memory)));
        if (target_after->descriptors > target_before->descriptors + kDescriptorSlack)
            violate(fmt::format("{} descriptors of a target became {}", target_before->descriptors,
                                target_after->descriptors));
    }
    return played;
}

Status Soak::carryOut(const Episode& episode, Stage& stage) {
    for (const std::string& line : episode.steps) {
        const auto step = parseStep(line);
        if (!step) return step.status();
        if (const Status done = stage.perform(*step); !done) return done;
    }
    return Status::ok();
}

Status Soak::playEpisodes(Kind kind, Stage& stage, TimePoint until) {
    do {
        const Episode episode = draw(kind);
        now_playing_ = episode.name;
        stage.beginAnother();
        const Status played = carryOut(episode, stage);
        if (!played && stage.machineLacks()) {
            // A module of the kernel, for one; nothing was broken.
            report_.left_out[episode.name] = played.message();
            continue;
        }
        if (!played) return played.withContext(episode.name);
        const auto well = stage.awaitRecovery();
        if (!well) return well.status();
        ++report_.faults;
        SoakReport::Kind& seen = report_.kinds[episode.name];
        ++seen.times;
        if (const auto recovery = stage.recovery()) seen.recoveries.push_back(*recovery);
        if (!*well) return {Code::Timeout, "not well again after " + episode.name};
    } while (Clock::now() < until);
    return Status::ok();
}

// --- what is drawn ---------------------------------------------------------------------------------------------------

std::string Soak::pause(unsigned low_ms, unsigned high_ms) {
    return fmt::format("run {}ms", low_ms + random_.below(high_ms - low_ms + 1));
}

Soak::Episode Soak::draw(Kind kind) {
    const auto broken = [&](const std::string& name, const std::string& fault, const std::string& heal, unsigned low,
                            unsigned high) {
        return Episode{name, {pause(50, 300), "fault " + fault, pause(low, high), "heal " + heal, pause(50, 300)}};
    };
    // Half of the faults are the engine's own.
    if (random_.chance(50)) {
        std::vector<std::string> names = injections();
        std::erase_if(names, [&](const std::string& name) {
            return (name.find("store") != std::string::npos) != (kind == Kind::Redis);
        });
        const std::string& name = names[random_.below(names.size())];
        return broken("inject " + name, "inject " + name, "inject off", 300, 800);
    }
    std::vector<Episode> all;
    switch (kind) {
        case Kind::Processes:
            all = {broken("target killed", "kill", "start", 0, 600),
                   broken("target stopped", "stop", "continue", 50, 2500),
                   broken("target without descriptors", "files few", "files many", 100, 800),
                   broken("target without memory", "memory few", "memory many", 100, 800),
                   broken("storm of deadlines", "storm deadline", "storm off", 100, 800),
                   broken("storm of cancels", "storm cancel", "storm off", 100, 800),
                   broken("memory unregistered", "storm unregister", "storm off", 100, 800),
                   {"short-lived peers", {pause(50, 300), "fault peers 2", "heal start", pause(50, 300)}},
                   {"initiator killed",
                    {pause(50, 300), "fault initiator start", pause(100, 600), "fault initiator kill", pause(50, 200),
                     "heal start", pause(50, 300)}}};
            break;
        case Kind::Network:
            all = {broken("connections reset", "reset on", "reset off", 50, 300),
                   broken("packets dropped", "drop on", "drop off", 50, 2500),
                   broken("link down", "link down", "link up", 50, 2500),
                   broken("packets lost", "loss 5%", "loss 0%", 200, 1500)};
            break;
        case Kind::Redis:
            all = {broken("Redis killed", "redis kill", "redis start", 50, 1500),
                   broken("Redis stopped", "redis stop", "redis continue", 50, 2500),
                   broken("Redis empty", "redis forget", "redis start", 0, 100),
                   broken("Redis read-only", "redis readonly", "redis writable", 50, 1500)};
            break;
    }
    std::erase_if(all, [&](const Episode& episode) { return report_.left_out.contains(episode.name); });
    return all[random_.below(all.size())];
}

}  // namespace troupe::apps::faults
