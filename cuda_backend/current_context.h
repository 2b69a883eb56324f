#pragma once

#include "cuda_backend/driver.h"

namespace troupe::cuda {

/// Makes a context current on the calling thread for its lifetime; then the caller's is again, whatever it was. Of a
/// thread that has it current already it costs one look.
class CurrentContext {
  public:
    CurrentContext(const CudaDriver& driver, api::ContextHandle context) : driver_(driver) {
        api::ContextHandle before = nullptr;
        outcome_ = invoke(driver_.calls().ctxGetCurrent, &before);
        if (!outcome_ || before == context) return;
        outcome_ = invoke(driver_.calls().ctxPushCurrent, context);
        pushed_ = static_cast<bool>(outcome_);
    }
    ~CurrentContext() {
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
};

}  // namespace troupe::cuda
