#include "apps/support/store_session.h"

#include <algorithm>
#include <utility>

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
    auto loop = CommandLoop::start("troupe.ctl");
    if (!loop) return loop.status();
    session->loop_ = std::move(*loop);
    session->store_ = std::move(store).value();
    const Status started =
        session->loop_->ask<Status>([&](auto answer) { answer(session->store_->start(session->loop_->loop())); });
    if (!started) return started;
    return session;
}

StoreSession::~StoreSession() {
    if (store_) loop_->run([this] { store_.reset(); });
}

Result<std::vector<StoredSegment>> StoreSession::list(Duration timeout) {
    return loop_->ask<Result<std::vector<StoredSegment>>>(
        [this, timeout](auto answer) { store_->list(timeout, answer); });
}

void StoreSession::watch(MetadataStore::WatchCallback changed) {
    loop_->loop().post([this, changed = std::move(changed)] { store_->watch(changed); });
}

Status StoreSession::evict(const std::string& name, const Incarnation& holder) {
    return loop_->ask<Status>([this, name, holder](auto answer) { store_->evict(name, holder, answer); });
}

std::vector<StoreSession::Finding> StoreSession::probe(const std::vector<const SegmentDesc*>& segments,
                                                       Duration timeout) {
    std::vector<Finding> findings(segments.size());
    const Incarnation asking = Incarnation::random();
    for (std::size_t begin = 0; begin < segments.size(); begin += kProbesAtOnce) {
        const std::size_t end = std::min(segments.size(), begin + kProbesAtOnce);
        std::vector<std::unique_ptr<IncarnationProbe>> probes(end - begin);
        // The findings are read once the last has answered, and the probes end on the loop.
        loop_->ask<bool>([&, left = std::make_shared<std::size_t>(end - begin)](auto answer) {
            for (std::size_t i = begin; i < end; ++i) {
                const SegmentDesc& desc = *segments[i];
                IncarnationProbe::Question question{desc.control, desc.incarnation, desc.boot_id,
                                                    asking,       timeout,          auth_};
                probes[i - begin] = std::make_unique<IncarnationProbe>(
                    loop_->loop(), std::move(question),
                    [&findings, i, left, answer](IncarnationProbe::Verdict verdict, const std::string& why) {
                        findings[i] = {verdict, why};
                        if (--*left == 0) answer(true);
                    });
            }
        });
        loop_->run([&] { probes.clear(); });
    }
    return findings;
}

}  // namespace troupe::apps
