#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fault_injector.h"
#include "engine/transfer_engine.h"

namespace troupe::test {

/// Long enough for a loaded machine and a sanitizer; a test that waits this long has failed.
inline constexpr std::chrono::seconds kPatience{60};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
#else
inline constexpr bool kSanitized = false;
#endif

/// Whole pages of anonymous memory of their own mapping, so that they can be protected.
class Buffer {
  public:
    explicit Buffer(std::size_t bytes) : size_(bytes) {
        void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        data_ = static_cast<std::byte*>(mapped);
    }
    Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer& operator=(Buffer&&) = delete;
    ~Buffer() {
        if (data_ != nullptr) ::munmap(data_, size_);
    }

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; }
    std::uint64_t address(std::size_t offset = 0) const { return reinterpret_cast<std::uint64_t>(data_) + offset; }

    void fill(std::byte value) { std::memset(data_, static_cast<int>(value), size_); }
    /// Contents that differ at every position and for every seed.
    void fillPattern(std::uint64_t seed) {
        for (std::size_t i = 0; i < size_; ++i) data_[i] = patternByte(seed, i);
    }
    bool holdsPattern(std::uint64_t seed) const {
        for (std::size_t i = 0; i < size_; ++i)
            if (data_[i] != patternByte(seed, i)) return false;
        return true;
    }
    bool holdsOnly(std::byte value, std::size_t offset, std::size_t length) const {
        return std::all_of(data_ + offset, data_ + offset + length, [value](std::byte b) { return b == value; });
    }
    void protect(int protection) { ASSERT_EQ(::mprotect(data_, size_, protection), 0); }

  private:
    static std::byte patternByte(std::uint64_t seed, std::size_t i) {
        return static_cast<std::byte>((i * 131 + (i >> 8) * 17 + seed * 29 + 7) & 0xff);
    }

    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
};

/// How a test engine is started.
struct EngineSetup {
    Config config;
    std::string host = "127.0.0.1";
    bool tcp = true;
    EngineOptions options{};  ///< Its config is replaced by `config`.

    EngineSetup() {
        config.data_loops = 1;
        // What the tests call the wire is TCP; those of the host transport turn this on.
        config.host_peers = false;
        config.transfer_timeout = std::chrono::milliseconds(kPatience);
        // Who is late on a loaded machine is not passed over.
        config.host_probe_timeout = std::chrono::milliseconds(kPatience);
    }
};

inline std::unique_ptr<TransferEngine> startEngine(const EngineSetup& setup = {}, std::uint16_t port = 0) {
    EngineOptions options = setup.options;
    options.config = setup.config;
    if (!options.log) options.log = makeSilentLogger();
    auto engine = std::make_unique<TransferEngine>(std::move(options));
    const Status started = engine->init("p2p", "", setup.host, port);
    EXPECT_TRUE(started) << started.toString();
    if (started && setup.tcp) {
        const auto tcp = engine->installTransport("tcp");
        EXPECT_TRUE(tcp) << tcp.status().toString();
    }
    return engine;
}

inline TransferRequest makeRequest(Opcode opcode, SegmentID target, void* source, std::uint64_t offset,
                                   std::size_t length) {
    TransferRequest request;
    request.opcode = opcode;
    request.source = source;
    request.target_id = target;
    request.target_offset = offset;
    request.length = length;
    return request;
}

/// A batch that is freed when the test leaves.
class BatchHolder {
  public:
    BatchHolder(TransferEngine& engine, std::size_t capacity) : engine_(engine) {
        const auto batch = engine.allocateBatchID(capacity);
        EXPECT_TRUE(batch) << batch.status().toString();
        if (batch) id_ = *batch;
    }
    ~BatchHolder() {
        if (id_ == kInvalidBatchID) return;
        static_cast<void>(engine_.waitTransfer(id_, kPatience));
        static_cast<void>(engine_.freeBatchID(id_));
    }
    BatchHolder(const BatchHolder&) = delete;
    BatchHolder& operator=(const BatchHolder&) = delete;

    BatchID id() const { return id_; }
    Status submit(const std::vector<TransferRequest>& requests) { return engine_.submitTransfer(id_, requests); }
    TransferStatus wait() const {
        const auto status = engine_.waitTransfer(id_, kPatience);
        EXPECT_TRUE(status) << status.status().toString();
        return status ? *status : TransferStatus{};
    }
    TransferStatus task(std::size_t index) const {
        const auto status = engine_.getTransferStatus(id_, index);
        EXPECT_TRUE(status) << status.status().toString();
        return status ? *status : TransferStatus{};
    }

  private:
    TransferEngine& engine_;
    BatchID id_ = kInvalidBatchID;
};

/// Submits the requests as one batch and waits for its end.
inline TransferStatus runBatch(TransferEngine& engine, const std::vector<TransferRequest>& requests) {
    BatchHolder batch(engine, std::max<std::size_t>(requests.size(), 1));
    const Status submitted = batch.submit(requests);
    EXPECT_TRUE(submitted) << submitted.toString();
    if (!submitted) return {};
    return batch.wait();
}

/// Submits the request until it completes, for as long as a test waits for anything: a peer that was restarted may have
/// no transport yet, and then it is refused.
inline TransferStatus runUntilCompleted(TransferEngine& engine, const TransferRequest& request) {
    const auto limit = Clock::now() + kPatience;
    TransferStatus status;
    do {
        BatchHolder batch(engine, 1);
        if (batch.submit({request})) status = batch.wait();
    } while (status.s != TransferStatusEnum::COMPLETED && Clock::now() < limit);
    return status;
}

/// An initiator with `local` registered, a target with `remote` registered, and the target's segment opened.
class EnginePair {
  public:
    explicit EnginePair(const EngineSetup& setup = {}, std::size_t bytes = 1u << 20)
        : local(bytes), remote(bytes), a(startEngine(setup)), b(startEngine(setup)) {
        const Status here = a->registerLocalMemory(local.data(), local.size());
        EXPECT_TRUE(here) << here.toString();
        const Status there = b->registerLocalMemory(remote.data(), remote.size());
        EXPECT_TRUE(there) << there.toString();
        const auto opened = a->openSegment(b->localSegmentName());
        EXPECT_TRUE(opened) << opened.status().toString();
        if (opened) segment = *opened;
    }

    TransferRequest request(Opcode opcode, std::size_t local_offset, std::size_t remote_offset, std::size_t length) {
        return makeRequest(opcode, segment, local.data() + local_offset, remote.address(remote_offset), length);
    }
    TransferStatus write(std::size_t local_offset, std::size_t remote_offset, std::size_t length) {
        return runBatch(*a, {request(Opcode::Write, local_offset, remote_offset, length)});
    }
    TransferStatus read(std::size_t local_offset, std::size_t remote_offset, std::size_t length) {
        return runBatch(*a, {request(Opcode::Read, local_offset, remote_offset, length)});
    }

    Buffer local;
    Buffer remote;
    std::unique_ptr<TransferEngine> a;
    std::unique_ptr<TransferEngine> b;
    SegmentID segment = kInvalidSegmentID;
};

/// Holds up what is under way to an engine over TCP: its data loop stands still until goOn(), or a minute. The engine
/// is one with a single data loop, whose `faults_enabled` is set.
class HeldUp {
  public:
    explicit HeldUp(TransferEngine& target) : target_(target) {
        const Status frozen = (*target.faults())->freezeLoop(0, kLongestFault);
        EXPECT_TRUE(frozen) << frozen.toString();
    }
    ~HeldUp() { goOn(); }
    HeldUp(const HeldUp&) = delete;
    HeldUp& operator=(const HeldUp&) = delete;
    void goOn() { (*target_.faults())->clear(); }

  private:
    TransferEngine& target_;
};
inline EngineSetup breakableSetup() {
    EngineSetup setup;
    setup.config.faults_enabled = true;
    return setup;
}

inline void expectCompleted(const TransferStatus& status, std::size_t bytes) {
    EXPECT_EQ(status.s, TransferStatusEnum::COMPLETED) << toString(status.s) << " " << status.error.toString();
    EXPECT_EQ(status.transferred_bytes, bytes);
    EXPECT_TRUE(status.quiesced);
    EXPECT_TRUE(status.error.isOk());
}

/// An engine that the pair does not know yet opens the target's segment and writes to it.
inline void expectNewcomerWrites(EnginePair& pair, const EngineSetup& setup) {
    constexpr std::size_t kBytes = 65536;
    const auto newcomer = startEngine(setup);
    ASSERT_TRUE(newcomer->registerLocalMemory(pair.local.data(), pair.local.size()));
    const auto segment = newcomer->openSegment(pair.b->localSegmentName());
    ASSERT_TRUE(segment) << segment.status().toString();
    expectCompleted(
        runBatch(*newcomer, {makeRequest(Opcode::Write, *segment, pair.local.data(), pair.remote.address(), kBytes)}),
        kBytes);
}

inline void expectFailed(const TransferStatus& status, Code code) {
    EXPECT_EQ(status.s, TransferStatusEnum::FAILED) << toString(status.s);
    EXPECT_EQ(status.error.code(), code) << status.error.toString();
    EXPECT_FALSE(status.error.message().empty());
    EXPECT_TRUE(status.quiesced);
}

inline void expectCode(const Status& status, Code code) { EXPECT_EQ(status.code(), code) << status.toString(); }
template <class T>
void expectCode(const Result<T>& result, Code code) {
    expectCode(result.status(), code);
}

}  // namespace troupe::test
