#include "bench/bare_socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/bare_stream.h"
#include "bench/memory.h"
#include "bench/processes.h"
#include "bench/stats.h"

namespace troupe::bench {

namespace {

using SteadyClock = std::chrono::steady_clock;
constexpr auto kServerStart = std::chrono::seconds(20);
/// Bound on what a hello may ask for.
constexpr std::uint32_t kMaxBatch = 65536;

void setNoDelay(int fd) {
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    return address;
}

Result<BareStream> connectTo(int port, const BareHello& hello) {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto address = loopback(port);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
        return {Code::ConnectionRefused, fmt::format("connect to the bare loop: {}", std::strerror(errno))};
    }
    setNoDelay(fd.get());
    BareStream stream(std::move(fd), hello.spin != 0);
    if (!stream.send(&hello, sizeof hello)) return {Code::ConnectionLost, "the bare loop's server has gone"};
    return stream;
}

/// Serves one connection until its peer leaves.
void serveConnection(UniqueFd fd, const Memory& memory) {
    setNoDelay(fd.get());
    BareStream stream(std::move(fd));
    BareHello hello;
    if (!stream.receive(&hello, sizeof hello)) return;
    if (hello.batch == 0 || hello.batch > kMaxBatch || hello.block == 0 || hello.block > memory.size()) return;
    stream.setSpin(hello.spin != 0);
    std::vector<BareHeader> headers(hello.batch);
    for (;;) {
        if (hello.write) {
            if (!stream.receivePairs(headers, hello.block, memory.data(), memory.size())) return;
            if (!stream.send(headers.data(), headers.size() * sizeof(BareHeader))) return;
        } else {
            if (!stream.receive(headers.data(), headers.size() * sizeof(BareHeader))) return;
            for (const auto& h : headers) {
                if (h.length != hello.block || h.offset > memory.size() - hello.block) return;
            }
            if (!stream.sendPairs(headers, memory.data())) return;
        }
    }
}

/// The initiating end of one connection.
class Initiator {
  public:
    Initiator(BareStream stream, const LoopOptions& options, std::uint32_t batch, std::uint64_t start, char* base)
        : stream_(std::move(stream)),
          walk_(options.footprint, options.block, options.scattered, start),
          write_(options.write),
          block_(options.block),
          footprint_(options.footprint),
          base_(base),
          ring_(options.inflight, std::vector<BareHeader>(batch)) {}

    /// Puts out one batch more, once the oldest of a full window has come back.
    bool step() {
        if (submitted_ - finished_ == ring_.size() && !await()) return false;
        auto& batch = ring_[submitted_ % ring_.size()];
        for (auto& header : batch) {
            header = {++last_id_, walk_.next(), static_cast<std::uint32_t>(block_), write_ ? 1u : 0u, 0};
        }
        ++submitted_;
        return write_ ? stream_.sendPairs(batch, base_) : stream_.send(batch.data(), batch.size() * sizeof(BareHeader));
    }

    /// Waits for all that is out.
    bool drain() {
        while (finished_ < submitted_) {
            if (!await()) return false;
        }
        return true;
    }

    std::uint64_t requests() const { return finished_ * ring_[0].size(); }

  private:
    bool await() {
        auto& batch = ring_[finished_ % ring_.size()];
        ++finished_;
        return write_ ? stream_.receive(batch.data(), batch.size() * sizeof(BareHeader))
                      : stream_.receivePairs(batch, block_, base_, footprint_);
    }

    BareStream stream_;
    BlockWalk walk_;
    bool write_;
    std::size_t block_;
    std::size_t footprint_;
    char* base_;
    std::vector<std::vector<BareHeader>> ring_;  ///< Headers of the batches that are out.
    std::uint64_t submitted_ = 0;                ///< Batches.
    std::uint64_t finished_ = 0;
    std::uint64_t last_id_ = 0;
};

struct Server {
    apps::ChildProcess process;
    int port = 0;
};

Result<Server> startServer(std::size_t footprint) {
    auto process = startBeside({apps::ownProgramPath(), "--serve-bare", "--footprint", std::to_string(footprint)});
    if (!process) return process.status();
    auto line = process->readLine(kServerStart);
    if (!line) return line.status().withContext("the bare loop's server");
    const auto json = nlohmann::json::parse(*line, nullptr, false);
    if (!json.is_object() || !json.contains("port") || !json["port"].is_number_integer()) {
        return {Code::ProtocolError, "the bare loop's server answered: " + *line};
    }
    return Server{std::move(*process), json["port"].get<int>()};
}

/// Runs `initiator` for `seconds`; false when its peer has gone.
bool runFor(Initiator& initiator, double seconds) {
    const auto until = SteadyClock::now() + std::chrono::duration<double>(seconds);
    while (SteadyClock::now() < until) {
        if (!initiator.step()) return false;
    }
    return initiator.drain();
}

/// Runs all initiators at once, each on its own thread but for a lone one.
bool runAll(std::vector<Initiator>& initiators, double seconds) {
    if (initiators.size() == 1) return runFor(initiators[0], seconds);
    std::atomic<bool> good{true};
    std::vector<std::thread> threads;
    threads.reserve(initiators.size());
    for (auto& initiator : initiators) {
        threads.emplace_back([&] {
            if (!runFor(initiator, seconds)) good = false;
        });
    }
    for (auto& thread : threads) thread.join();
    return good;
}

}  // namespace

Result<LoopFigures> runBareSocket(const LoopOptions& options) {
    auto memory = Memory::populated(options.footprint);
    if (!memory) return memory.status();
    auto server = startServer(options.footprint);
    if (!server) return server.status();

    // The batch is shared out over the streams, so that as many bytes are out as over one.
    const std::uint32_t streams = std::clamp(options.streams, 1u, options.batch);
    std::vector<Initiator> initiators;
    for (std::uint32_t i = 0; i < streams; ++i) {
        const std::uint32_t batch = options.batch / streams + (i < options.batch % streams ? 1 : 0);
        auto stream = connectTo(server->port, {options.write ? 1u : 0u, batch, options.block, 0, 0});
        if (!stream) return stream.status();
        initiators.emplace_back(std::move(*stream), options, batch, i * (options.footprint / options.block / streams),
                                memory->data());
    }
    const Status gone(Code::ConnectionLost, "the bare loop's server has gone");
    if (!runAll(initiators, options.warmup_seconds)) return gone;

    const auto requests = [&] {
        std::uint64_t sum = 0;
        for (const auto& initiator : initiators) sum += initiator.requests();
        return sum;
    };
    const std::uint64_t before = requests();
    const double cpu_before = ownCpuSeconds() + server->process.cpuSeconds();
    const auto start = SteadyClock::now();
    if (!runAll(initiators, options.seconds)) return gone;
    const double seconds = std::chrono::duration<double>(SteadyClock::now() - start).count();
    const double cpu = ownCpuSeconds() + server->process.cpuSeconds() - cpu_before;

    const auto done = static_cast<double>(requests() - before);
    const double gigabytes = done * static_cast<double>(options.block) / 1e9;
    return LoopFigures{gigabytes / seconds, done / seconds, cpu / gigabytes};
}

Result<LatencyFigures> runBareLatency(bool write, std::size_t bytes, std::size_t count) {
    LoopOptions options;
    options.write = write;
    options.block = bytes;
    options.inflight = 1;
    options.footprint = std::max<std::size_t>(bytes, 1u << 20);
    auto memory = Memory::populated(options.footprint);
    if (!memory) return memory.status();
    auto server = startServer(options.footprint);
    if (!server) return server.status();
    auto stream = connectTo(server->port, {write ? 1u : 0u, 1, bytes, 1, 0});
    if (!stream) return stream.status();
    Initiator initiator(std::move(*stream), options, 1, 0, memory->data());
    std::vector<double> samples;
    const std::size_t warmup = count / 10;
    for (std::size_t i = 0; i < count + warmup; ++i) {
        const auto start = SteadyClock::now();
        if (!initiator.step() || !initiator.drain()) return {Code::ConnectionLost, "the bare loop's server has gone"};
        const std::chrono::duration<double, std::micro> took = SteadyClock::now() - start;
        if (i >= warmup) samples.push_back(took.count());
    }
    const double p50 = percentile(samples, 0.50);
    return LatencyFigures{p50, percentile(samples, 0.99)};
}

int serveBareSocket(std::size_t footprint) {
    auto memory = Memory::populated(footprint);
    UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    auto address = loopback(0);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (!memory || ::bind(listener.get(), generic, length) != 0 || ::listen(listener.get(), 64) != 0 ||
        ::getsockname(listener.get(), generic, &length) != 0) {
        fmt::print(stderr, "troupe_bench: the bare loop's server cannot start: {}\n", std::strerror(errno));
        return 1;
    }
    fmt::print("{}\n", nlohmann::json({{"port", ntohs(address.sin_port)}}).dump());
    std::fflush(stdout);

    for (;;) {
        pollfd ready[2] = {{STDIN_FILENO, POLLIN, 0}, {listener.get(), POLLIN, 0}};
        if (::poll(ready, 2, -1) < 0 && errno != EINTR) return 1;
        if (ready[0].revents != 0) {
            // Connections that still run touch the memory, which must outlive them: leave without unwinding.
            std::_Exit(0);
        }
        if (ready[1].revents == 0) continue;
        UniqueFd connection(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!connection) continue;
        std::thread([fd = std::move(connection), &memory]() mutable {
            serveConnection(std::move(fd), *memory);
        }).detach();
    }
}

}  // namespace troupe::bench
