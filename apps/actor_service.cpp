// An example of a service that runs its own CAF actors and uses the engine as one of them (engine/actor_api.h).
//
// A *prefetcher* owns a cache of blocks and reads them from a peer's segment on request; *clients* ask it for blocks
// they are about to need. No thread of the service ever waits for a transfer: a report is a message like any other.
//
//     troupe_actor_service                # a second engine in this program is the peer
//     troupe_actor_service HOST:PORT      # a segment served elsewhere, e.g. by `troupe serve`
//
// It needs nothing but an installed Troupe, and is meant to be copied:
//
//     find_package(troupe REQUIRED)
//     add_executable(service actor_service.cpp)
//     target_link_libraries(service PRIVATE troupe::troupe)

#include <fmt/format.h>
#include <troupe/engine/actor_api.h>
#include <troupe/engine/transfer_engine.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/stateful_actor.hpp>

namespace service {

using troupe::Code;
using troupe::EngineActor;
using troupe::Result;
using troupe::Status;
using troupe::TransferEngine;

struct Options {
    std::string segment;  ///< Empty: of an engine in this program.
    std::uint64_t block_bytes = 64u << 10;
    std::uint64_t blocks = 4096;  ///< To fetch, by each client.
    unsigned clients = 4;
    unsigned group = 16;  ///< Blocks per request.
};

constexpr std::byte kServed{0x5a};  ///< What the peer in this program serves.

// --- the service's own protocol ----------------------------------------------------------------------------------

/// Client -> prefetcher: bring blocks [first, first + count) of the segment into the cache. -> BlocksReady.
struct FetchBlocks {
    std::uint64_t first = 0;
    unsigned count = 0;
};
struct BlocksReady {
    std::uint64_t bytes = 0;
};

/// Client -> main: it has all it wanted, or the first error.
struct ClientDone {
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;
    Status status;
};

}  // namespace service

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(service::FetchBlocks)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(service::BlocksReady)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(service::ClientDone)

namespace service {

namespace {

/// What the prefetcher works on. The cache is registered with the engine before the actor starts and outlives it.
struct Source {
    troupe::SegmentID segment = troupe::kInvalidSegmentID;
    std::uint64_t addr = 0;    ///< Of the first block, in the owner's address space.
    std::uint64_t blocks = 0;  ///< In the segment; a block id is taken modulo this.
    std::uint64_t block_bytes = 0;
    std::byte* cache = nullptr;
    std::uint64_t cache_blocks = 0;
};

/// Reads blocks into the next places of its cache. Several requests are under way at once; the engine orders nothing
/// between them, so each has places of its own.
caf::behavior prefetcher(caf::event_based_actor* self, const EngineActor& engine, const Source& source) {
    const auto next = std::make_shared<std::uint64_t>(0);
    return {[self, engine, source, next](const FetchBlocks& wanted) {
        troupe::SubmitTransfers work;
        for (unsigned i = 0; i < wanted.count; ++i) {
            troupe::TransferRequest read;
            read.opcode = troupe::TransferRequest::READ;
            read.source = source.cache + *next * source.block_bytes;
            read.target_id = source.segment;
            read.target_offset = source.addr + (wanted.first + i) % source.blocks * source.block_bytes;
            read.length = source.block_bytes;
            work.requests.push_back(read);
            *next = (*next + 1) % source.cache_blocks;
        }
        auto answer = self->make_response_promise<BlocksReady>();
        // Without a timeout of CAF's: the engine's deadlines end it, and until then the blocks are in use.
        self->request(engine, caf::infinite, std::move(work))
            .then(
                [answer](const troupe::TransferReport& report) mutable {
                    if (report.batch.s == troupe::TransferStatusEnum::COMPLETED)
                        answer.deliver(BlocksReady{report.batch.transferred_bytes});
                    else
                        answer.deliver(troupe::toCafError(report.batch.error));
                },
                [answer](const caf::error& error) mutable { answer.deliver(error); });
        return answer;
    }};
}

/// Walks over the blocks, one group after another, and tells `parent` at the end.
struct ClientState {
    std::uint64_t position = 0;
    std::uint64_t left = 0;
    ClientDone result;
};

void fetchNext(caf::stateful_actor<ClientState>* self, const caf::actor& cache, const caf::actor& parent,
               unsigned group) {
    ClientState& state = self->state;
    if (state.left == 0 || !state.result.status) {
        self->send(parent, state.result);
        self->quit();
        return;
    }
    const auto count = static_cast<unsigned>(std::min<std::uint64_t>(group, state.left));
    self->request(cache, caf::infinite, FetchBlocks{state.position, count})
        .then(
            [=](const BlocksReady& ready) {
                self->state.result.bytes += ready.bytes;
                ++self->state.result.requests;
                self->state.position += count;
                self->state.left -= count;
                fetchNext(self, cache, parent, group);
            },
            [=](const caf::error& error) {
                self->state.result.status = troupe::fromCafError(error);
                fetchNext(self, cache, parent, group);
            });
}

// --- putting it together -----------------------------------------------------------------------------------------

/// The peer when none is named: an engine that serves one region.
struct LocalPeer {
    std::vector<std::byte> memory;
    std::unique_ptr<TransferEngine> engine;
};

Result<LocalPeer> startPeer(caf::actor_system& system, std::uint64_t bytes) {
    LocalPeer peer;
    peer.memory.assign(bytes, kServed);
    troupe::EngineOptions options;
    options.system = &system;
    peer.engine = std::make_unique<TransferEngine>(std::move(options));
    if (const Status started = peer.engine->init("p2p", "", "127.0.0.1"); !started) return started;
    if (const auto tcp = peer.engine->installTransport("tcp"); !tcp) return tcp.status();
    const Status served = peer.engine->registerLocalMemory(peer.memory.data(), peer.memory.size());
    if (!served) return served;
    return peer;
}

/// Asks the engine's actor and waits: only the set-up does so.
template <class Answer, class Request>
Result<Answer> ask(caf::scoped_actor& self, const EngineActor& engine, Request request) {
    Result<Answer> answer(Code::Internal, "no answer");
    self->request(engine, caf::infinite, std::move(request))
        .receive([&](const Answer& value) { answer = value; },
                 [&](const caf::error& error) { answer = troupe::fromCafError(error); });
    return answer;
}

Status registerCache(caf::scoped_actor& self, const EngineActor& engine, std::vector<std::byte>& cache) {
    Status answer(Code::Internal, "no answer");
    self->request(engine, caf::infinite, troupe::RegisterMemory{cache.data(), cache.size()})
        .receive([&] { answer = Status::ok(); },
                 [&](const caf::error& error) { answer = troupe::fromCafError(error); });
    return answer;
}

Result<Source> openSource(caf::scoped_actor& self, const EngineActor& engine, const std::string& segment,
                          const Options& options) {
    const auto opened = ask<troupe::SegmentOpened>(self, engine, troupe::OpenSegmentByName{segment});
    if (!opened) return opened.status();
    const auto& buffers = opened->desc->buffers;  // Its local-only ones, too.
    const auto served = std::find_if(buffers.begin(), buffers.end(), [&](const troupe::BufferDesc& each) {
        return each.remote_accessible && each.length >= options.block_bytes;
    });
    if (served == buffers.end())
        return {Code::NotFound,
                fmt::format("segment {} serves no region of a block, {} bytes", segment, options.block_bytes)};
    Source source;
    source.segment = opened->segment;
    source.addr = served->addr;
    source.block_bytes = options.block_bytes;
    source.blocks = served->length / options.block_bytes;
    return source;
}

/// Runs the clients to their end; the first error of any.
Result<ClientDone> runClients(caf::scoped_actor& self, const caf::actor& cache, const Options& options) {
    const caf::actor parent(self);
    for (unsigned i = 0; i < options.clients; ++i)
        self->spawn([=](caf::stateful_actor<ClientState>* client) {
            client->state.position = i * options.blocks;
            client->state.left = options.blocks;
            fetchNext(client, cache, parent, options.group);
        });
    ClientDone total;
    unsigned ended = 0;
    self->receive_while([&] { return ended < options.clients; })([&](const ClientDone& done) {
        ++ended;
        total.bytes += done.bytes;
        total.requests += done.requests;
        if (total.status) total.status = done.status;
    });
    if (!total.status) return total.status;
    return total;
}

Status serve(const Options& options) {
    caf::actor_system_config config;
    caf::actor_system system(config);  // The service's own; its engines live in it.

    LocalPeer peer;
    std::string segment = options.segment;
    if (segment.empty()) {
        auto started = startPeer(system, options.block_bytes * std::min<std::uint64_t>(options.blocks, 1024));
        if (!started) return started.status();
        peer = std::move(*started);
        segment = peer.engine->localSegmentName();
    }
    // A group of each client is under way at most; twice that, so that a group is not overwritten by the next.
    std::vector<std::byte> cache(options.block_bytes * options.group * options.clients * 2);
    troupe::EngineOptions engine_options;
    engine_options.system = &system;
    TransferEngine engine(std::move(engine_options));
    if (const Status started = engine.init("p2p", "localhost"); !started) return started;
    if (const auto tcp = engine.installTransport("tcp"); !tcp) return tcp.status();
    const EngineActor transfers = engine.actorApi()->actor();

    caf::scoped_actor self{system};
    if (const Status registered = registerCache(self, transfers, cache); !registered) return registered;
    auto source = openSource(self, transfers, segment, options);
    if (!source) return source.status();
    source->cache = cache.data();
    source->cache_blocks = std::uint64_t{options.group} * options.clients * 2;

    const caf::actor prefetch = self->spawn(prefetcher, transfers, *source);
    const auto begin = std::chrono::steady_clock::now();
    const auto total = runClients(self, prefetch, options);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    self->send_exit(prefetch, caf::exit_reason::user_shutdown);
    if (!total) return total.status();
    fmt::print("{} clients prefetched {:.1f} MiB in {} requests from {}: {:.3f} s, {:.2f} GB/s\n", options.clients,
               static_cast<double>(total->bytes) / (1 << 20), total->requests, segment, took.count(),
               static_cast<double>(total->bytes) / took.count() / 1e9);
    if (peer.engine && !std::all_of(cache.begin(), cache.begin() + static_cast<std::ptrdiff_t>(options.block_bytes),
                                    [](std::byte b) { return b == kServed; }))
        return {Code::ChecksumMismatch, "the cache does not hold what the peer serves"};
    return engine.freeEngine();
}

}  // namespace

}  // namespace service

int main(int argc, char** argv) {
    if (argc > 2) {
        std::fprintf(stderr, "usage: %s [HOST:PORT]\n", argv[0]);
        return 2;
    }
    service::Options options;
    if (argc == 2) options.segment = argv[1];
    const troupe::Status status = service::serve(options);
    if (status) return 0;
    std::fprintf(stderr, "%s: %s\n", argv[0], status.toString().c_str());
    return 1;
}
