#include "apps/faults/fault_line.h"

#include <utility>

#include "apps/faults/injection.h"
#include "security/cluster_auth.h"

namespace troupe::apps::faults {

Result<std::unique_ptr<FaultLine>> FaultLine::open(const Config& config, const SegmentDesc& engine) {
    auto auth = ClusterAuth::load(config);
    if (!auth) return auth.status();
    std::unique_ptr<FaultLine> line(new FaultLine());
    line->whom_ = engine.incarnation;
    auto loop = CommandLoop::start("troupe.faults");
    if (!loop) return loop.status();
    line->loop_ = std::move(*loop);
    FaultAsker::Options options;
    options.control = engine.control;
    options.whom = engine.incarnation;
    options.asking = Incarnation::random();
    options.timeout = config.open_timeout;
    options.keepalive = config.keepalive_interval;
    options.auth = std::move(*auth);
    line->loop_->run([&] { line->asker_ = std::make_unique<FaultAsker>(line->loop_->loop(), std::move(options)); });
    // It has broken nothing yet; what counts is the answer.
    const Status agreed = line->ask(FaultRequest{});
    if (agreed.code() == Code::TransportMissing)
        return {Code::Unsupported, agreed.message() + ": its Troupe is older than faults that others ask for"};
    if (!agreed) return agreed;
    return line;
}

FaultLine::~FaultLine() {
    if (asker_) loop_->run([this] { asker_.reset(); });
}

Status FaultLine::ask(const FaultRequest& request) {
    return loop_->ask<Status>([this, request](auto answer) {
        asker_->ask(request, [answer](const Result<FaultAnswer>& said) { answer(said.status()); });
    });
}

bool FaultLine::isOpen() {
    return loop_->ask<bool>([this](auto answer) { answer(asker_->isOpen()); });
}

Status FaultLine::inject(const std::string& what) {
    auto request = injection(what);
    if (!request) return request.status();
    // Of nobody's engine but one's own is anything broken for good.
    request->rule.lasts = kLongestFault;
    return ask(*request);
}

}  // namespace troupe::apps::faults
