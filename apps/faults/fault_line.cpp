#include "apps/faults/fault_line.h"

#include <functional>
#include <future>
#include <utility>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/atom.hpp>

#include "apps/faults/injection.h"
#include "security/cluster_auth.h"

namespace troupe::apps::faults {

Result<std::unique_ptr<FaultLine>> FaultLine::open(const Config& config, const SegmentDesc& engine) {
    auto auth = ClusterAuth::load(config);
    if (!auth) return auth.status();
    std::unique_ptr<FaultLine> line(new FaultLine());
    line->whom_ = engine.incarnation;
    line->system_config_ = std::make_unique<caf::actor_system_config>();
    line->system_config_->set("scheduler.policy", caf::atom("sharing"));
    line->system_config_->set("scheduler.max-threads", 1);
    line->system_ = std::make_unique<caf::actor_system>(*line->system_config_);
    line->loop_ = std::make_unique<Loop>(*line->system_, Loop::Options{"troupe.faults", {}, false, {}});
    if (const Status started = line->loop_->start(); !started) return started;
    FaultAsker::Options options;
    options.control = engine.control;
    options.whom = engine.incarnation;
    options.asking = Incarnation::random();
    options.timeout = config.open_timeout;
    options.keepalive = config.keepalive_interval;
    options.auth = std::move(*auth);
    line->onLoop<Status>([&](auto answer) {
            line->asker_ = std::make_unique<FaultAsker>(*line->loop_, std::move(options));
            answer(Status::ok());
        })
        .isOk();
    // It has broken nothing yet; what counts is the answer.
    const Status agreed = line->ask(FaultRequest{});
    if (agreed.code() == Code::TransportMissing)
        return {Code::Unsupported, agreed.message() + ": its Troupe is older than faults that others ask for"};
    if (!agreed) return agreed;
    return line;
}

FaultLine::~FaultLine() {
    if (asker_)
        onLoop<Status>([this](auto answer) {
            asker_.reset();
            answer(Status::ok());
        }).isOk();
    if (loop_) loop_->stop();
}

template <class T, class Begin>
T FaultLine::onLoop(Begin begin) {
    const auto promise = std::make_shared<std::promise<T>>();
    auto answer = promise->get_future();
    loop_->post(
        [begin = std::move(begin), promise] { begin([promise](T value) { promise->set_value(std::move(value)); }); });
    return answer.get();
}

Status FaultLine::ask(const FaultRequest& request) {
    return onLoop<Status>([this, request](auto answer) {
        asker_->ask(request, [answer](const Result<FaultAnswer>& said) { answer(said.status()); });
    });
}

bool FaultLine::isOpen() {
    return onLoop<bool>([this](auto answer) { answer(asker_->isOpen()); });
}

Status FaultLine::inject(const std::string& what) {
    auto request = injection(what);
    if (!request) return request.status();
    // Of nobody's engine but one's own is anything broken for good.
    request->rule.lasts = kLongestFault;
    return ask(*request);
}

}  // namespace troupe::apps::faults
