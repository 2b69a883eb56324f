#pragma once

#include <memory>
#include <string>
#include <utility>

#include "apps/sim/sim_loop.h"
#include "metadata/inproc_store.h"

namespace troupe::sim {

/// A process's loop with the store's clock: leases end by that, whatever the processes' clocks say.
class StoreClock final : public Reactor {
  public:
    explicit StoreClock(SimLoop& loop) : loop_(loop) {}
    TimePoint now() const override { return loop_.world().now(); }
    void watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> ready) override {
        loop_.watch(fd, events, std::move(ready));
    }
    void unwatch(int fd) override { loop_.unwatch(fd); }
    TimerId runAt(TimePoint when, std::function<void()> fire) override {
        return loop_.runAt(saturatedAdd(when, loop_.seat().ahead), std::move(fire));
    }
    void cancelTimer(TimerId timer) override { loop_.cancelTimer(timer); }
    void post(std::function<void()> work) override { loop_.post(std::move(work)); }

  private:
    SimLoop& loop_;
};

/// The store as one process reaches it: an InprocStore on the directory that all share, until the process is cut off
/// from it, for a while or, as it dies, for good. The directory itself can be out, slow or forgetful.
class SimStore final : public MetadataStore {
  public:
    /// How the process dies: by letting this go. Its records stay to the end of their leases.
    using Link = std::shared_ptr<std::unique_ptr<InprocStore>>;

    SimStore(std::shared_ptr<InprocDirectory> directory, SimLoop& loop)
        : clock_(loop),
          link_(std::make_shared<std::unique_ptr<InprocStore>>(std::make_unique<InprocStore>(std::move(directory)))) {}
    ~SimStore() override { link_->reset(); }
    SimStore(const SimStore&) = delete;
    SimStore& operator=(const SimStore&) = delete;

    Link link() const { return link_; }

    Status start(Reactor& reactor) override {
        reactor_ = &reactor;
        return (*link_)->start(clock_);
    }
    void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) override {
        if (*link_) return (*link_)->publish(desc, ttl, std::move(done));
        lost<Status>(std::move(done));
    }
    void withdraw(const std::string& name, DoneCallback done) override {
        if (*link_) return (*link_)->withdraw(name, std::move(done));
        lost<Status>(std::move(done));
    }
    void resolve(const std::string& name, Duration timeout, ResolveCallback done) override {
        if (*link_) return (*link_)->resolve(name, timeout, std::move(done));
        lost<Result<SegmentDesc>>(std::move(done));
    }
    void inspect(const std::string& name, Duration timeout, InspectCallback done) override {
        if (*link_) return (*link_)->inspect(name, timeout, std::move(done));
        lost<Result<RecordHead>>(std::move(done));
    }
    void evict(const std::string& name, const Incarnation& holder, DoneCallback done) override {
        if (*link_) return (*link_)->evict(name, holder, std::move(done));
        lost<Status>(std::move(done));
    }
    void list(Duration timeout, ListCallback done) override {
        if (*link_) return (*link_)->list(timeout, std::move(done));
        lost<Result<std::vector<StoredSegment>>>(std::move(done));
    }
    void watch(WatchCallback changed) override {
        if (*link_) (*link_)->watch(std::move(changed));
    }

  private:
    template <class Answer>
    void lost(std::function<void(Answer)> done) {
        reactor_->post([done = std::move(done), alive = std::weak_ptr(alive_)] {
            if (!alive.expired()) done(Status(Code::ConnectionLost, "the store is out of reach"));
        });
    }

    StoreClock clock_;
    const Link link_;
    Reactor* reactor_ = nullptr;
    const std::shared_ptr<char> alive_ = std::make_shared<char>();
};

}  // namespace troupe::sim
