#include "engine/actor_api.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include <caf/atom.hpp>
#include <caf/behavior.hpp>
#include <caf/exit_reason.hpp>
#include <caf/result.hpp>
#include <caf/sec.hpp>
#include <caf/spawn_options.hpp>
#include <caf/typed_response_promise.hpp>

#include "actors/hosted_actor.h"
#include "base/quiet_thread.h"
#include "cuda_backend/driver_api.h"
#include "engine/engine_core.h"
#include "engine/transfer_engine.h"

namespace troupe {

namespace {

/// To itself: a batch that it submitted has ended.
struct BatchEnded {
    BatchID batch = kInvalidBatchID;
};

/// To it: the engine has ended.
struct EngineEnded {
    Status why;
};

Status canceled() { return {Code::Canceled, "the engine ended"}; }

constexpr auto kCategory = caf::atom("troupe");

/// What CAF itself answers for an actor that is not there any more, or ends with the request in its mailbox.
bool isOfEndedActor(const caf::error& error) {
    if (error == caf::sec::request_receiver_down) return true;
    constexpr std::array kEnds = {caf::exit_reason::normal,        caf::exit_reason::unknown,
                                  caf::exit_reason::user_shutdown, caf::exit_reason::kill,
                                  caf::exit_reason::unreachable,   caf::exit_reason::remote_link_unreachable};
    return std::any_of(kEnds.begin(), kEnds.end(), [&](caf::exit_reason reason) { return error == reason; });
}

}  // namespace

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::BatchEnded)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::EngineEnded)

namespace troupe {

caf::error toCafError(const Status& status) {
    return caf::error(static_cast<std::uint8_t>(status.code()), kCategory, caf::make_message(status.message()));
}

Status fromCafError(const caf::error& error) {
    if (error.category() != kCategory) {
        if (isOfEndedActor(error)) return Status(Code::Canceled, "the engine ended");
        return Status(Code::Internal, "CAF error " + std::to_string(error.code()) + " of another category");
    }
    const auto& context = error.context();
    std::string message = context.match_elements<std::string>() ? context.get_as<std::string>(0) : std::string();
    return Status(static_cast<Code>(error.code()), std::move(message));
}

/// Runs calls that may block (registering memory can pin gigabytes) one after another, away from every loop.
class CallThread {
  public:
    using Job = std::function<void(const Status& go)>;  ///< An error: it is not to be done; this is the answer.

    CallThread() = default;
    ~CallThread() { end(); }
    CallThread(const CallThread&) = delete;
    CallThread& operator=(const CallThread&) = delete;

    /// Finishes the job that runs, and answers the others and all that come later as canceled. Idempotent.
    void end() {
        std::deque<Job> unanswered;
        {
            const std::lock_guard lock(mutex_);
            ending_ = true;
            unanswered.swap(jobs_);
        }
        wake_.notify_all();
        if (thread_.joinable()) thread_.join();
        for (Job& job : unanswered) job(canceled());
    }

    void add(Job job) {
        std::unique_lock lock(mutex_);
        if (ending_) {
            lock.unlock();
            return job(canceled());
        }
        if (!thread_.joinable()) {
            auto thread = startQuietThread("troupe.calls", [this] { work(); });
            if (!thread) {
                lock.unlock();
                return job(thread.status());
            }
            thread_ = std::move(*thread);
        }
        jobs_.push_back(std::move(job));
        wake_.notify_all();
    }

  private:
    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
            if (ending_) return;
            const Job job = std::move(jobs_.front());
            jobs_.pop_front();
            lock.unlock();
            job(Status::ok());
            lock.lock();
        }
    }

    std::mutex mutex_;  ///< Guards the rest: a queue between the control loop and a thread that must be free to block.
    std::condition_variable wake_;
    std::deque<Job> jobs_;
    bool ending_ = false;
    std::thread thread_;
};

/// The actor behind ActorApi::actor. Lives on the control loop.
class EngineActorImpl final : public HostedActor {
  public:
    EngineActorImpl(caf::actor_config& config, Loop& loop, TransferEngine& engine, EngineCore& core,
                    std::shared_ptr<CallThread> calls)
        : HostedActor(config, loop, core.options.log),
          engine_(engine),
          core_(core),
          calls_(std::move(calls)),
          directory_(core.directory) {}

    const char* name() const override { return "troupe.engine"; }

  protected:
    caf::behavior make_behavior() override {
        return {
            [this](const SubmitTransfers& request) { return submit(request); },
            [this](const BatchEnded& ended) { report(ended.batch); },
            [this](const EngineEnded& ended) {
                why_ended_ = ended.why;
                quit(caf::exit_reason::user_shutdown);
            },
            [this](const OpenSegmentByName& request) { return open(request); },
            [this](const RegisterMemory& request) {
                return callElsewhere([this, request] {
                    return engine_.registerLocalMemory(request.addr, request.length, request.location,
                                                       request.remote_accessible);
                });
            },
            [this](const UnregisterMemory& request) {
                return callElsewhere([this, request] { return engine_.unregisterLocalMemory(request.addr); });
            },
            [this](const ListQuarantine&) { return engine_.quarantine(); },
            [this](const SubscribeEvents& request) { send(directory_, SubscribePeers{request.subscriber}); },
        };
    }

    void atEnd() override {
        for (auto& [batch, entry] : submitted_) entry.second.deliver(toCafError(why_ended_));
        submitted_.clear();
        directory_ = nullptr;
    }

  private:
    using ReportPromise = caf::typed_response_promise<TransferReport>;

    /// There is no actor before init, so an engine that is not initialised has ended.
    static caf::error errorOf(const Status& status) {
        return toCafError(status.code() == Code::NotInitialised ? canceled() : status);
    }

    caf::result<TransferReport> submit(const SubmitTransfers& request) {
        // It would be the stream of the thread that runs this actor, and empty.
        const auto is_per_thread = [](const TransferRequest& each) {
            return each.wait_stream &&
                   reinterpret_cast<std::uintptr_t>(*each.wait_stream) == cuda::api::kStreamPerThread;
        };
        if (std::any_of(request.requests.begin(), request.requests.end(), is_per_thread))
            return toCafError(
                {Code::InvalidArgument,
                 "wait_stream is cudaStreamPerThread, which means the thread that submits, and that is none "
                 "of the application's: record an event there and name it in wait_event"});
        const std::size_t count = request.requests.size();
        const auto batch = engine_.allocateBatchID(std::max<std::size_t>(count, 1));
        if (!batch) return errorOf(batch.status());
        const auto self = caf::actor(this);
        const Status submitted = ActorApi::submit(engine_, *batch, request.requests,
                                                  [self](BatchID id) { caf::anon_send(self, BatchEnded{id}); });
        if (!submitted) {
            static_cast<void>(engine_.freeBatchID(*batch));
            return errorOf(submitted);
        }
        // Only now: an error that is returned beside an open promise never reaches the requester.
        auto promise = make_response_promise<TransferReport>();
        submitted_.emplace(*batch, std::make_pair(count, promise));
        if (count == 0) report(*batch);
        return promise;
    }

    void report(BatchID batch) {
        const auto found = submitted_.find(batch);
        if (found == submitted_.end()) return;
        auto [count, promise] = std::move(found->second);
        submitted_.erase(found);
        TransferReport result;
        const auto whole = engine_.getBatchTransferStatus(batch);
        if (!whole) {
            promise.deliver(errorOf(whole.status()));
            return;
        }
        result.batch = *whole;
        result.tasks.reserve(count);
        for (std::size_t i = 0; i < count; ++i)
            if (const auto status = engine_.getTransferStatus(batch, i)) result.tasks.push_back(*status);
        static_cast<void>(engine_.freeBatchID(batch));
        promise.deliver(std::move(result));
    }

    caf::result<SegmentOpened> open(const OpenSegmentByName& request) {
        // Of an engine that ends the directory may be gone, which then answers nothing.
        if (const Status usable = core_.usable(); !usable) return errorOf(usable);
        auto promise = make_response_promise<SegmentOpened>();
        // The directory's handler calls, and is not to end by what is wrong here.
        const auto reply = [this, promise, home = home()](const Result<SegmentID>& segment) mutable {
            home.run([&] {
                if (!segment) {
                    promise.deliver(errorOf(segment.status()));
                    return;
                }
                const auto desc = engine_.getSegmentDescByID(*segment);
                promise.deliver(SegmentOpened{*segment, desc ? *desc : nullptr});
            });
        };
        send(directory_, OpenSegment{request.name, saturatedAdd(Clock::now(), core_.settings().open_timeout), reply});
        return promise;
    }

    /// Does a call that may block on the call thread, and answers the request from there.
    template <class Function>
    caf::result<void> callElsewhere(Function function) {
        auto promise = make_response_promise();
        // The actor's memory must be there for `this` until the job is done; CallThread ends before the engine does.
        calls_->add([self = caf::actor(this), promise, function](const Status& go) mutable {
            Status result = go;
            try {
                if (go) result = function();
            } catch (const std::exception& thrown) {
                result = Status(Code::Internal, std::string("the call ended by an exception: ") + thrown.what());
            }
            if (result)
                promise.deliver(caf::unit);
            else
                promise.deliver(errorOf(result));
        });
        return promise;
    }

    TransferEngine& engine_;
    EngineCore& core_;
    std::shared_ptr<CallThread> calls_;
    caf::actor directory_;
    /// Until it is told to end: a defect ends it while transfers go on, and nobody may touch their buffers.
    Status why_ended_{Code::Internal,
                      "the engine's actor ended by a defect; see the log. What it submitted may be running"};
    std::unordered_map<BatchID, std::pair<std::size_t, ReportPromise>> submitted_;
};

ActorApi::ActorApi(TransferEngine& engine, EngineCore& core) : calls_(std::make_shared<CallThread>()) {
    const auto actor = spawnHosted<EngineActorImpl>(*core.control_loop, engine, core, calls_);
    actor_ = caf::actor_cast<EngineActor>(caf::actor_cast<caf::strong_actor_ptr>(actor));
}

ActorApi::~ActorApi() { end(canceled()); }

// Jobs may need the loops, so they end while everything still runs. The actor shares the queue and has what comes later
// answered.
void ActorApi::endCalls() { calls_->end(); }

void ActorApi::end(const Status& why) {
    endCalls();
    caf::anon_send(caf::actor_cast<caf::actor>(caf::actor_cast<caf::strong_actor_ptr>(actor_)),
                   EngineEnded{why ? canceled() : why});
}

Status ActorApi::submit(TransferEngine& engine, BatchID batch, const std::vector<TransferRequest>& requests,
                        std::function<void(BatchID)> on_done) {
    return engine.submit(batch, requests, std::move(on_done));
}

}  // namespace troupe
