#include "apps/support/store_session.h"

#include <algorithm>
#include <future>
#include <utility>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>

#include "engine/store_factory.h"

namespace troupe::apps {

namespace {

// Owners that are asked at once.
constexpr std::size_t kProbesAtOnce = 64;

}  // namespace

Result<std::unique_ptr<StoreSession>> StoreSession::start(const std::string& metadata, const Config& config,
                                                          Logger log) {
    auto auth = ClusterAuth::load(config);
    if (!auth) return auth.status();
    auto store = makeStore(metadata, config, std::move(log), *auth);
    if (!store) return store.status();
    std::unique_ptr<StoreSession> session(new StoreSession());
    session->auth_ = std::move(*auth);
    session->system_config_ = std::make_unique<caf::actor_system_config>();
    session->system_config_->set("scheduler.policy", caf::atom("sharing"));
    session->system_config_->set("scheduler.max-threads", 1);
    session->system_ = std::make_unique<caf::actor_system>(*session->system_config_);
    session->loop_ = std::make_unique<Loop>(*session->system_, Loop::Options{"troupe.ctl", {}, false, {}});
    if (const Status started = session->loop_->start(); !started) return started;
    session->store_ = std::move(store).value();
    const Status started = session->ask<Status>([&](auto answer) { answer(session->store_->start(*session->loop_)); });
    if (!started) return started;
    return session;
}

StoreSession::~StoreSession() {
    if (store_)
        ask<Status>([this](auto answer) {
            store_.reset();
            answer(Status::ok());
        }).isOk();
    if (loop_) loop_->stop();
}

template <class T, class Begin>
T StoreSession::ask(Begin begin) {
    const auto promise = std::make_shared<std::promise<T>>();
    auto answer = promise->get_future();
    loop_->post(
        [begin = std::move(begin), promise] { begin([promise](T value) { promise->set_value(std::move(value)); }); });
    return answer.get();
}

Result<std::vector<StoredSegment>> StoreSession::list(Duration timeout) {
    return ask<Result<std::vector<StoredSegment>>>([this, timeout](auto answer) { store_->list(timeout, answer); });
}

void StoreSession::watch(MetadataStore::WatchCallback changed) {
    loop_->post([this, changed = std::move(changed)] { store_->watch(changed); });
}

Status StoreSession::evict(const std::string& name, const Incarnation& holder) {
    return ask<Status>([this, name, holder](auto answer) { store_->evict(name, holder, answer); });
}

std::vector<StoreSession::Finding> StoreSession::probe(const std::vector<const SegmentDesc*>& segments,
                                                       Duration timeout) {
    std::vector<Finding> findings(segments.size());
    const Incarnation asking = Incarnation::random();
    for (std::size_t begin = 0; begin < segments.size(); begin += kProbesAtOnce) {
        const std::size_t end = std::min(segments.size(), begin + kProbesAtOnce);
        std::vector<std::unique_ptr<IncarnationProbe>> probes(end - begin);
        // The findings are read once the last has answered, and the probes end on the loop.
        ask<Status>([&, left = std::make_shared<std::size_t>(end - begin)](auto answer) {
            for (std::size_t i = begin; i < end; ++i) {
                const SegmentDesc& desc = *segments[i];
                IncarnationProbe::Question question{desc.control, desc.incarnation, desc.boot_id,
                                                    asking,       timeout,          auth_};
                probes[i - begin] = std::make_unique<IncarnationProbe>(
                    *loop_, std::move(question),
                    [&findings, i, left, answer](IncarnationProbe::Verdict verdict, const std::string& why) {
                        findings[i] = {verdict, why};
                        if (--*left == 0) answer(Status::ok());
                    });
            }
        }).isOk();
        ask<Status>([&](auto answer) {
            probes.clear();
            answer(Status::ok());
        }).isOk();
    }
    return findings;
}

}  // namespace troupe::apps
