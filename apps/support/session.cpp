#include "apps/support/session.h"

#include <fmt/format.h>
#include <spdlog/sinks/sink.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "apps/support/arguments.h"
#include "apps/support/remedy.h"
#include "apps/support/transfer.h"
#include "apps/support/units.h"
#include "base/config_units.h"
#include "base/endpoint.h"
#include "engine/listen_address.h"
#include "engine/store_factory.h"
#include "security/cluster_auth.h"
#include "topology/addresses.h"
#include "topology/local_matrix.h"
#include "topology/location.h"

extern char** environ;

namespace troupe::apps {

namespace {

/// What a byte of a GPU's memory is read into, to see who carries it, and how long that may take.
constexpr std::uint64_t kTrialBytes = 4096;
constexpr std::chrono::seconds kTrialTime{2};

}  // namespace

void addCommonOptions(CLI::App& app, CommonOptions& options) {
    app.add_flag("--json", options.json, "Answer with one JSON object on standard output");
    app.add_flag("-v,--verbose", options.verbose, "Log what the engine does, on standard error");
    app.add_option("--config", options.config_file, "JSON file of settings (see troupe config)")->type_name("FILE");
    app.add_option("--set", options.settings, "One setting; wins over file and environment; may be repeated")
        ->type_name("KEY=VALUE")
        ->take_all()
        ->allow_extra_args(false);  // One value each, or it would take the target as well.
}

void addEngineOptions(CLI::App& app, EngineArguments& arguments) {
    addCommonOptions(app, arguments.common);
    arguments.command = app.get_name();
    app.add_option("--metadata", arguments.metadata,
                   "Where segments are found by name: p2p (no server), or redis://host:port, redis+unix:///path, "
                   "redis+sentinel://host/name (docs/redis.md)")
        ->type_name("URI")
        ->capture_default_str();
    app.add_option("--name", arguments.name,
                   arguments.serves ? "Name of the segment (p2p: host, or host:port)"
                                    : "Name of the own segment (p2p: host, or host:port); with a store [made up]")
        ->type_name("NAME");
    app.add_option("--host", arguments.host,
                   "Address or interface to listen on; with neither this nor --name, only this machine reaches it")
        ->type_name("ADDRESS");
    app.add_option("--port", arguments.port, "Control port; 0: any free one")
        ->check(CLI::Range(0, 65535))
        ->capture_default_str();
    app.add_option("--transport", arguments.transport,
                   "auto (the best that both ends have: host, rdma, tcp), or only: tcp, rdma, host (copies within this "
                   "machine), null (moves nothing)")
        ->transform(CLI::IsMember({"auto", "tcp", "rdma", "host", "null"}, CLI::ignore_case))
        ->capture_default_str();
}

Result<ConfigLoader> loadConfig(const CommonOptions& options) {
    ConfigLoader loader;
    if (!options.config_file.empty())
        if (auto status = loader.loadFile(options.config_file); !status) return status;
    if (auto status = loader.loadEnvironment(environ); !status) return status;
    for (const auto& setting : options.settings) {
        const auto equals = setting.find('=');
        if (equals == std::string::npos)
            return {Code::InvalidArgument,
                    fmt::format("--set {}: expected KEY=VALUE, as in --set tcp.lanes=2", setting)};
        const std::string value = setting.substr(equals + 1);
        if (auto status = loader.set(setting.substr(0, equals), value, "--set"); !status) {
            return Status(status.code(), explainFraction(status.message(), value));
        }
    }
    if (auto status = checkConfig(loader.config()); !status) return status.withContext("settings");
    return loader;
}

namespace {

/// With p2p a name is an address, and so says what --host and --port do.
Status checkP2pName(const EngineArguments& arguments) {
    if (arguments.name.empty()) return Status::ok();
    if (!arguments.host.empty())
        return {
            Code::InvalidArgument,
            fmt::format("--name {} and --host {}: with p2p a segment is named by the address it listens on; give one "
                        "of them (a free name needs --metadata redis://..., docs/redis.md)",
                        arguments.name, arguments.host)};
    const auto named = Endpoint::parse(arguments.name);
    if (named && named->port != 0 && arguments.port != 0 && named->port != arguments.port)
        return {Code::InvalidArgument,
                fmt::format("--name {} and --port {} name two ports; leave one out", arguments.name, arguments.port)};
    return Status::ok();
}

/// The settings, and what the command's own options say in their place.
Config configOf(const EngineArguments& arguments, const ConfigLoader& loader) {
    Config config = loader.config();
    if (arguments.data_loops != 0) config.data_loops = arguments.data_loops;
    return config;
}

/// InvalidArgument when nobody can listen there, however the machine stands.
Status checkListenAddress(const EngineArguments& arguments, bool p2p) {
    const auto host = chooseListenAddress(arguments.host, arguments.name, p2p);
    Status bad = host.status();
    if (host) {
        const auto address = SocketAddress::fromNumeric(*host, 0);
        bad = address ? listenOn(*address).status() : address.status();
    }
    // Anything else is for the engine to meet.
    if (bad.code() != Code::InvalidArgument) return Status::ok();
    return arguments.host.empty() ? bad.withContext("--name " + arguments.name)
                                  : bad.withContext("--host " + arguments.host);
}

/// Hands on what it is told, in the words of the command line.
class TransportOptionSink final : public spdlog::sinks::sink {
  public:
    TransportOptionSink(std::vector<spdlog::sink_ptr> to, std::string transport)
        : to_(std::move(to)), transport_(std::move(transport)) {}

    void log(const spdlog::details::log_msg& given) override {
        const std::string text =
            inWordsOfTransportOption(std::string(given.payload.data(), given.payload.size()), transport_);
        spdlog::details::log_msg said = given;
        said.payload = spdlog::string_view_t(text.data(), text.size());
        for (const auto& each : to_)
            if (each->should_log(given.level)) each->log(said);
    }
    void flush() override {
        for (const auto& each : to_) each->flush();
    }
    void set_pattern(const std::string& pattern) override {
        for (const auto& each : to_) each->set_pattern(pattern);
    }
    void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
        for (const auto& each : to_) each->set_formatter(formatter->clone());
    }

  private:
    const std::vector<spdlog::sink_ptr> to_;
    const std::string transport_;
};

/// Nobody turned host.peers off: --transport did.
void speakOfTransportOption(spdlog::logger& log, const std::string& transport) {
    log.sinks() = {std::make_shared<TransportOptionSink>(log.sinks(), transport)};
}

}  // namespace

EngineArguments completed(EngineArguments arguments) {
    if (arguments.serves || isP2p(arguments.metadata)) return arguments;
    if (arguments.host.empty()) arguments.host = "127.0.0.1";
    if (!arguments.name.empty()) return arguments;
    char host[HOST_NAME_MAX + 1] = "";
    const bool known = ::gethostname(host, sizeof host) == 0;
    arguments.name = fmt::format("{}-{}-{}", arguments.command, known ? host : "unknown", ::getpid());
    return arguments;
}

Status checkSettingFiles(const Config& config) {
    // What the machine lacks, memory say, is for the command to meet.
    if (const auto auth = ClusterAuth::load(config); auth.status().code() == Code::InvalidArgument)
        return auth.status();
    // Without a file it would say what it makes of no machine at all.
    return config.topology_matrix.empty() ? Status::ok() : localMatrix(config, Machine{}).status();
}

Status checkEngineArguments(const EngineArguments& given) {
    const EngineArguments arguments = completed(given);
    const auto config = loadConfig(arguments.common);
    if (!config) return config.status();
    if (auto status = checkSettingFiles(config->config()); !status) return status;
    // More loops than the settings say need more of what each has one of.
    if (auto status = checkConfig(configOf(arguments, *config)); !status) return status.withContext("settings");
    const bool p2p = isP2p(arguments.metadata);
    if (const auto server = Endpoint::parse(arguments.metadata);
        !p2p && arguments.metadata.find("://") == std::string::npos && server && server->port != 0)
        return {Code::InvalidArgument, fmt::format("--metadata {} is no URI; did you mean redis://{}?",
                                                   arguments.metadata, arguments.metadata)};
    if (!p2p) {
        const auto store = makeStore(arguments.metadata, config->config(), makeSilentLogger());
        if (!store) return store.status();
        if (arguments.name.empty())
            return {Code::InvalidArgument, "with --metadata of a store the own segment needs a --name"};
    } else if (auto status = checkP2pName(arguments); !status) {
        return status;
    }
    return checkListenAddress(arguments, p2p);
}

Status checkTarget(const EngineArguments& arguments, const std::string& target) {
    if (!isP2p(arguments.metadata)) return Status::ok();
    if (target.find("://") != std::string::npos)
        return {
            Code::InvalidArgument,
            fmt::format("target '{}' is a URI; give host:port as troupe serve prints it, as in 127.0.0.1:41234 (the "
                        "URI of a store goes into --metadata, and the target is then a name)",
                        target)};
    const auto endpoint = Endpoint::parse(target);
    if (!endpoint) return endpoint.status().withContext("target");
    // An IPv6 address with a port but without its brackets reads as an address alone.
    if (const auto colon = endpoint->host.rfind(':'); colon != std::string::npos && target.front() != '[') {
        const std::string head = endpoint->host.substr(0, colon);
        const bool has_port = SocketAddress::fromNumeric(head, 0).isOk();
        return {Code::InvalidArgument,
                fmt::format("target '{}' has an IPv6 address without brackets; write [{}]:{}", target,
                            has_port ? head : endpoint->host, has_port ? endpoint->host.substr(colon + 1) : "PORT")};
    }
    if (endpoint->host.empty() || endpoint->port == 0) {
        const auto bracket = target.find(']');
        const bool zero = target.find(':', bracket == std::string::npos ? 0 : bracket) != std::string::npos;
        return {Code::InvalidArgument,
                fmt::format("target '{}' {}; give host:port as troupe serve prints it, as in "
                            "127.0.0.1:41234",
                            target, zero ? "has port 0, on which nobody can listen" : "has no port")};
    }
    return Status::ok();
}

Status checkVerifiedTarget(const EngineArguments& arguments, const std::string& target) {
    if (auto status = checkEngineArguments(arguments); !status) return status;
    if (arguments.transport == "null")
        return {Code::InvalidArgument, "--transport null moves no bytes, so there is nothing to compare; leave it out"};
    return checkTarget(arguments, target);
}

bool isOnGpu(const BufferDesc& buffer) {
    const auto location = parseLocation(buffer.location);
    return location && location->kind == Location::Kind::Cuda;
}

Result<ByteRange> largestRange(const std::vector<BufferDesc>& buffers) {
    std::vector<ByteRange> ranges;
    for (const auto& buffer : buffers) {
        const ByteRange range{buffer.addr, buffer.length};
        if (buffer.remote_accessible && buffer.length != 0 && !range.wraps()) ranges.push_back(range);
    }
    std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.addr < b.addr; });
    ByteRange best;
    ByteRange current;
    for (const auto& range : ranges) {
        if (current.length != 0 && range.addr == current.end())
            current.length += range.length;
        else
            current = range;
        if (current.length > best.length) best = current;
    }
    if (best.length == 0)
        return {Code::NotFound, "the segment has no memory that others may reach; start it with troupe serve"};
    return best;
}

Result<std::unique_ptr<Session>> Session::start(const EngineArguments& given) {
    const EngineArguments arguments = completed(given);
    auto loader = loadConfig(arguments.common);
    if (!loader) return loader.status();
    EngineOptions options;
    options.config = configOf(arguments, *loader);
    // What is called tcp is to go by TCP, though the target may be on this host; rdma likewise.
    if ((arguments.transport == "tcp" || arguments.transport == "rdma") && !arguments.serves)
        options.config.host_peers = false;
    options.log = makeDefaultLogger();
    if (!options.config.host_peers && loader->config().host_peers)
        speakOfTransportOption(*options.log, arguments.transport);
    if (arguments.common.verbose) options.log->set_level(spdlog::level::info);

    std::unique_ptr<Session> session(new Session());
    session->log_ = options.log;
    session->transfer_timeout_ = options.config.transfer_timeout;
    session->engine_ = std::make_unique<TransferEngine>(std::move(options));
    auto& engine = *session->engine_;
    if (auto status = engine.init(arguments.metadata, arguments.name, arguments.host, arguments.port); !status)
        return status.withContext("cannot start the engine");
    if (auto status = session->installTransports(arguments); !status) return status;
    return session;
}

Status Session::installTransports(const EngineArguments& arguments) {
    // The engine has installed it by itself.
    if (arguments.transport == "host") return Status::ok();
    const std::string wire = arguments.transport == "auto" ? "tcp" : arguments.transport;
    if (auto transport = engine_->installTransport(wire); !transport) {
        const Status& why = transport.status();
        // The engine's words begin with the transport's name.
        const bool named = why.message().rfind("transport '", 0) == 0;
        return {why.code(), (named ? "cannot install " : "cannot install transport " + wire + ": ") + why.message()};
    }
    if (arguments.transport != "auto") return Status::ok();
    // It listens on every RDMA address of the machine, so who serves this machine alone does without.
    const auto own = engine_->getSegmentDescByID(kLocalSegmentID);
    if (arguments.serves && (!own || scopeOf((*own)->control.host) == AddressScope::Loopback)) return Status::ok();
    without_rdma_ = engine_->installTransport("rdma").status();
    // Most machines have no such device, and that is no news.
    if (!without_rdma_ && without_rdma_.code() != Code::TransportMissing)
        log_->warn("goes without rdma: {}", without_rdma_.toString());
    return Status::ok();
}

Status Session::explained(const Status& status, bool reached) const {
    constexpr std::string_view kPassed = "the deadline passed";
    const auto at = status.message().find(kPassed);
    if (tellsThatOwnerEnded(status, reached)) return {status.code(), status.message() + kOwnerEnded};
    if (status.code() != Code::Timeout || at == std::string::npos) return status;
    std::string message = status.message();
    // No command gives its requests a deadline of their own.
    message.insert(at + kPassed.size(), " (transfer_timeout, " + formatTimeSetting(transfer_timeout_) + ")");
    return {status.code(), message};
}

std::string Session::transportTo(SegmentID segment, const ByteRange& range) {
    const auto route = engine_->explainSegment(segment);
    if (!route || route->transport.empty()) return {};
    const auto desc = engine_->getSegmentDescByID(segment);
    const bool on_gpu = desc && std::any_of((*desc)->buffers.begin(), (*desc)->buffers.end(), [&](const auto& buffer) {
                            return isOnGpu(buffer) && range.addr - buffer.addr < buffer.length;
                        });
    const std::string carrier = on_gpu ? carrierOfARead(segment, range.addr) : "";
    return carrier.empty() ? route->transport : carrier;
}

/// What reaches the owner may decline what its memory is, and says so when it is asked to carry some. Empty: the read
/// did not succeed, which what comes next will say better.
std::string Session::carrierOfARead(SegmentID segment, std::uint64_t address) {
    if (trial_.empty()) {
        auto memory = addMemory(kTrialBytes, false, false);
        if (!memory) return {};
        trial_ = *memory;
    }
    TransferRequest request;
    request.opcode = TransferRequest::READ;
    request.source = trial_.data();
    request.target_id = segment;
    request.target_offset = address;
    request.length = 1;
    request.deadline = Clock::now() + kTrialTime;
    const auto read = carryOne(*engine_, request);
    return read ? read->by.transport : std::string();
}

std::string Session::transportUsed(const Target& target) {
    const std::string now = transportTo(target.segment, target.range);
    if (target.transport.empty() || now.empty() || now == target.transport)
        return target.transport.empty() ? now : target.transport;
    return target.transport + ", then " + now;
}

/// Memory that RDMA may not pin is still good for the others.
Status Session::withoutPinning(const Status& status) const {
    if (status.code() != Code::ResourceExhausted || engine_->getTransport("rdma") == nullptr) return status;
    return {status.code(), status.message() + "; or go without RDMA: --transport tcp"};
}

Result<std::span<std::byte>> Session::addMemory(std::uint64_t bytes, bool huge, bool remote, unsigned regions) {
    auto mapped = MappedMemory::map(bytes, huge);
    if (!mapped) return mapped.status();
    const std::span<std::byte> whole(mapped->data(), bytes);
    memory_.push_back(std::move(mapped).value());

    const std::uint64_t piece = bytes / regions;
    if (piece == 0)
        return {Code::InvalidArgument, fmt::format("{} cannot be split into {} regions", formatBytes(bytes), regions)};
    std::vector<BufferEntry> entries;
    for (unsigned i = 0; i < regions; ++i)
        entries.push_back({whole.data() + i * piece, i + 1 == regions ? bytes - i * piece : piece});
    if (auto status = engine_->registerLocalMemoryBatch(entries, "*", remote); !status)
        return withoutPinning(status).withContext("cannot register " + formatBytes(bytes));
    return whole;
}

Result<std::span<std::byte>> Session::allocateMemory(std::uint64_t bytes, bool huge, bool remote) {
    const auto memory = engine_->allocateLocalMemory(bytes, "*", remote, huge);
    if (!memory) return withoutPinning(memory.status()).withContext("cannot allocate " + formatBytes(bytes));
    return std::span<std::byte>(static_cast<std::byte*>(*memory), bytes);
}

Result<Target> Session::openTarget(const std::string& name) {
    const auto segment = engine_->openSegment(name);
    if (!segment) return segment.status().withContext("cannot open segment '" + name + "'");
    const auto desc = engine_->getSegmentDescByID(*segment);
    if (!desc) return desc.status();
    const auto range = largestRange((*desc)->buffers);
    if (!range) return range.status().withContext("segment '" + name + "'");
    return Target{*segment, name, *range, transportTo(*segment, *range)};
}

}  // namespace troupe::apps
