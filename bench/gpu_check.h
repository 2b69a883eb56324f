#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/config.h"
#include "cuda_backend/cuda_runtime.h"
#include "engine/transfer_engine.h"
#include "transports/staged_copy.h"

/// What the files of troupe_gpu_check have in common; gpu_check.cpp says what it is.
namespace troupe::cuda::check {

using namespace device;

struct Arguments {
    std::uint64_t bytes = 256u << 20;  ///< Of the buffers that are copied.
    std::string json;
    Config config;  ///< What the environment says, for engines; and which driver.
    int device = 0;
    std::chrono::seconds limit{240};  ///< No section goes on for longer than that after the start of all.
    int child = -1;                   ///< Descriptor that the other process is told by; -1: this is the first.
    int peer = -1;                    ///< The same of one with an engine.
    bool host = false;                ///< Of an engine: other processes of the host by other ways than TCP.
};

/// A check fails once, with its reason, and ends its section.
class Failed {
  public:
    explicit Failed(std::string why) : why_(std::move(why)) {}
    const std::string& why() const { return why_; }

  private:
    std::string why_;
};

inline void must(const Status& status) {
    if (!status) throw Failed(status.toString());
}
template <class T>
T must(Result<T> result) {
    must(result.status());
    return std::move(*result);
}
inline void must(bool is, const char* what) {
    if (!is) throw Failed(what);
}

inline std::vector<std::uint8_t> noise(std::size_t bytes, std::uint64_t seed) {
    std::vector<std::uint8_t> out(bytes);
    std::mt19937_64 random(seed);
    for (std::size_t at = 0; at < bytes; at += 8) {
        const std::uint64_t word = random();
        std::memcpy(out.data() + at, &word, std::min<std::size_t>(8, bytes - at));
    }
    return out;
}

/// One GPU with what every section needs. Of each section what it finds goes to `report`, and is printed.
class Bench {
  public:
    explicit Bench(const Arguments& arguments)
        : arguments_(arguments),
          runtime_(must(CudaRuntime::create({arguments.config.gpu_driver, false}))),
          gpu_(must(runtime_->open(arguments.device))),
          stream_(must(gpu_->makeStream())),
          out_(must(StagingRing::create(gpu_, ringOptions()))),
          in_(must(StagingRing::create(gpu_, ringOptions()))),
          until_(Clock::now() + arguments.limit) {}

    const DeviceInfo& info() const { return gpu_->info(); }
    /// What this backend relies on holds, as far as was looked.
    bool factsHold() const { return facts_hold_; }
    int version() const { return runtime_->driver().version(); }

    void facts(nlohmann::json& report);
    void virtualMemory(nlohmann::json& report);
    void nicWrites(nlohmann::json& report);
    void copies(nlohmann::json& report);
    void staging(nlohmann::json& report);
    void packing(nlohmann::json& report);
    void pages(nlohmann::json& report);
    void otherProcess(nlohmann::json& report);
    void engineWithin(nlohmann::json& report);
    void engineByIpc(nlohmann::json& report);
    void engineByTcp(nlohmann::json& report);
    int serveChild();
    int servePeer();
    /// All rows, with what each is to reach.
    void printTable() const;

  private:
    class EnginePeer;
    struct Row {
        std::string name;
        double gigabytes;
        double roof;
        double target;  ///< Of the roof; 0: none.
    };

    /// Those of an engine.
    StagingOptions ringOptions() const {
        return {arguments_.config.gpu_staging_chunk_bytes, arguments_.config.gpu_staging_chunks,
                gpu_->info().numa_node};
    }
    double copyRoof(std::uint64_t to, std::uint64_t from, std::uint64_t bytes);
    void engineWithVirtual(nlohmann::json& report, const ByteRange& range);
    void ordering(TransferEngine& engine, SegmentID target, std::uint64_t local, std::uint64_t remote);
    void beside(TransferEngine& engine, SegmentID target, std::uint64_t local, std::uint64_t remote);
    void put(std::uint64_t to, const std::vector<std::uint8_t>& bytes);
    std::vector<std::uint8_t> get(std::uint64_t from, std::uint64_t bytes);
    /// Of a fact that nothing stands in for, that it does not hold fails the run.
    enum class Fact { ReliedOn, DoneWithout };
    void fact(nlohmann::json& report, Fact kind, const char* name, const std::function<Status()>& check);
    double rate(std::uint64_t bytes, const std::function<void()>& work);
    void row(nlohmann::json& report, const std::string& name, double gigabytes, double roof, double target = 0);
    void packPages(nlohmann::json& report, const PageMover& mover, std::uint64_t page_bytes, std::uint64_t pages,
                   std::uint64_t packed, double roof);
    void stagePages(nlohmann::json& report, StagingRing& ring, const std::string& by, std::uint64_t page_bytes,
                    std::uint64_t memory, double roof);
    static void sendPages(StagingRing& ring, const std::vector<ByteRange>& pages, std::uint8_t* to);
    static void receivePages(StagingRing& ring, const std::vector<ByteRange>& pages, const std::uint8_t* bytes);

    const Arguments arguments_;
    std::shared_ptr<CudaRuntime> runtime_;
    std::shared_ptr<Device> gpu_;
    DeviceStream stream_;
    std::unique_ptr<StagingRing> out_;
    std::unique_ptr<StagingRing> in_;
    TimePoint until_;
    std::vector<Row> rows_;
    bool facts_hold_ = true;
};

}  // namespace troupe::cuda::check
