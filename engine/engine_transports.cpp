// TransferEngine: installing and uninstalling transports.

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include <caf/actor_addr.hpp>
#include <caf/actor_cast.hpp>

#include "engine/engine_core.h"
#include "engine/transport_factory.h"
#include "transports/faulty_transport.h"

namespace troupe {

namespace {

/// Other engines write their protocols in capitals, "TCP".
std::string inLowerCase(std::string name) {
    for (char& c : name)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return name;
}

/// Has the descriptor made anew. Transports live as long as the directory does, which holds them, so this does not hold
/// it.
std::function<void()> announcer(const caf::actor& directory) {
    return [weak = caf::actor_cast<caf::actor_addr>(directory)] {
        if (const auto alive = caf::actor_cast<caf::actor>(weak)) caf::anon_send(alive, TransportDescribedAnew{});
    };
}

}  // namespace

Result<Transport*> TransferEngine::installTransport(const std::string& given, void** args) {
    const std::string proto = inLowerCase(given);
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    if (const Status may = core.mayWait(); !may) return may;
    if (args != nullptr)
        return {Code::InvalidArgument, "installTransport: args is reserved and must be null; use the config"};
    // Here and not where it is installed: a log of the application's may call the engine.
    if (proto == "null")
        core.options.log->warn(
            "transport null moves nothing, and reports all that it carries as COMPLETED: measure with it");
    const std::unique_lock lock(core.transports_mutex);
    for (const auto& installed : core.transports)
        if (installed.transport->name() == proto)
            return {Code::AlreadyExists, "transport '" + proto + "' is installed"};
    auto made = makeTransport(proto);
    if (!made) return made.status();
    if (core.faults) made->transport = std::make_unique<FaultyTransport>(std::move(made->transport), *core.faults);
    const std::shared_ptr<Transport> transport = std::move(made->transport);
    const TransportContext context{core.settings(),
                                   core.regions,
                                   core.incarnation,
                                   core.local.control.host,
                                   static_cast<unsigned>(core.data_loops.size()),
                                   core.options.log,
                                   core.auth,
                                   core.exchange.get(),
                                   core.device_memory.exporter(),
                                   core.faults.get(),
                                   announcer(core.directory),
                                   core.staging,
                                   ++core.installations};
    if (const Status installed = transport->install(context); !installed)
        return installed.withContext("transport '" + proto + "'");

    std::vector<Region> registered;
    for (const Region& region : core.regions.regions().load()->all()) {
        const Status usable = transport->registerMemory(region);
        if (!usable) {
            // What it does not let go of now goes with it.
            for (const Region& done : registered) static_cast<void>(transport->unregisterMemory(done));
            return usable.withContext("transport '" + proto + "', region " + region.range.toString());
        }
        registered.push_back(region);
    }
    const auto done = core.ask<Status>(core.supervisor, [&](auto reply) {
        return InstallTransport{transport, made->preference, std::move(reply)};
    });
    if (!done) return done;
    const std::lock_guard listing(core.transports_list_mutex);
    core.transports.push_back({transport, made->preference});
    return transport.get();
}

Transport* TransferEngine::getTransport(const std::string& given) const {
    const std::string proto = inLowerCase(given);
    const std::lock_guard lock(core_->transports_list_mutex);
    for (const auto& installed : core_->transports)
        if (installed.transport->name() == proto) return installed.transport.get();
    return nullptr;
}

Status TransferEngine::uninstallTransport(const std::string& given) {
    const std::string proto = inLowerCase(given);
    EngineCore& core = *core_;
    if (const Status usable = core.usable(); !usable) return usable;
    if (const Status may = core.mayWait(); !may) return may;
    // Its end may take as long as a GPU is busy: after the locks.
    std::shared_ptr<Transport> gone;
    const std::unique_lock lock(core.transports_mutex);
    const auto found = std::find_if(core.transports.begin(), core.transports.end(),
                                    [&](const auto& installed) { return installed.transport->name() == proto; });
    if (found == core.transports.end()) return Status(Code::NotFound, "transport '" + proto + "' is not installed");
    if (core.batches->anyRunning())
        return Status(Code::BatchBusy, "transport '" + proto + "' may be in use: batches are running");
    const auto done = core.ask<Status>(core.supervisor, [&](auto reply) {
        return UninstallTransport{proto, std::move(reply)};
    });
    if (!done) return done;
    for (const Region& region : core.regions.regions().load()->all())
        if (const Status left = found->transport->unregisterMemory(region); !left)
            core.options.log->error("uninstall of '{}': {}", proto, left.toString());
    const std::lock_guard listing(core.transports_list_mutex);
    gone = std::move(found->transport);
    core.transports.erase(found);
    return Status::ok();
}

}  // namespace troupe
