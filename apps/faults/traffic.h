#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/support/random.h"
#include "base/byte_range.h"
#include "engine/transfer_engine.h"

namespace troupe::apps::faults {

/// How what was submitted ended.
struct Tally {
    std::uint64_t completed = 0;
    std::uint64_t bytes = 0;                      ///< Of completed operations.
    std::map<std::string, std::uint64_t> failed;  ///< By cause: the name of its code.
    std::uint64_t refused = 0;                    ///< Not even submitted.
    std::uint64_t wrong = 0;                      ///< Operations with a wrong byte, or a buffer touched after its end.
    std::uint64_t hung = 0;                       ///< Not ended when they had to be: Traffic::Options.
    std::uint64_t quarantined = 0;                ///< Ended, and not quiesced.
    std::string first_wrong;

    std::uint64_t failures() const;
    void add(const Tally& other);
};

/// What an operation may take past its deadline: until its path is reset and drained, or a target that does not answer
/// is given up. By TCP that is 1 s (docs/design.md "Fencing"), by RDMA rdma.drain_timeout (0.5 s), the 2 s in which a
/// queue pair that does not drain is destroyed, and 1 s for its fence; and the rest is for a machine that is busy.
inline constexpr std::chrono::milliseconds kDrainBound{2000};
inline constexpr std::chrono::milliseconds kDrainBoundOfRdma{4000};

/// Reads and writes of whole blocks of a target, as many at a time as there may be, every byte of them compared with
/// what the writes before can have left there. A write that failed may have arrived in part, so from then on each byte
/// of the block may be of it or of those before, until a write completes. What failed leaves its buffer at rest for a
/// while, and nothing may touch it there. One thread.
class Traffic {
  public:
    struct Options {
        std::uint64_t block = 256u << 10;
        std::uint32_t inflight = 8;
        std::chrono::milliseconds deadline{1000};
        std::chrono::milliseconds drain = kDrainBound;
        /// An operation that has not ended so long after its submit has hung; nothing: at its deadline + `drain`.
        std::optional<std::chrono::milliseconds> ends_within;
        std::uint64_t seed = 1;

        /// From a submit until none of this can be under way any more.
        std::chrono::milliseconds longest() const { return ends_within.value_or(deadline + drain); }
    };
    enum class Storm { None, Deadlines, Cancels };

    /// Memory that a Traffic of these options needs.
    static std::uint64_t localBytes(const Options& options);

    /// `local` is registered, and outlives this. The target has no other writer in its first blocks() blocks.
    Traffic(TransferEngine& engine, std::span<std::byte> local, const Options& options);
    ~Traffic();
    Traffic(const Traffic&) = delete;
    Traffic& operator=(const Traffic&) = delete;

    /// Where the target's memory is (now). What it holds is unknown.
    void aim(SegmentID segment, const ByteRange& remote);
    /// What the target's memory holds is unknown from now on, and operations under way may be served by what it held or
    /// by what it will hold: before a target is started again.
    void forget();
    std::uint32_t blocks() const { return static_cast<std::uint32_t>(blocks_.size()); }

    /// Takes in what has ended, and begins as much as there is room for. Waits for nothing.
    void step(TimePoint now);
    /// Takes in what has ended. True: nothing is under way.
    bool drain(TimePoint now);
    /// Something to wait for between two steps; nothing when all is refused.
    std::optional<BatchID> oldest() const;
    /// Operations under way.
    std::size_t running() const { return running_.size(); }
    void setStorm(Storm storm) { storm_ = storm; }
    /// Asks the engine of each operation that ends after a fault which way it went, for firstMove().
    void lookForMoves() { looks_for_moves_ = true; }

    /// From now on bytes may be damaged on their way to the target, so a write that fails may have left any there.
    void expectDamage() { damaged_ = true; }

    /// Something breaks now; something is mended now.
    void markFault(TimePoint now);
    void markHealed(TimePoint now);
    /// What broke did so only now: allEnded() is of what is under way at this moment.
    void faultWorks(TimePoint now);
    /// When the first operation failed after the fault, and when all that was under way at it had ended.
    std::optional<TimePoint> firstFailure() const { return first_failure_; }
    std::optional<TimePoint> allEnded() const { return all_ended_; }
    /// When the first operation completed that was begun after all was mended.
    std::optional<TimePoint> firstSuccess() const { return first_success_; }

    /// The shortest time from the moment in which the bytes of an operation came back from a Nic until the first of
    /// them had arrived by another.
    std::optional<Duration> firstMove() const { return first_move_; }

    const Tally& tally() const { return tally_; }

  private:
    struct Block {
        std::uint64_t offset = 0;          ///< In the target's memory.
        std::vector<std::uint64_t> seeds;  ///< Of the streams that a byte of it may be of; empty: unknown.
        bool busy = false;
    };
    struct Operation {
        BatchID batch = kInvalidBatchID;
        Block* block = nullptr;
        std::span<std::byte> buffer;
        std::uint64_t seed = 0;
        std::uint64_t life = 0;  ///< Of the memory it was begun for.
        bool write = false;
        bool is_canceled = false;
        bool is_hung = false;
        TimePoint begun;
        TimePoint ends_by;  ///< Else it has hung.
    };
    struct Resting {
        std::span<std::byte> buffer;
        TimePoint until;
    };

    bool begin(TimePoint now);
    Operation prepare();
    bool take(Operation& operation, TimePoint now);
    void onCompleted(const Operation& operation, TimePoint now);
    void onFailed(const Operation& operation, const TransferStatus& status, TimePoint now);
    void check(const Operation& operation);
    void noteMove(const Operation& operation);
    void wakeResting(TimePoint now);
    void wrong(std::string what);

    TransferEngine& engine_;
    const Options options_;
    Random random_;
    SegmentID segment_ = kInvalidSegmentID;
    ByteRange remote_;
    std::vector<Block> blocks_;
    std::vector<std::span<std::byte>> free_;
    std::deque<Resting> resting_;
    std::deque<Operation> running_;
    std::vector<std::byte> expected_;  ///< Scratch.
    std::vector<bool> agrees_;         ///< Scratch.
    Storm storm_ = Storm::None;
    std::uint64_t writes_ = 0;
    std::uint64_t life_ = 0;  ///< Counts how often what is known of the memory was forgotten.
    TimePoint refused_until_{};
    std::optional<Operation> refused_;  ///< Filled, and not taken.
    Tally tally_;
    TimePoint fault_at_ = kForever;
    TimePoint fault_works_at_ = kForever;
    TimePoint healed_at_ = kForever;
    std::optional<TimePoint> first_failure_;
    std::optional<TimePoint> all_ended_;
    std::optional<TimePoint> first_success_;
    bool looks_for_moves_ = false;
    bool damaged_ = false;
    std::optional<Duration> first_move_;
};

}  // namespace troupe::apps::faults
