#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/support/mapped_memory.h"
#include "base/byte_range.h"
#include "base/config.h"
#include "base/log.h"
#include "engine/transfer_engine.h"

namespace troupe::apps {

/// Options that every command takes.
struct CommonOptions {
    bool json = false;
    bool verbose = false;
    std::string config_file;
    std::vector<std::string> settings;  ///< "key=value".
};

/// Options of the commands that start an engine.
struct EngineArguments {
    CommonOptions common;
    std::string command = "troupe";  ///< Who asks: begins the name of a client of a store.
    std::string metadata = "p2p";
    std::string name;
    std::string host;
    std::uint16_t port = 0;
    /// "auto": every one there is, the engine chooses for each peer. "tcp", "rdma": by that wire, also to a peer on
    /// this host. "host": copies within the host alone. "null": moves nothing.
    std::string transport = "auto";
    bool serves = false;      ///< Others choose the way: with tcp, processes of this host may copy all the same.
    unsigned data_loops = 0;  ///< 0: what the configuration says.
};

void addCommonOptions(CLI::App& app, CommonOptions& options);
/// Common ones included.
void addEngineOptions(CLI::App& app, EngineArguments& arguments);

/// What the command line left out: a client of a store has no need of a name that somebody invents, nor of peers that
/// connect to it, so it is called "COMMAND-HOST-PID" and listens to this machine alone. Others stay as they are.
EngineArguments completed(EngineArguments arguments);

/// InvalidArgument when a file that the settings name is missing, unreadable or no such thing: the cluster keys, the
/// matrix of the topology. That of the store's password is looked at by who makes the store.
Status checkSettingFiles(const Config& config);

/// InvalidArgument when a setting, the metadata or the like of `arguments` can never work.
Status checkEngineArguments(const EngineArguments& arguments);
/// The same, for a command that compares what it moves with the segment `target`.
Status checkVerifiedTarget(const EngineArguments& arguments, const std::string& target);
/// InvalidArgument when `target` is no name that a segment can have.
Status checkTarget(const EngineArguments& arguments, const std::string& target);

/// The settings of the file, the environment and `--set`, later ones winning. InvalidArgument: one is wrong, or two
/// hinder each other.
Result<ConfigLoader> loadConfig(const CommonOptions& options);

/// Remote memory to work on.
struct Target {
    SegmentID segment = kInvalidSegmentID;
    std::string name;
    ByteRange range;        ///< Addresses of the owner.
    std::string transport;  ///< That reached it when it was opened.
};

/// The largest stretch of remotely accessible memory; touching buffers count as one. NotFound when there is none.
Result<ByteRange> largestRange(const std::vector<BufferDesc>& buffers);

/// It is memory of a GPU, which not every transport carries that reaches its owner.
bool isOnGpu(const BufferDesc& buffer);

/// An engine of this process with its memory. The memory outlives the engine, so nothing can touch it once unmapped.
class Session {
  public:
    static Result<std::unique_ptr<Session>> start(const EngineArguments& arguments);

    TransferEngine& engine() { return *engine_; }
    /// Maps and registers; `regions` > 1 registers it in as many touching pieces. `remote`: peers may reach it.
    Result<std::span<std::byte>> addMemory(std::uint64_t bytes, bool huge, bool remote, unsigned regions = 1);
    /// The same with memory of the engine's own (TransferEngine::allocateLocalMemory), as one region.
    Result<std::span<std::byte>> allocateMemory(std::uint64_t bytes, bool huge, bool remote);
    Result<Target> openTarget(const std::string& name);
    /// The transport that carries what goes to `target`: "tcp"; "host, then tcp" when it is another than at first.
    /// Where a GPU's memory is there it reads a byte to find out.
    std::string transportUsed(const Target& target);
    /// Why rdma was left out where every transport was to be installed; Ok: it was not.
    const Status& withoutRdma() const { return without_rdma_; }
    /// The status of a transfer of this session; a deadline that passed with which one it was, an owner who is not
    /// there any more with that. `reached`: a transport reached the target when it was opened.
    Status explained(const Status& status, bool reached) const;

  private:
    Session() = default;
    Status installTransports(const EngineArguments& arguments);
    Status withoutPinning(const Status& status) const;
    /// Now; empty: none reaches it.
    std::string transportTo(SegmentID segment, const ByteRange& range);
    std::string carrierOfARead(SegmentID segment, std::uint64_t address);
    Logger log_;
    Status without_rdma_;
    std::chrono::milliseconds transfer_timeout_{};
    std::vector<MappedMemory> memory_;
    std::span<std::byte> trial_;  ///< What a read to find out goes to; empty: none was needed.
    std::unique_ptr<TransferEngine> engine_;
};

}  // namespace troupe::apps
