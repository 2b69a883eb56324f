#include "apps/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

#include <nlohmann/json.hpp>

#include "apps/support/arguments.h"
#include "apps/support/remedy.h"
#include "apps/support/session.h"
#include "apps/support/table.h"
#include "apps/support/transfer.h"
#include "apps/support/units.h"

namespace troupe::apps {

namespace {

constexpr int kProbes = 5;
constexpr std::chrono::milliseconds kProbeTimeout{1000};
// After the first, which connects.
constexpr int kReads = 16;

struct ExplainOptions {
    EngineArguments engine;
    std::string target;
    std::uint64_t size = 4096;
};

/// What becomes of one transport for the segment.
struct Line {
    std::string transport;
    const char* use = "no";  ///< "first", "next" or "no".
    std::vector<std::string> nics;
    std::string why;
};

/// A small read of the segment's memory.
struct Timed {
    std::uint64_t bytes = 0;
    Duration first{};   ///< With what it takes to connect.
    Duration median{};  ///< Of those after it.
    RouteExplanation carried;
};

struct Report {
    std::string name;
    std::shared_ptr<const SegmentDesc> desc;
    RouteExplanation route;
    std::optional<Duration> probe;  ///< The fastest; none: none was answered.
    std::vector<Line> lines;
    std::optional<Timed> read;      ///< Of memory of the host.
    std::optional<Timed> gpu_read;  ///< Of memory of a GPU.
    Status failure;                 ///< The first thing that should have worked and did not.
};

/// What the owner says it can be reached by. `host` is not in that list, where others than Troupe look for a wire.
std::vector<std::string> offersOf(const SegmentDesc& desc) {
    std::vector<std::string> offers = desc.transports;
    if (!desc.host_socket.empty()) offers.insert(offers.begin(), "host");
    return offers;
}

/// That of a transport which is not used for the segment.
std::string whyNot(const std::string& transport, const Status& why, const EngineArguments& arguments) {
    // A wire that was asked for by its name; otherwise it was the settings that turned copies off.
    if (arguments.transport != "tcp" && arguments.transport != "rdma") return why.message();
    const std::string mark = "not " + transport + ": ";
    return inWordsOfTransportOption(mark + why.message(), arguments.transport).substr(mark.size());
}

/// That of a transport which this command did not install.
std::string whyMissing(const std::string& transport, const Session& session, const EngineArguments& arguments) {
    if (arguments.transport != "auto") return "--transport " + arguments.transport;
    const Status refused = transport == "rdma" ? session.withoutRdma() : Status::ok();
    if (refused) return "not installed here";
    const std::string context = "transport '" + transport + "': ";
    return refused.message().rfind(context, 0) == 0 ? refused.message().substr(context.size()) : refused.message();
}

Line lineOf(const std::string& transport, const RouteExplanation& route, const EngineArguments& arguments) {
    Line line;
    line.transport = transport;
    if (route.transport == transport) {
        line.use = "first";
        line.nics = route.nics;
        for (const auto& refusal : route.refused)
            if (refusal.transport == transport + " in part") line.why = "in part not: " + refusal.why.message();
        return line;
    }
    for (const auto& way : route.then) {
        if (way.transport != transport) continue;
        line.use = "next";
        line.nics = way.nics;
        line.why = "while those above are lost";
        return line;
    }
    for (const auto* refusals : {&route.refused, &route.refused_next})
        for (const auto& refusal : *refusals)
            if (refusal.transport == transport) line.why = whyNot(transport, refusal.why, arguments);
    if (line.why.empty()) line.why = "to its own segment an engine goes by the best alone";
    return line;
}

/// Best first, as the engine prefers them.
std::vector<Line> linesOf(Session& session, const RouteExplanation& route, const EngineArguments& arguments) {
    std::vector<Line> lines;
    for (const std::string transport : {"null", "host", "rdma", "tcp"}) {
        if (session.engine().getTransport(transport) != nullptr)
            lines.push_back(lineOf(transport, route, arguments));
        else if (transport != "null")
            lines.push_back({transport, "no", {}, whyMissing(transport, session, arguments)});
    }
    return lines;
}

/// Reads, so that nobody's memory changes.
Result<Timed> timeReads(Session& session, SegmentID segment, const ByteRange& range, std::uint64_t size) {
    Timed timed;
    timed.bytes = std::min(size, range.length);
    const auto memory = session.addMemory(timed.bytes, false, false);
    if (!memory) return memory.status();
    TransferRequest request;
    request.opcode = TransferRequest::READ;
    request.source = memory->data();
    request.target_id = segment;
    request.target_offset = range.addr;
    request.length = timed.bytes;
    std::array<Duration, kReads> times{};
    for (int i = -1; i < kReads; ++i) {
        auto read = carryOne(session.engine(), request);
        if (!read) return session.explained(read.status(), true).withContext("a read of " + formatBytes(timed.bytes));
        (i < 0 ? timed.first : times[static_cast<std::size_t>(i)]) = read->took;
        timed.carried = std::move(read->by);
    }
    std::nth_element(times.begin(), times.begin() + kReads / 2, times.end());
    timed.median = times[kReads / 2];
    return timed;
}

/// The fastest of some probes.
Result<Duration> probe(TransferEngine& engine, SegmentID segment) {
    Duration best = Duration::max();
    for (int i = 0; i < kProbes; ++i) {
        const TimePoint begin = Clock::now();
        if (auto answered = engine.probePeerAliveByID(segment, kProbeTimeout); !answered)
            return answered.withContext("a probe of its control port");
        best = std::min<Duration>(best, Clock::now() - begin);
    }
    return best;
}

Status unreached(const Report& report) {
    std::string text = "no transport reaches segment '" + report.name + "'";
    for (const Line& line : report.lines) text += "; not " + line.transport + ": " + line.why;
    return {Code::TransportMissing, text};
}

Result<Report> look(const ExplainOptions& options, Session& session) {
    auto& engine = session.engine();
    const auto segment = engine.openSegment(options.target);
    if (!segment) return segment.status().withContext("cannot open segment '" + options.target + "'");
    Report report;
    report.name = options.target;
    const auto probed = probe(engine, *segment);
    if (probed) report.probe = *probed;
    report.failure = probed.status();
    const auto fail = [&](const Status& why) {
        if (report.failure.isOk()) report.failure = why;
    };
    const auto desc = engine.getSegmentDescByID(*segment);
    if (!desc) return desc.status();
    report.desc = *desc;
    const auto route = engine.explainSegment(*segment);
    if (!route) return route.status();
    report.route = *route;
    report.lines = linesOf(session, *route, options.engine);
    if (route->transport.empty()) {
        fail(unreached(report));
        return report;
    }
    // A segment without memory, a client's, has a route all the same. Memory of GPUs may go by another.
    for (const bool on_gpu : {false, true}) {
        std::vector<BufferDesc> buffers = (*desc)->buffers;
        std::erase_if(buffers, [&](const BufferDesc& buffer) { return isOnGpu(buffer) != on_gpu; });
        const auto range = largestRange(buffers);
        if (!range) continue;
        auto read = timeReads(session, *segment, *range, options.size);
        if (read)
            (on_gpu ? report.gpu_read : report.read) = std::move(*read);
        else
            fail(read.status());
    }
    return report;
}

/// Regions and bytes that others may reach.
std::pair<std::uint64_t, std::uint64_t> offered(const SegmentDesc& desc) {
    std::pair<std::uint64_t, std::uint64_t> sum;
    for (const BufferDesc& buffer : desc.buffers) {
        if (!buffer.remote_accessible) continue;
        sum.first += 1;
        sum.second += buffer.length;
    }
    return sum;
}

nlohmann::json toJson(const std::optional<Timed>& read) {
    if (!read) return nullptr;
    return {{"bytes", read->bytes},
            {"first_us", toMicroseconds(read->first)},
            {"median_us", toMicroseconds(read->median)},
            {"transport", read->carried.transport},
            {"nics", read->carried.nics},
            {"gpu", read->carried.gpu.empty() ? nlohmann::json() : nlohmann::json(read->carried.gpu)}};
}

nlohmann::json toJson(const Report& report) {
    const auto [regions, bytes] = offered(*report.desc);
    nlohmann::json json = {{"segment", report.name},
                           {"incarnation", report.desc->incarnation.toString()},
                           {"control", report.desc->control.toString()},
                           {"owner", nullptr},
                           {"probe_us", nullptr},
                           {"regions", regions},
                           {"bytes", bytes},
                           {"offers", offersOf(*report.desc)},
                           {"transport", nullptr},
                           {"read", nullptr}};
    if (report.route.owner) json["owner"] = toString(report.route.owner->state);
    if (report.probe) json["probe_us"] = toMicroseconds(*report.probe);
    if (!report.route.transport.empty()) json["transport"] = report.route.transport;
    auto& lines = json["transports"] = nlohmann::json::array();
    for (const Line& line : report.lines)
        lines.push_back({{"transport", line.transport},
                         {"use", line.use},
                         {"nics", line.nics},
                         {"why", line.why.empty() ? nlohmann::json() : nlohmann::json(line.why)}});
    json["read"] = toJson(report.read);
    json["gpu_read"] = toJson(report.gpu_read);
    return json;
}

void print(const Report& report, std::FILE* out) {
    const auto [regions, bytes] = offered(*report.desc);
    fmt::print(out, "segment  {}\n", report.name);
    fmt::print(out, "owner    incarnation {} at {}{}; {}\n", report.desc->incarnation.toString(),
               report.desc->control.toString(),
               report.route.owner ? std::string(", ") + toString(report.route.owner->state) : ", this process",
               report.probe
                   ? fmt::format("it answers a probe in {} (the fastest of {})", formatTime(*report.probe), kProbes)
                   : "it does not answer a probe");
    fmt::print(out, "memory   {}\n",
               regions == 0
                   ? "none that others may reach"
                   : fmt::format("{} in {} that others may reach", formatBytes(bytes), counted(regions, "region")));
    fmt::print(out, "offers   {}\n\n", fmt::join(offersOf(*report.desc), ", "));
    Table table({"transport", "use", "by", "why"});
    table.alignLeft();
    for (const Line& line : report.lines)
        table.add({line.transport, line.use, line.nics.empty() ? "-" : fmt::format("{}", fmt::join(line.nics, " ")),
                   line.why});
    fmt::print(out, "{}", table.toString());
    if (report.read || report.gpu_read) fmt::print(out, "\n");
    for (const auto* read : {&report.read, &report.gpu_read}) {
        if (!*read) continue;
        const std::string& gpu = (*read)->carried.gpu;
        fmt::print(out, "a read of {}{} by {}{} took {} the first time, {} then (the median of {})\n",
                   formatBytes((*read)->bytes), read == &report.gpu_read ? " of a GPU's memory" : "",
                   fmt::join((*read)->carried.nics, " "), gpu.empty() ? "" : ", " + gpu + ",",
                   formatTime((*read)->first), formatTime((*read)->median), kReads);
    }
}

Status explain(const ExplainOptions& options, Console& console) {
    auto session = Session::start(options.engine);
    if (!session) return session.status();
    const auto report = look(options, **session);
    if (!report) return report.status();
    if (!options.engine.common.json) {
        print(*report, console.out);
    } else if (report->failure) {
        auto json = toJson(*report);
        json["ok"] = true;
        fmt::print(console.out, "{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    } else if (console.partial != nullptr) {
        *console.partial = toJson(*report);
    }
    return report->failure;
}

}  // namespace

void addExplainCommand(CLI::App& app, ChosenCommand& chosen) {
    auto options = std::make_shared<ExplainOptions>();
    auto* command = addCommand(app, "explain",
                               "Show which way the bytes to a segment go and why not a better one, and try it with "
                               "small reads");
    command->add_option("target", options->target, "Segment to reach, as troupe serve prints it")
        ->type_name("SEGMENT")
        ->required();
    addEngineOptions(*command, options->engine);
    addBytes(*command, "--size", options->size, "What to read; nothing is written");
    command->callback([options, &chosen] {
        chosen.name = "explain";
        chosen.json = options->engine.common.json;
        chosen.check = [options]() -> Status {
            if (auto status = checkEngineArguments(options->engine); !status) return status;
            return checkTarget(options->engine, options->target);
        };
        chosen.run = [options](Console& console) { return explain(*options, console); };
    });
}

}  // namespace troupe::apps
