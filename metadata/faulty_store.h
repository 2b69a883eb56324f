#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/fault_injector.h"
#include "metadata/metadata_store.h"

namespace troupe {

/// A store with somebody who fails and delays its calls. It is put around the real one only where `faults.enabled` is
/// set. What a store does by itself (renewing, publishing again after an outage) is not a call.
class FaultyStore final : public MetadataStore {
  public:
    /// `faults` outlives this.
    FaultyStore(std::unique_ptr<MetadataStore> store, FaultInjector& faults)
        : store_(std::move(store)), faults_(faults) {}

    Status start(Reactor& reactor) override {
        reactor_ = &reactor;
        return store_->start(reactor);
    }
    void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) override {
        pass<Status>("publish " + desc.name, std::move(done),
                     [this, desc, ttl](DoneCallback then) { store_->publish(desc, ttl, std::move(then)); });
    }
    bool announce(const SegmentEvent& change) override { return store_->announce(change); }
    void withdraw(const std::string& name, DoneCallback done) override {
        pass<Status>("withdraw " + name, std::move(done),
                     [this, name](DoneCallback then) { store_->withdraw(name, std::move(then)); });
    }
    void resolve(const std::string& name, Duration timeout, ResolveCallback done) override {
        pass<Result<SegmentDesc>>("resolve " + name, std::move(done), [this, name, timeout](ResolveCallback then) {
            store_->resolve(name, timeout, std::move(then));
        });
    }
    void inspect(const std::string& name, Duration timeout, InspectCallback done) override {
        pass<Result<RecordHead>>("inspect " + name, std::move(done), [this, name, timeout](InspectCallback then) {
            store_->inspect(name, timeout, std::move(then));
        });
    }
    void evict(const std::string& name, const Incarnation& holder, DoneCallback done) override {
        pass<Status>("evict " + name, std::move(done),
                     [this, name, holder](DoneCallback then) { store_->evict(name, holder, std::move(then)); });
    }
    void list(Duration timeout, ListCallback done) override {
        pass<Result<std::vector<StoredSegment>>>(
            "list", std::move(done), [this, timeout](ListCallback then) { store_->list(timeout, std::move(then)); });
    }
    void watch(WatchCallback changed) override { store_->watch(std::move(changed)); }

  private:
    template <class Answer>
    void pass(const std::string& what, std::function<void(Answer)> done,
              std::function<void(std::function<void(Answer)>)> call) {
        const auto verdict = faults_.judge(FaultPoint::StoreCall, what);
        if (!verdict) return call(std::move(done));
        if (verdict->action == FaultAction::Delay) {
            reactor_->runAt(saturatedAdd(reactor_->now(), verdict->delay),
                            [call = std::move(call), done = std::move(done), alive = std::weak_ptr(alive_)] {
                                if (!alive.expired()) call(done);
                            });
            return;
        }
        reactor_->post([done = std::move(done), cause = verdict->cause, alive = std::weak_ptr(alive_)] {
            if (!alive.expired()) done(cause);
        });
    }

    std::unique_ptr<MetadataStore> store_;
    FaultInjector& faults_;
    Reactor* reactor_ = nullptr;
    const std::shared_ptr<char> alive_ = std::make_shared<char>();
};

}  // namespace troupe
