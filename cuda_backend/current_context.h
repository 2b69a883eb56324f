#pragma once

#include <optional>

#include "cuda_backend/driver.h"

namespace troupe::cuda {

/// While an application captures a graph, a thread that says nothing about it may neither ask for an event nor allocate
/// nor wait, whatever stream that is of: the call is refused and the graph is spoilt, with everything that was
/// captured. What is ours has no part in any graph. So while this lives the calling thread says that it knows what it
/// does; then it says again what it said before.
class BesideGraphs {
  public:
    explicit BesideGraphs(const CudaDriver& driver) : driver_(driver) { has_said_ = exchange(); }
    ~BesideGraphs() {
        if (has_said_) exchange();
    }
    BesideGraphs(const BesideGraphs&) = delete;
    BesideGraphs& operator=(const BesideGraphs&) = delete;

  private:
    bool exchange() { return static_cast<bool>(invoke(driver_.calls().threadExchangeStreamCaptureMode, &mode_)); }

    const CudaDriver& driver_;
    api::CaptureMode mode_ = api::CaptureMode::Relaxed;
    bool has_said_ = false;
};

/// Makes a context current on the calling thread for its lifetime, beside the graphs of the application; then the
/// caller's is again, whatever it was.
class CurrentContext {
  public:
    CurrentContext(const CudaDriver& driver, api::ContextHandle context) : driver_(driver) {
        api::ContextHandle before = nullptr;
        outcome_ = invoke(driver_.calls().ctxGetCurrent, &before);
        if (outcome_ && before != context) {
            outcome_ = invoke(driver_.calls().ctxPushCurrent, context);
            pushed_ = static_cast<bool>(outcome_);
        }
        if (outcome_) beside_graphs_.emplace(driver);
    }
    ~CurrentContext() {
        beside_graphs_.reset();
        api::ContextHandle popped = nullptr;
        if (pushed_) invoke(driver_.calls().ctxPopCurrent, &popped);
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

    const Outcome& outcome() const { return outcome_; }

  private:
    const CudaDriver& driver_;
    Outcome outcome_;
    bool pushed_ = false;
    std::optional<BesideGraphs> beside_graphs_;
};

}  // namespace troupe::cuda
