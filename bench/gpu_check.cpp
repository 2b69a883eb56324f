// What only a GPU can tell: whether its driver does what this backend takes for granted, whether bytes come out right
// by each of its ways, from single copies to whole engines in two processes, and how fast those are beside the driver's
// own copies in the same run.
//
//   troupe_gpu_check [--bytes N] [--json FILE] [--device N] [--seconds N]
//
// After --seconds (240) nothing new is measured, and the run has failed.
//
// Runs on the driver of tests/fake_cuda, too (TROUPE_GPU_DRIVER=...), where its speeds mean nothing. Exit status 1: a
// check failed, or a fact does not hold that this backend relies on.

#include "bench/gpu_check.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>

#include "base/clock.h"
#include "base/config.h"

namespace troupe::cuda::check {

/// Through the ring, as TCP will.
void Bench::put(std::uint64_t to, const std::vector<std::uint8_t>& bytes) {
    StagedSink sink(*in_, {to, bytes.size()});
    std::size_t done = 0;
    while (!sink.isDone()) {
        const auto room = sink.room();
        if (!room.empty()) {
            std::memcpy(room.data(), bytes.data() + done, room.size());
            must(sink.commit(room.size()));
            done += room.size();
        }
        in_->poll();
        must(in_->state());
    }
}

std::vector<std::uint8_t> Bench::get(std::uint64_t from, std::uint64_t bytes) {
    std::vector<std::uint8_t> out;
    StagedSource source(*out_, {from, bytes});
    for (must(source.advance()); !source.isDone(); must(source.advance())) {
        const auto ready = source.ready();
        const auto* begin = reinterpret_cast<const std::uint8_t*>(ready.data());
        out.insert(out.end(), begin, begin + ready.size());
        source.consume(ready.size());
        out_->poll();
    }
    return out;
}

/// Gigabytes (10^9) per second: the median of five, after one that is not counted.
double Bench::rate(std::uint64_t bytes, const std::function<void()>& work) {
    std::vector<double> rates;
    for (int round = 0; round < 6; ++round) {
        must(Clock::now() < until_, "the time of this run (--seconds) is over");
        const TimePoint start = Clock::now();
        work();
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        if (round > 0) rates.push_back(static_cast<double>(bytes) / seconds / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    return rates[rates.size() / 2];
}

void Bench::row(nlohmann::json& report, const std::string& name, double gigabytes, double roof, double target) {
    const double ratio = gigabytes / roof;
    fmt::print("  {:<44} {:>9.2f} GB/s\n", name, gigabytes);
    report.push_back({{"name", name},
                      {"gbps", gigabytes},
                      {"roof", roof},
                      {"ratio", ratio},
                      {"target", target == 0 ? nlohmann::json() : nlohmann::json(target)},
                      {"met", target == 0 ? nlohmann::json() : nlohmann::json(ratio >= target)}});
    rows_.push_back({name, gigabytes, roof, target});
}

void Bench::printTable() const {
    fmt::print("\n{:<44} {:>9} {:>9} {:>6} {:>7} {}\n", "", "GB/s", "roof", "ratio", "target", "met");
    for (const Row& row : rows_) {
        const double ratio = row.gigabytes / row.roof;
        const bool has_target = row.target != 0;
        fmt::print("{:<44} {:>9.2f} {:>9.2f} {:>6.2f} {:>7} {}\n", row.name, row.gigabytes, row.roof, ratio,
                   has_target ? fmt::format("{:.2f}", row.target) : "",
                   !has_target           ? ""
                   : ratio >= row.target ? "yes"
                                         : "NO");
    }
}

void Bench::fact(nlohmann::json& report, Fact kind, const char* name, const std::function<Status()>& check) {
    Status status;
    try {
        status = check();
    } catch (const Failed& failed) {
        status = Status(Code::Internal, failed.why());
    }
    const bool needed = kind == Fact::ReliedOn;
    fmt::print("  {:<44} {}\n", name, status ? "yes" : (needed ? "FAILED: " : "NO: ") + status.toString());
    report.push_back({{"name", name}, {"holds", status.isOk()}, {"relied_on", needed}, {"why", status.toString()}});
    facts_hold_ = facts_hold_ && (status || !needed);
}

/// What the manual does not say clearly, and this backend relies on, or is told about and does without.
void Bench::facts(nlohmann::json& report) {
    const std::vector<char> host(100);
    const DeviceMemory small = must(gpu_->allocate(5000));
    const DeviceMemory large = must(gpu_->allocate(8u << 20));
    fact(report, Fact::ReliedOn, "attributes without a current context", [&] {
        const auto place = runtime_->locate({small.get(), 5000});
        if (!place) return place.status();
        return place->device == arguments_.device ? Status() : Status(Code::Internal, "it is " + place->location);
    });
    fact(report, Fact::ReliedOn, "memory of the host is told apart", [&] {
        const auto place = runtime_->locate({reinterpret_cast<std::uint64_t>(host.data()), host.size()});
        if (!place) return place.status();
        return place->kind == MemoryKind::Host ? Status() : Status(Code::Internal, "it is " + place->location);
    });
    fact(report, Fact::ReliedOn, "an allocation is found from inside it", [&] {
        const MemoryPlace place = must(runtime_->locate({large.get() + 12345, 100}));
        const ByteRange all{large.get(), 8u << 20};
        return place.pieces.at(0).allocation == all ? Status()
                                                    : Status(Code::Internal, place.pieces[0].allocation.toString());
    });
    fact(report, Fact::DoneWithout, "dma-buf of a large allocation", [&] {
        return gpu_->exportDmabuf({large.get(), 8u << 20}).status();
    });
    fact(report, Fact::DoneWithout, "dma-buf of a small allocation", [&] {
        return gpu_->exportDmabuf({small.get(), 5000}).status();
    });
    fact(report, Fact::DoneWithout, "ordered for NICs", [&] { return gpu_->orderForNics({large.get(), 8u << 20}); });
    fact(report, Fact::DoneWithout, "exported by IPC", [&] {
        return gpu_->exportMemory(must(runtime_->locate({large.get(), 100})), false).status();
    });
    fact(report, Fact::ReliedOn, "a page of a memory file is pinned", [&] {
        const auto place = runtime_->locate({reinterpret_cast<std::uint64_t>(out_->data(0)), out_->chunkBytes()});
        if (!place) return place.status();
        return place->kind == MemoryKind::Pinned ? Status() : Status(Code::Internal, "it is " + place->location);
    });
    fact(report, Fact::DoneWithout, "packing kernel", [&] { return gpu_->makeMover().status(); });
}

void Bench::copies(nlohmann::json& report) {
    const std::uint64_t bytes = arguments_.bytes;
    const DeviceMemory from = must(gpu_->allocate(bytes));
    const DeviceMemory to = must(gpu_->allocate(bytes));
    const auto pattern = noise(bytes, 1);
    put(from.get(), pattern);
    const double roof = rate(bytes, [&] {
        must(gpu_->copy(stream_, to.get(), from.get(), bytes));
        must(gpu_->synchronize(stream_));
    });
    must(get(to.get(), bytes) == pattern, "a copy within the GPU differs");
    for (std::uint64_t piece = 1u << 20; piece <= bytes; piece *= 8) {
        const std::uint64_t whole = bytes / piece * piece;
        const auto other = noise(whole, piece);
        put(from.get(), other);
        const double measured = rate(whole, [&] {
            for (std::uint64_t at = 0; at + piece <= bytes; at += piece)
                must(gpu_->copy(stream_, to.get() + at, from.get() + at, piece));
            must(gpu_->synchronize(stream_));
        });
        must(get(to.get(), whole) == other, "copies within the GPU differ");
        row(report, fmt::format("within the GPU, copies of {} KiB", piece >> 10), measured, roof);
    }
}

void Bench::staging(nlohmann::json& report) {
    const std::uint64_t bytes = arguments_.bytes;
    const DeviceMemory memory = must(gpu_->allocate(bytes));
    const HostMemory pinned = must(gpu_->allocateHost(bytes));
    for (const bool out : {true, false}) {
        const double roof = rate(bytes, [&] {
            must(out ? gpu_->copy(stream_, pinned.get(), memory.get(), bytes)
                     : gpu_->copy(stream_, memory.get(), pinned.get(), bytes));
            must(gpu_->synchronize(stream_));
        });
        // A wire that takes and gives at once: what is left is the ring's own.
        const double measured = rate(bytes, [&] {
            StagedSource source(*out_, {memory.get(), bytes});
            StagedSink sink(*in_, {memory.get(), bytes});
            while (out ? !source.isDone() : !sink.isDone()) {
                if (out) {
                    must(source.advance());
                    source.consume(source.ready().size());
                    out_->poll();
                } else {
                    if (const auto room = sink.room(); !room.empty()) must(sink.commit(room.size()));
                    in_->poll();
                    must(in_->state());
                }
            }
        });
        row(report, out ? "staged, from the GPU" : "staged, to the GPU", measured, roof);
    }
}

/// The other process maps memory of this one, writes it at an offset, and says how fast.
void Bench::otherProcess(nlohmann::json& report) {
    const std::uint64_t bytes = arguments_.bytes;
    const DeviceMemory memory = must(gpu_->allocate(bytes + 4096));
    const auto shared = must(gpu_->exportMemory(must(runtime_->locate({memory.get(), bytes})), false));
    int to_child[2];
    int from_child[2];
    must(::pipe(to_child) == 0 && ::pipe(from_child) == 0, "no pipe");
    const std::string size = std::to_string(bytes);
    const std::string device = std::to_string(arguments_.device);
    const std::string reply = std::to_string(from_child[1]);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(to_child[0], 0);
        // Its copy of the other end would keep the pipe open.
        ::close(to_child[1]);
        ::execl("/proc/self/exe", "troupe_gpu_check", "--bytes", size.c_str(), "--device", device.c_str(), "--child",
                reply.c_str(), static_cast<char*>(nullptr));
        ::_exit(127);
    }
    ::close(to_child[0]);
    ::close(from_child[1]);
    const SharedMemory& one = shared.at(0);
    const std::uint64_t claims[] = {one.allocation_id, one.allocation.addr, one.allocation.length};
    bool told = ::write(to_child[1], claims, sizeof claims) == sizeof claims;
    told =
        ::write(to_child[1], one.handle.data(), one.handle.size()) == static_cast<ssize_t>(one.handle.size()) && told;
    double rates[2] = {0, 1};
    const bool answered = ::read(from_child[0], rates, sizeof rates) == sizeof rates;
    ::close(to_child[1]);
    ::close(from_child[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    must(told && answered && status == 0, "the other process failed; it says why above");
    must(get(memory.get() + 4096, bytes) == noise(bytes, 3), "what the other process wrote differs");
    row(report, "by IPC, written by another process", rates[0], rates[1]);
}

int Bench::serveChild() {
    SharedMemory shared;
    std::uint64_t claims[3] = {};
    must(::read(0, claims, sizeof claims) == sizeof claims, "nothing was said");
    must(::read(0, shared.handle.data(), shared.handle.size()) == static_cast<ssize_t>(shared.handle.size()),
         "no handle was said");
    shared.allocation_id = claims[0];
    shared.allocation = {claims[1], claims[2]};
    const std::uint64_t bytes = arguments_.bytes;
    const ImportedMemory mapped = must(gpu_->importMemory(shared));
    const DeviceMemory mine = must(gpu_->allocate(bytes));
    const DeviceMemory other = must(gpu_->allocate(bytes));
    put(mine.get(), noise(bytes, 3));
    const auto copyTo = [&](std::uint64_t to) {
        return rate(bytes, [&, to] {
            must(gpu_->copy(stream_, to, mine.get(), bytes));
            must(gpu_->synchronize(stream_));
        });
    };
    const double rates[2] = {copyTo(mapped.get() + 4096), copyTo(other.get())};
    must(::write(arguments_.child, rates, sizeof rates) == sizeof rates, "nobody listens");
    return 0;
}

namespace {

int run(const Arguments& arguments) {
    Bench bench(arguments);
    if (arguments.child >= 0) return bench.serveChild();
    if (arguments.peer >= 0) return bench.servePeer();
    const DeviceInfo& info = bench.info();
    fmt::print("{}, {}, compute capability {}.{}, driver API {}\n", info.name, info.location, info.major, info.minor,
               bench.version());
    nlohmann::json report = {{"gpu", info.name},
                             {"capability", fmt::format("{}.{}", info.major, info.minor)},
                             {"driver", bench.version()},
                             {"bytes", arguments.bytes}};
    bool failed = false;
    const std::pair<const char*, void (Bench::*)(nlohmann::json&)> sections[] = {
        {"facts", &Bench::facts},           {"virtual", &Bench::virtualMemory},
        {"nic_writes", &Bench::nicWrites},  {"copies", &Bench::copies},
        {"ipc", &Bench::otherProcess},      {"staging", &Bench::staging},
        {"packing", &Bench::packing},       {"pages", &Bench::pages},
        {"engine", &Bench::engineWithin},   {"engine_ipc", &Bench::engineByIpc},
        {"engine_tcp", &Bench::engineByTcp}};
    for (const auto& [name, section] : sections) {
        fmt::print("{}\n", name);
        report[name] = nlohmann::json::array();
        try {
            (bench.*section)(report[name]);
        } catch (const Failed& why) {
            failed = true;
            fmt::print("  FAILED: {}\n", why.why());
            report[name].push_back({{"failed", why.why()}});
        }
    }
    failed = failed || !bench.factsHold();
    report["passed"] = !failed;
    bench.printTable();
    if (!arguments.json.empty()) std::ofstream(arguments.json) << report.dump(2) << '\n';
    return failed ? 1 : 0;
}

Arguments parse(int argc, char** argv) {
    Arguments arguments;
    ConfigLoader settings;
    must(settings.loadEnvironment(environ));
    arguments.config = settings.config();
    for (int index = 1; index < argc; index += 2) {
        const std::string name = argv[index];
        must(index + 1 < argc, "an option without a value");
        const char* value = argv[index + 1];
        if (name == "--bytes")
            arguments.bytes = std::max<std::uint64_t>(std::strtoull(value, nullptr, 10), 1u << 20);
        else if (name == "--json")
            arguments.json = value;
        else if (name == "--device")
            arguments.device = std::atoi(value);
        else if (name == "--seconds")
            arguments.limit = std::chrono::seconds(std::atoi(value));
        else if (name == "--child")
            arguments.child = std::atoi(value);
        else if (name == "--peer")
            arguments.peer = std::atoi(value);
        else if (name == "--host")
            arguments.host = value[0] == '1';
        else
            throw Failed("usage: troupe_gpu_check [--bytes N] [--json FILE] [--device N] [--seconds N]");
    }
    return arguments;
}

}  // namespace
}  // namespace troupe::cuda::check

int main(int argc, char** argv) {
    try {
        return troupe::cuda::check::run(troupe::cuda::check::parse(argc, argv));
    } catch (const troupe::cuda::check::Failed& failed) {
        fmt::print(stderr, "troupe_gpu_check: {}\n", failed.why());
        return 1;
    }
}
