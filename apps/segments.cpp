#include "apps/segments.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <map>

#include <nlohmann/json.hpp>

#include "apps/support/arguments.h"
#include "apps/support/say.h"
#include "apps/support/session.h"
#include "apps/support/store_session.h"
#include "apps/support/table.h"
#include "apps/support/units.h"
#include "base/endpoint.h"
#include "base/printable.h"
#include "base/unique_fd.h"
#include "engine/store_factory.h"

namespace troupe::apps {

namespace {

constexpr auto kListTimeout = std::chrono::seconds(30);
constexpr auto kProbeTimeout = std::chrono::seconds(1);
// With --watch: events come by themselves; a lease that ends without one is looked for this often, and when the next
// ends, but no sooner than the shorter of the two.
constexpr auto kLongestPause = std::chrono::seconds(3);
constexpr auto kShortestPause = std::chrono::milliseconds(200);
// With --prune: beyond the time in which a record is due to be renewed, for a busy owner; what a lease's time may
// differ between two looks without a renewal, which adds a third of it; and the longest wait.
constexpr auto kRenewalMargin = std::chrono::seconds(1);
constexpr auto kNoise = std::chrono::milliseconds(200);
constexpr auto kLongestSecondLook = std::chrono::seconds(60);

struct SegmentsOptions {
    CommonOptions common;
    std::string metadata;
    bool watch = false;
    bool prune = false;
};

struct Shown {
    std::string name, incarnation, error, signature;
    const char* trouble = "unreadable";  ///< What kind of error.
    std::uint64_t version = 0, regions = 0, bytes = 0, record_bytes = 0;
    std::string control;
    std::vector<std::string> transports;
    std::optional<double> age, lease;  ///< Seconds.
};

/// Seconds since a descriptor was made, by its timestamp (UTC, of the owner's clock).
std::optional<double> ageOf(const std::string& timestamp) {
    std::tm broken{};
    if (::strptime(timestamp.c_str(), "%Y-%m-%d %H:%M:%S", &broken) == nullptr) return std::nullopt;
    return std::max(0.0, std::difftime(std::time(nullptr), ::timegm(&broken)));
}

const char* troubleOf(const Status& status) { return status.code() == Code::AccessDenied ? "refused" : "unreadable"; }

Shown show(const StoredSegment& stored) {
    Shown shown;
    shown.name = stored.name;
    shown.record_bytes = stored.bytes;
    shown.signature = stored.signature;
    if (stored.lease) shown.lease = std::chrono::duration<double>(*stored.lease).count();
    if (!stored.desc) {
        shown.error = stored.desc.status().message();
        shown.trouble = troubleOf(stored.desc.status());
        return shown;
    }
    const SegmentDesc& desc = *stored.desc;
    if (!desc.incarnation.isNull()) shown.incarnation = desc.incarnation.toString();
    shown.version = desc.version;
    shown.control = desc.control.host.empty() ? "" : desc.control.toString();
    shown.transports = desc.transports.empty() ? std::vector<std::string>{desc.protocol} : desc.transports;
    // Not among them in the record, where others than Troupe look for a wire; who shares the host finds the socket.
    if (!desc.host_socket.empty()) shown.transports.insert(shown.transports.begin(), "host");
    // What a client has for itself is nobody else's business.
    for (const BufferDesc& buffer : desc.buffers) {
        if (!buffer.remote_accessible) continue;
        ++shown.regions;
        shown.bytes += buffer.length;
    }
    shown.age = ageOf(desc.timestamp);
    return shown;
}

nlohmann::json toJson(const Shown& shown) {
    nlohmann::json json = {{"name", shown.name},
                           {"record_bytes", shown.record_bytes},
                           {"lease_seconds", nullptr},
                           {"signature", shown.signature}};
    if (shown.lease) json["lease_seconds"] = *shown.lease;
    if (!shown.error.empty()) {
        json["error"] = shown.error;
        return json;
    }
    json["incarnation"] = shown.incarnation;
    json["version"] = shown.version;
    json["control"] = shown.control;
    json["transports"] = shown.transports;
    json["regions"] = shown.regions;
    json["bytes"] = shown.bytes;
    json["age_seconds"] = nullptr;
    if (shown.age) json["age_seconds"] = *shown.age;
    return json;
}

std::string dump(const nlohmann::json& json, int indent) {
    return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string secondsOr(const std::optional<double>& seconds, const char* none) {
    return seconds ? fmt::format("{:.0f} s", *seconds) : none;
}

/// Of the signature: "no" is no error where there is no cluster key.
std::string signedWord(const Shown& shown) {
    if (shown.signature == "good") return "yes";
    if (shown.signature == "none") return "no";
    return shown.signature.empty() ? "-" : shown.signature;
}

Table tableOf(const std::vector<Shown>& all) {
    Table table({"name", "incarnation", "age", "lease", "transports", "regions", "bytes", "signed", "control"});
    table.alignLeft();
    for (const Shown& each : all) {
        if (!each.error.empty())
            table.add({printable(each.name), "-", "-", secondsOr(each.lease, "none"), "-", "-", "-", signedWord(each),
                       std::string(each.trouble) + ": " + printable(each.error)});
        else
            table.add({printable(each.name), each.incarnation.empty() ? "-" : each.incarnation,
                       secondsOr(each.age, "-"), secondsOr(each.lease, "none"),
                       printable(fmt::format("{}", fmt::join(each.transports, " "))), std::to_string(each.regions),
                       formatBytes(each.bytes), signedWord(each), printable(each.control)});
    }
    return table;
}

// --- list --------------------------------------------------------------------------------------------------------

Result<std::vector<Shown>> readAll(StoreSession& session) {
    const auto stored = session.list(kListTimeout);
    if (!stored) return stored.status();
    std::vector<Shown> all;
    for (const StoredSegment& each : *stored) all.push_back(show(each));
    return all;
}

Status listOnce(StoreSession& session, bool json, Console& console) {
    const auto all = readAll(session);
    if (!all) return all.status();
    if (json) {
        auto list = nlohmann::json::array();
        for (const Shown& each : *all) list.push_back(toJson(each));
        fmt::print(console.out, "{}\n", dump({{"ok", true}, {"segments", list}}, 2));
    } else if (all->empty()) {
        fmt::print(console.out, "no segments\n");
    } else {
        fmt::print(console.out, "{}", tableOf(*all).toString());
    }
    return Status::ok();
}

// --- watch -------------------------------------------------------------------------------------------------------

/// Prints what changed between two looks.
class Follower {
  public:
    Follower(bool json, std::FILE* out) : json_(json), out_(out) {}

    void update(const std::vector<Shown>& all) {
        std::map<std::string, Shown> now;
        for (const Shown& each : all) now.emplace(each.name, each);
        for (const auto& [name, old] : seen_)
            if (now.count(name) == 0) tell("gone", old);
        for (const auto& [name, fresh] : now) {
            const auto old = seen_.find(name);
            if (old == seen_.end())
                tell("new", fresh);
            else if (old->second.incarnation != fresh.incarnation)
                tell("restarted", fresh);
            else if (old->second.version != fresh.version || old->second.error != fresh.error)
                tell("changed", fresh);
        }
        seen_ = std::move(now);
    }

  private:
    void tell(const char* what, const Shown& shown) const {
        if (json_) {
            auto line = toJson(shown);
            line["event"] = what;
            fmt::print(out_, "{}\n", dump(line, -1));
        } else if (!shown.error.empty()) {
            fmt::print(out_, "{:<9} {}  {}: {}\n", what, printable(shown.name), shown.trouble, printable(shown.error));
        } else {
            fmt::print(out_, "{:<9} {}  incarnation {}  version {}  {}, {}  {}\n", what, printable(shown.name),
                       shown.incarnation, shown.version, counted(shown.regions, "region"), formatBytes(shown.bytes),
                       printable(shown.control));
        }
    }

    const bool json_;
    std::FILE* const out_;
    std::map<std::string, Shown> seen_;
};

Duration pauseUntilNextLease(const std::vector<Shown>& all) {
    double next = std::chrono::duration<double>(kLongestPause).count();
    for (const Shown& each : all)
        if (each.lease) next = std::min(next, *each.lease);
    return std::max<Duration>(kShortestPause,
                              std::chrono::duration_cast<Duration>(std::chrono::duration<double>(next + 0.05)));
}

Status follow(StoreSession& session, bool json, Console& console) {
    // Shared with the loop, which may ring it until the session ends.
    const auto bell = std::make_shared<UniqueFd>(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!*bell) return errnoStatus(Code::ResourceExhausted, "eventfd", errno);
    session.watch([bell](const SegmentEvent&) {
        const std::uint64_t one = 1;
        static_cast<void>(!::write(bell->get(), &one, sizeof one));
    });
    Follower follower(json, console.out);
    Code trouble = Code::Ok;
    while (!console.stop->requested()) {
        const auto all = readAll(session);
        if (all) follower.update(*all);
        if (all.status().code() != trouble && console.progress != nullptr)
            say(console.progress, "{}\n", all ? "the store is back" : "the store is away: " + all.status().toString());
        trouble = all.status().code();
        if (auto status = flushOutput(console.out); !status) return status;
        const Duration pause = all ? pauseUntilNextLease(*all) : Duration(std::chrono::seconds(1));
        pollfd entries[] = {{console.stop->fd(), POLLIN, 0}, {bell->get(), POLLIN, 0}};
        ::poll(entries, 2, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(pause).count()));
        std::uint64_t rung = 0;
        static_cast<void>(!::read(bell->get(), &rung, sizeof rung));
    }
    return Status::ok();
}

// --- prune -------------------------------------------------------------------------------------------------------

/// Says what became of a record, at once or in one object at the end.
class PruneReport {
  public:
    PruneReport(bool json, std::FILE* out) : json_(json), out_(out) {}
    void kept(const std::string& name, const std::string& why) { say(kept_, "kept   ", name, why); }
    void removed(const std::string& name, const std::string& why) { say(removed_, "removed", name, why); }
    /// `ok`: nothing failed whose error is said after this.
    void end(bool ok) const {
        if (json_ && ok) fmt::print(out_, "{}\n", dump({{"ok", true}, {"removed", removed_}, {"kept", kept_}}, 2));
    }
    nlohmann::json toJson() const { return {{"removed", removed_}, {"kept", kept_}}; }

  private:
    void say(nlohmann::json& list, const char* what, const std::string& name, const std::string& why) {
        list.push_back({{"name", name}, {"why", why}});
        if (!json_) fmt::print(out_, "{} {}: {}\n", what, printable(name), printable(why));
    }

    const bool json_;
    std::FILE* const out_;
    nlohmann::json kept_ = nlohmann::json::array();
    nlohmann::json removed_ = nlohmann::json::array();
};

/// A record whose owner's control port says that the owner is dead.
struct Suspect {
    const StoredSegment* record;
    std::string why;
};

/// The time in which an owner that lives renews the record's lease. It does so when a third of the lease has passed,
/// and what is left of one is no longer than the whole. Without a lease, it would get one.
Duration renewalWithin(const StoredSegment& record, const Config& config) {
    return record.lease.value_or(config.lease_ttl) / 3 + kRenewalMargin;
}

/// Those who renewed their records after all are alive behind something that refuses connections for them: a firewall,
/// or another network namespace. Those suspects stay that did not, within the time in which they would have.
Status lookAgain(StoreSession& session, const Config& config, std::vector<Suspect>& suspects, PruneReport& report,
                 Console& console) {
    const TimePoint first = Clock::now();
    Duration pause{};
    std::vector<Suspect> asked;
    for (const Suspect& suspect : suspects) {
        const Duration within = renewalWithin(*suspect.record, config);
        if (within > kLongestSecondLook) {
            report.kept(suspect.record->name,
                        "not proven dead: " + suspect.why + "; its lease is too long to wait whether it is renewed");
            continue;
        }
        pause = std::max(pause, within);
        asked.push_back(suspect);
    }
    suspects.clear();
    if (asked.empty()) return Status::ok();
    if (console.progress != nullptr)
        say(console.progress, "looking for {:.0f} s whether {} renewed\n", std::chrono::duration<double>(pause).count(),
            asked.size() == 1 ? std::string("1 record is") : fmt::format("{} records are", asked.size()));
    pollfd stop{console.stop->fd(), POLLIN, 0};
    ::poll(&stop, 1, static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(pause).count()));
    if (console.stop->requested()) return {Code::Canceled, "stopped before anything was removed"};
    const Duration passed = Clock::now() - first;
    const auto stored = session.list(kListTimeout);
    if (!stored) return stored.status();
    for (const Suspect& suspect : asked) {
        const StoredSegment& before = *suspect.record;
        const auto after = std::find_if(stored->begin(), stored->end(),
                                        [&](const StoredSegment& each) { return each.name == before.name; });
        const bool same = after != stored->end() && after->desc &&
                          after->desc->incarnation == before.desc->incarnation &&
                          after->desc->version == before.desc->version;
        const bool renewed = same && after->lease && (!before.lease || *after->lease + passed > *before.lease + kNoise);
        if (after == stored->end())
            report.kept(before.name, "its lease has ended, or its owner has removed it");
        else if (!same || renewed || (before.lease && !after->lease))
            report.kept(before.name, "alive: its record was renewed, although " + suspect.why);
        else
            suspects.push_back(suspect);
    }
    return Status::ok();
}

Status prune(StoreSession& session, const Config& config, bool json, Console& console) {
    const auto stored = session.list(kListTimeout);
    if (!stored) return stored.status();
    std::vector<const SegmentDesc*> asked;
    std::vector<const StoredSegment*> records;
    PruneReport report(json, console.out);
    for (const StoredSegment& each : *stored) {
        if (!each.desc) {
            report.kept(each.name, std::string(troubleOf(each.desc.status())) + ": " + each.desc.status().message());
        } else if (each.desc->name == each.name && !each.desc->incarnation.isNull()) {
            asked.push_back(&*each.desc);
            records.push_back(&each);
        } else {
            report.kept(each.name, "no record that Troupe wrote, so nobody can be asked");
        }
    }
    const auto findings = session.probe(asked, kProbeTimeout);
    std::vector<Suspect> suspects;
    for (std::size_t i = 0; i < asked.size(); ++i) {
        if (findings[i].verdict == IncarnationProbe::Verdict::Gone) {
            suspects.push_back({records[i], findings[i].why});
            continue;
        }
        const bool alive = findings[i].verdict == IncarnationProbe::Verdict::Alive;
        report.kept(records[i]->name, (alive ? "alive: " : "not proven dead: ") + findings[i].why);
    }
    if (const Status looked = lookAgain(session, config, suspects, report, console); !looked) return looked;
    Status worst;
    for (const Suspect& suspect : suspects) {
        const std::string& name = suspect.record->name;
        const Status evicted = session.evict(name, suspect.record->desc->incarnation);
        if (evicted)
            report.removed(name, suspect.why + ", and its record was not renewed");
        else
            report.kept(name, evicted.toString());
        // NotFound: its successor, or the end of the lease, was faster.
        if (!evicted && evicted.code() != Code::NotFound) worst = evicted;
    }
    report.end(worst.isOk());
    if (!worst && console.partial != nullptr) *console.partial = report.toJson();
    return worst;
}

Status checkOptions(const SegmentsOptions& options) {
    const auto config = loadConfig(options.common);
    if (!config) return config.status();
    if (isP2p(options.metadata))
        return {Code::InvalidArgument, "with p2p there is no store to look into; give --metadata redis://host:port"};
    if (options.watch && options.prune) return {Code::InvalidArgument, "--watch and --prune exclude each other"};
    if (auto status = checkSettingFiles(config->config()); !status) return status;
    return makeStore(options.metadata, config->config(), makeSilentLogger()).status();
}

Status run(const SegmentsOptions& options, Console& console) {
    const auto config = loadConfig(options.common);
    if (!config) return config.status();
    auto log = options.common.verbose ? makeDefaultLogger() : makeSilentLogger();
    if (options.common.verbose) log->set_level(spdlog::level::info);
    auto session = StoreSession::start(options.metadata, config->config(), std::move(log));
    if (!session) return session.status();
    if (options.watch) return follow(**session, options.common.json, console);
    if (options.prune) return prune(**session, config->config(), options.common.json, console);
    return listOnce(**session, options.common.json, console);
}

}  // namespace

void addSegmentsCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<SegmentsOptions>();
    auto* command = addCommand(app, "segments", "List the segments in the metadata store");
    addCommonOptions(*command, options->common);
    command->add_option("--metadata", options->metadata, "The store, as in redis://host:port (docs/redis.md)")
        ->type_name("URI")
        ->required();
    command->add_flag("--watch", options->watch, "Go on, and say what is new, changed and gone, until SIGINT");
    command->add_flag("--prune", options->prune, "Remove the records whose owners are proven dead");
    command->callback([options, &chosen] {
        chosen.name = "segments";
        chosen.json = options->common.json;
        chosen.check = [options] { return checkOptions(*options); };
        chosen.run = [options](Console& console) { return run(*options, console); };
    });
}

}  // namespace troupe::apps
