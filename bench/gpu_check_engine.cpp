// troupe_gpu_check: whole engines by the public API, beside the driver's own copies of the same bytes in the same run.

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "bench/gpu_check.h"
#include "engine/transfer_engine.h"
#include "transports/done_events.h"

namespace troupe::cuda::check {

namespace {

constexpr std::chrono::seconds kPatience{60};
constexpr std::uint64_t kMiB = 1u << 20;

/// With TCP, and where `host_peers` says so the ways to other processes of this host.
std::unique_ptr<TransferEngine> startEngine(const Arguments& arguments, bool host_peers) {
    EngineOptions options;
    options.config = arguments.config;
    options.config.host_peers = host_peers;
    auto engine = std::make_unique<TransferEngine>(std::move(options));
    must(engine->init("p2p", ""));
    must(engine->installTransport("tcp").status());
    return engine;
}

void* pointer(std::uint64_t addr) { return reinterpret_cast<void*>(addr); }

TransferRequest request(Opcode opcode, SegmentID target, std::uint64_t local, std::uint64_t remote,
                        std::uint64_t bytes) {
    TransferRequest request;
    request.opcode = opcode;
    request.target_id = target;
    request.source = pointer(local);
    request.target_offset = remote;
    request.length = bytes;
    return request;
}

BatchID begin(TransferEngine& engine, const std::vector<TransferRequest>& requests) {
    const BatchID batch = must(engine.allocateBatchID(requests.size()));
    must(engine.submitTransfer(batch, requests));
    return batch;
}

/// Ends when all of the batch are COMPLETED. Returns what explain says of the first.
RouteExplanation finish(TransferEngine& engine, BatchID batch) {
    const TransferStatus status = must(engine.waitTransfer(batch, kPatience));
    must(status.error);
    must(status.s == TransferStatusEnum::COMPLETED, "a batch did not end");
    RouteExplanation way = must(engine.explain(batch, 0));
    must(engine.freeBatchID(batch));
    return way;
}

RouteExplanation carry(TransferEngine& engine, const std::vector<TransferRequest>& requests) {
    return finish(engine, begin(engine, requests));
}

/// `bytes` in pieces.
std::vector<TransferRequest> inPieces(Opcode opcode, SegmentID target, std::uint64_t local, std::uint64_t remote,
                                      std::uint64_t bytes, std::uint64_t piece) {
    std::vector<TransferRequest> requests;
    for (std::uint64_t at = 0; at + piece <= bytes; at += piece)
        requests.push_back(request(opcode, target, local + at, remote + at, piece));
    return requests;
}

std::vector<std::uint64_t> piecesUpTo(std::uint64_t bytes) {
    std::vector<std::uint64_t> pieces;
    for (std::uint64_t piece = kMiB; piece <= std::min(bytes, 64 * kMiB); piece *= 8) pieces.push_back(piece);
    return pieces;
}

/// What the bytes take must be what the table says that it measures.
void mustBe(const RouteExplanation& way, const std::string& wanted) {
    if (way.gpu.find(wanted) == std::string::npos)
        throw Failed("the engine went another way than '" + wanted + "': " + way.toString());
}

}  // namespace

/// Another process of this host with an engine, and memory on the GPU and the host.
class Bench::EnginePeer {
  public:
    EnginePeer(const Arguments& arguments, bool host_peers) {
        int to_child[2];
        int from_child[2];
        must(::pipe(to_child) == 0 && ::pipe(from_child) == 0, "no pipe");
        const std::string bytes = std::to_string(arguments.bytes);
        const std::string device = std::to_string(arguments.device);
        const std::string reply = std::to_string(from_child[1]);
        child_ = ::fork();
        if (child_ == 0) {
            ::dup2(to_child[0], 0);
            // Its copy of the other end would keep the pipe open, and the end of that is what ends it.
            ::close(to_child[1]);
            ::execl("/proc/self/exe", "troupe_gpu_check", "--bytes", bytes.c_str(), "--device", device.c_str(),
                    "--peer", reply.c_str(), "--host", host_peers ? "1" : "0", static_cast<char*>(nullptr));
            ::_exit(127);
        }
        ::close(to_child[0]);
        ::close(from_child[1]);
        to_ = to_child[1];
        std::FILE* const from = ::fdopen(from_child[0], "r");
        char text[300] = "";
        char name[200] = "";
        const bool told = std::fgets(text, sizeof text, from) != nullptr &&
                          std::sscanf(text, "%199s %lu %lu", name, &on_gpu_, &on_host_) == 3;
        std::fclose(from);
        if (!told) end();
        must(told, "the other process failed; it says why above");
        name_ = name;
    }
    ~EnginePeer() { end(); }
    EnginePeer(const EnginePeer&) = delete;
    EnginePeer& operator=(const EnginePeer&) = delete;

    const std::string& name() const { return name_; }
    std::uint64_t onGpu() const { return on_gpu_; }
    std::uint64_t onHost() const { return on_host_; }

  private:
    void end() {
        if (child_ <= 0) return;
        ::close(to_);
        ::waitpid(std::exchange(child_, -1), nullptr, 0);
    }

    pid_t child_ = -1;
    int to_ = -1;
    std::string name_;
    unsigned long on_gpu_ = 0;
    unsigned long on_host_ = 0;
};

int Bench::servePeer() {
    const auto engine = startEngine(arguments_, arguments_.host);
    const DeviceMemory on_gpu = must(gpu_->allocate(arguments_.bytes));
    std::vector<std::uint8_t> on_host(arguments_.bytes);
    must(engine->registerLocalMemory(pointer(on_gpu.get()), arguments_.bytes));
    must(engine->registerLocalMemory(on_host.data(), on_host.size()));
    const std::string text = fmt::format("{} {} {}\n", engine->localSegmentName(), on_gpu.get(),
                                         reinterpret_cast<std::uint64_t>(on_host.data()));
    must(::write(arguments_.peer, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "nobody listens");
    char letter = 0;
    // Until the other process closes its end, or has ended.
    while (::read(0, &letter, 1) > 0) continue;
    must(engine->freeEngine());
    return 0;
}

/// The GPU's own copies of as many bytes, all at once.
double Bench::copyRoof(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    return rate(bytes, [&] {
        must(gpu_->copy(stream_, to, from, bytes));
        must(gpu_->synchronize(stream_));
    });
}

void Bench::engineWithin(nlohmann::json& report) {
    const std::uint64_t bytes = arguments_.bytes;
    const auto engine = startEngine(arguments_, false);
    const DeviceMemory from = must(gpu_->allocate(bytes));
    const DeviceMemory to = must(gpu_->allocate(bytes));
    for (const DeviceMemory* memory : {&from, &to}) must(engine->registerLocalMemory(pointer(memory->get()), bytes));
    const double roof = copyRoof(to.get(), from.get(), bytes);
    for (const std::uint64_t piece : piecesUpTo(bytes)) {
        const auto pattern = noise(bytes, piece);
        put(from.get(), pattern);
        const auto requests = inPieces(Opcode::Write, kLocalSegmentID, from.get(), to.get(), bytes, piece);
        mustBe(carry(*engine, requests), "copied by the GPU");
        const std::uint64_t whole = bytes / piece * piece;
        must(get(to.get(), whole) ==
                 std::vector<std::uint8_t>(pattern.begin(), pattern.begin() + static_cast<std::ptrdiff_t>(whole)),
             "what an engine copied within the GPU differs");
        row(report, fmt::format("engine, same process, requests of {} MiB", piece / kMiB),
            rate(whole, [&] { carry(*engine, requests); }), roof, 0.95);
    }
    ordering(*engine, kLocalSegmentID, from.get(), to.get());
    report.push_back({{"name", "engine, same process: the bytes of an event"}, {"holds", true}});
    beside(*engine, kLocalSegmentID, from.get(), to.get());
    report.push_back({{"name", "engine, same process: transfers beside done_events that wait"}, {"holds", true}});
    must(engine->freeEngine());
}

/// One region, of several allocations that a request goes over.
void Bench::engineWithVirtual(nlohmann::json& report, const ByteRange& range) {
    const auto engine = startEngine(arguments_, false);
    const DeviceMemory plain = must(gpu_->allocate(range.length));
    must(engine->registerLocalMemory(pointer(range.addr), range.length));
    must(engine->registerLocalMemory(pointer(plain.get()), range.length));
    const auto pattern = noise(range.length, 33);
    put(range.addr, pattern);
    carry(*engine, {request(Opcode::Write, kLocalSegmentID, range.addr, plain.get(), range.length)});
    must(get(plain.get(), range.length) == pattern, "what an engine copied from virtual memory differs");
    put(range.addr, noise(range.length, 34));
    carry(*engine, {request(Opcode::Read, kLocalSegmentID, range.addr, plain.get(), range.length)});
    must(get(range.addr, range.length) == pattern, "what an engine copied to virtual memory differs");
    report.push_back({{"name", "engine, virtual memory: its bytes"}, {"holds", true}});
    must(engine->freeEngine());
}

/// Work of a stream that is under way when the request is submitted writes its source, and work that waits for what is
/// recorded at its end reads its destination.
void Bench::ordering(TransferEngine& engine, SegmentID target, std::uint64_t local, std::uint64_t remote) {
    constexpr int kCopies = 50;
    const std::uint64_t bytes = arguments_.bytes;
    const std::uint64_t part = std::min<std::uint64_t>(bytes, 4 * kMiB);
    const DeviceMemory fresh = must(gpu_->allocate(bytes));
    const DeviceMemory other = must(gpu_->allocate(bytes));
    const DeviceEvent written = must(gpu_->makeEvent());
    const DeviceEvent done = must(gpu_->makeEvent());
    for (const bool by_stream : {false, true}) {
        const auto pattern = noise(part, by_stream ? 11 : 12);
        put(local, noise(part, 13));
        put(fresh.get(), pattern);
        // So long that the transfer would be over before it.
        for (int copy = 0; copy < kCopies; ++copy) must(gpu_->copy(stream_, other.get(), fresh.get(), bytes));
        must(gpu_->copy(stream_, local, fresh.get(), part));
        must(gpu_->record(written, stream_));
        TransferRequest ordered = request(Opcode::Write, target, local, remote, part);
        if (by_stream)
            ordered.wait_stream = pointer(stream_.get());
        else
            ordered.wait_event = pointer(written.get());
        carry(engine, {ordered});
        put(local, noise(part, 14));
        TransferRequest back = request(Opcode::Read, target, local, remote, part);
        back.done_event = pointer(done.get());
        const BatchID reading = begin(engine, {back});
        // Work that waits for the event alone sees the bytes, given to the GPU before they are there.
        must(gpu_->wait(stream_, done));
        must(gpu_->copy(stream_, other.get(), local, part));
        finish(engine, reading);
        must(gpu_->synchronize(stream_));
        must(get(other.get(), part) == pattern, "a request did not wait for the work that writes its source");
    }
}

/// While tasks wait, and streams of the engine for them, others go on, and so does the application: what waits in a
/// queue of the GPU must not be in the way of what it waits for.
void Bench::beside(TransferEngine& engine, SegmentID target, std::uint64_t local, std::uint64_t remote) {
    const std::uint64_t part = std::min<std::uint64_t>(arguments_.bytes, 4 * kMiB);
    // A kernel that runs until this is over.
    struct Endless {
        explicit Endless(Device& gpu) : gpu_(gpu), stream(must(gpu.makeStream())) {
            must(gpu.notify(
                stream, [](void* ended) { static_cast<std::promise<void>*>(ended)->get_future().wait(); }, &ended_));
        }
        ~Endless() {
            if (!std::exchange(has_ended_, true)) ended_.set_value();
            gpu_.synchronize(stream).isOk();
        }
        Endless(const Endless&) = delete;
        Endless& operator=(const Endless&) = delete;
        void end() {
            has_ended_ = true;
            ended_.set_value();
        }

        Device& gpu_;
        std::promise<void> ended_;
        bool has_ended_ = false;
        DeviceStream stream;
    };
    // Given back behind the last of those that wait: a driver waits for them.
    const DeviceMemory other = must(gpu_->allocate(part));
    std::vector<DeviceEvent> done;
    std::vector<TransferRequest> waiting;
    Endless endless(*gpu_);
    for (std::size_t i = 0; i < DoneEvents::kStreams; ++i) {
        done.push_back(must(gpu_->makeEvent()));
        waiting.push_back(request(Opcode::Read, target, local, remote, part));
        waiting.back().wait_stream = pointer(endless.stream.get());
        waiting.back().done_event = pointer(done.back().get());
    }
    const BatchID held = begin(engine, waiting);
    for (int round = 0; round < 8; ++round) {
        const DeviceStream stream = must(gpu_->makeStream());
        must(gpu_->copy(stream, other.get(), local, part));
        must(gpu_->synchronize(stream));
        carry(engine, {request(Opcode::Write, target, local, remote, part)});
        carry(engine, inPieces(Opcode::Write, target, local, remote, part, std::min<std::uint64_t>(part, 4096)));
    }
    for (const DeviceEvent& event : done)
        must(!must(gpu_->isDone(event)), "a done_event came before its task had ended");
    endless.end();
    finish(engine, held);
}

void Bench::engineByIpc(nlohmann::json& report) {
    const std::uint64_t bytes = arguments_.bytes;
    const EnginePeer peer(arguments_, true);
    const auto engine = startEngine(arguments_, true);
    const DeviceMemory mine = must(gpu_->allocate(bytes));
    const DeviceMemory other = must(gpu_->allocate(bytes));
    must(engine->registerLocalMemory(pointer(mine.get()), bytes));
    const SegmentID segment = must(engine->openSegment(peer.name()));
    const double roof = copyRoof(other.get(), mine.get(), bytes);
    for (const std::uint64_t piece : piecesUpTo(bytes)) {
        const std::uint64_t whole = bytes / piece * piece;
        const auto pattern = noise(whole, piece + 1);
        put(mine.get(), pattern);
        const auto writes = inPieces(Opcode::Write, segment, mine.get(), peer.onGpu(), bytes, piece);
        const auto reads = inPieces(Opcode::Read, segment, mine.get(), peer.onGpu(), bytes, piece);
        mustBe(carry(*engine, writes), "mapped");
        put(mine.get(), noise(whole, 5));
        mustBe(carry(*engine, reads), "mapped");
        must(get(mine.get(), whole) == pattern, "what went to another process and back differs");
        row(report, fmt::format("engine, other process, writes of {} MiB", piece / kMiB),
            rate(whole, [&] { carry(*engine, writes); }), roof, 0.9);
        row(report, fmt::format("engine, other process, reads of {} MiB", piece / kMiB),
            rate(whole, [&] { carry(*engine, reads); }), roof, 0.9);
    }
    must(engine->freeEngine());
}

/// On loopback, whose own speed is the roof where it is less than that of the GPU's copies.
void Bench::engineByTcp(nlohmann::json& report) {
    const std::uint64_t bytes = arguments_.bytes;
    const EnginePeer peer(arguments_, false);
    const auto engine = startEngine(arguments_, false);
    const DeviceMemory on_gpu = must(gpu_->allocate(bytes));
    std::vector<std::uint8_t> on_host(bytes);
    const HostMemory pinned = must(gpu_->allocateHost(bytes));
    must(engine->registerLocalMemory(pointer(on_gpu.get()), bytes));
    must(engine->registerLocalMemory(on_host.data(), bytes));
    const SegmentID segment = must(engine->openSegment(peer.name()));
    const auto all = [&](Opcode opcode, std::uint64_t local, std::uint64_t remote) {
        return inPieces(opcode, segment, local, remote, bytes, std::min(bytes, 8 * kMiB));
    };
    const auto pattern = noise(bytes, 21);
    put(on_gpu.get(), pattern);
    mustBe(carry(*engine, all(Opcode::Write, on_gpu.get(), peer.onGpu())), "at both ends");
    put(on_gpu.get(), noise(bytes, 22));
    mustBe(carry(*engine, all(Opcode::Read, on_gpu.get(), peer.onGpu())), "at both ends");
    must(get(on_gpu.get(), bytes) == pattern, "what went by TCP and back differs");
    for (const bool writes : {true, false}) {
        const Opcode opcode = writes ? Opcode::Write : Opcode::Read;
        const auto by_wire = all(opcode, reinterpret_cast<std::uint64_t>(on_host.data()), peer.onHost());
        const double wire = rate(bytes, [&] { carry(*engine, by_wire); });
        const double copy =
            writes ? copyRoof(pinned.get(), on_gpu.get(), bytes) : copyRoof(on_gpu.get(), pinned.get(), bytes);
        const auto staged = all(opcode, on_gpu.get(), peer.onHost());
        mustBe(carry(*engine, staged), "staged through pinned memory here");
        row(report, writes ? "engine, TCP on loopback, from the GPU" : "engine, TCP on loopback, to the GPU",
            rate(bytes, [&] { carry(*engine, staged); }), std::min(wire, copy), 0.9);
    }
    ordering(*engine, segment, on_gpu.get(), peer.onGpu());
    report.push_back({{"name", "engine, TCP on loopback: the bytes of an event"}, {"holds", true}});
    beside(*engine, segment, on_gpu.get(), peer.onGpu());
    report.push_back({{"name", "engine, TCP on loopback: transfers beside done_events that wait"}, {"holds", true}});
    must(engine->freeEngine());
}

}  // namespace troupe::cuda::check
