#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/sim/process.h"

namespace troupe::sim {

/// What the application on one host does with its engine: opens peers, reads and writes their memory, cancels, frees,
/// unregisters; at any moment, as the seed says. And what it may expect: it looks at every task after every step of the
/// engine, and at every call that was not answered.
class Workload {
  public:
    Workload(const Site& site, Process& process, int hosts, std::vector<std::vector<TimePoint>>& deaths);

    /// One thing, by chance.
    void act();
    /// Looks at everything.
    void observe();
    /// The process is gone.
    void gone();
    /// It has the segment of that host open, and was told last that it is up.
    bool believesUp(int host) const;

    // --- the end of a simulation: everything has to work again -------------------------------------------------------

    /// No new tasks by chance; nothing else is left to chance either.
    void calmDown();
    /// Opens what is not open, registers what is not registered.
    void mend();
    bool mended() const;
    bool idle() const { return running_ == 0; }
    /// One WRITE and one READ over every path. `met` counts what completed.
    void visitAll();
    bool visitedAll() const { return visits_done_ == visits_wanted_; }
    std::string visits() const;
    void closeAll();
    void freeAll();
    bool nothingOpen() const;

    Process& process() { return process_; }

  private:
    struct Segment {
        SegmentID id = kInvalidSegmentID;
        TimePoint since{};     ///< When it was opened; of the own one, the first act.
        bool calling = false;  ///< An open or close is under way.
        Status last;
    };
    struct OpenBatch {
        BatchID id = kInvalidBatchID;
        Batch* batch = nullptr;
        std::uint32_t tracker = 0;
        std::vector<TaskRecord*> tasks;
        std::size_t running = 0;
        std::shared_ptr<unsigned> done_calls = std::make_shared<unsigned>(0);
        unsigned submits = 0;
        int visit = -1;         ///< Host that it visits, in the end.
        unsigned unproven = 0;  ///< Tasks that ended with their buffers in quarantine, which they have not left.
    };
    struct Call {
        std::string what;
        TimePoint answer_by{};  ///< True time.
        bool answered = false;
    };

    std::string nameOf(int host) const;
    void openOne(int host);
    void closeOne(int host);
    void probeOne();
    void submitByChance();
    bool changeTransports();
    void uninstallOne(std::size_t which);
    bool isCutOff() const;
    void installOne(std::size_t which, unsigned refusals);
    bool submit(OpenBatch& into, int target, SegmentID segment, unsigned count, bool adjacent, Opcode opcode);
    OpenBatch* newBatch();
    void cancelOne();
    void freeOne();
    bool free(std::size_t index);
    void look(OpenBatch& batch);
    bool leftQuarantine(TaskRecord& task);
    void checkTime(const TaskRecord& task);
    void expectUninstalled(const TaskRecord& task);
    TimePoint allowance(TimePoint bound) const;
    std::shared_ptr<Call> call(std::string what, Duration within);

    const Site& site_;
    World& world_;
    Process& process_;
    const int hosts_;
    std::vector<std::vector<TimePoint>>& deaths_;  ///< By host and start (from 1); kForever: lives.
    std::vector<Segment> segments_;
    std::vector<std::unique_ptr<OpenBatch>> batches_;
    std::vector<std::shared_ptr<Call>> calls_;
    std::size_t running_ = 0;
    std::optional<std::size_t> leaving_;  ///< A transport that is uninstalled once no task runs.
    TimePoint uninstalling_ = kForever;   ///< By the process's clock: since when.
    TimePoint cut_off_{};                 ///< When a transport left that had waited for its flights in vain.
    bool calm_ = false;
    std::vector<bool> visited_;
    int visits_wanted_ = 0;
    int visits_done_ = 0;
};

}  // namespace troupe::sim
