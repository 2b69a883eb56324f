#include "actors/local_publisher.h"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

// Holders that are asked for one publish. One is the rule; a second appears when two successors race.
constexpr std::uint32_t kMaxChallenges = 3;

// A record that takes longer, or fails, met a store that was away.
constexpr std::chrono::milliseconds kSlowWrite{100};

std::uint64_t bytesOf(std::size_t regions) {
    return LocalPublisher::kBytesPerRecord + LocalPublisher::kBytesPerRegion * regions;
}

/// The time in which kPublishRate sends the record.
Duration pauseAfter(std::size_t regions) {
    return std::chrono::microseconds(bytesOf(regions) * 1'000'000 / LocalPublisher::kPublishRate);
}

}  // namespace

LocalPublisher::LocalPublisher(Reactor& reactor, MetadataStore& store, const Config& settings, Logger log,
                               std::string name, const Incarnation& own, std::function<const SegmentDesc&()> describe,
                               std::shared_ptr<const ClusterAuth> auth)
    : reactor_(reactor),
      store_(store),
      settings_(settings),
      log_(std::move(log)),
      name_(std::move(name)),
      own_(own),
      describe_(std::move(describe)),
      auth_(std::move(auth)) {}

LocalPublisher::~LocalPublisher() { reactor_.cancelTimer(timer_); }

void LocalPublisher::publish(Reply reply) {
    if (ended_) {
        if (reply) reply(*ended_);
        return;
    }
    wanted_ = true;
    if (reply) {
        was_refused_ = false;
        waiting_.push_back(std::move(reply));
    }
    publishWhenDue();
}

void LocalPublisher::end(const Status& why) {
    ended_ = why;
    reactor_.cancelTimer(std::exchange(timer_, 0));
    probe_.reset();
    auto open = std::exchange(waiting_, {});
    for (Reply& reply : std::exchange(served_, {})) open.push_back(std::move(reply));
    for (const Reply& reply : open) reply(why);
}

void LocalPublisher::publishWhenDue() {
    if (ended_ || running_ || !wanted_ || !isDue()) return;
    running_ = true;
    wanted_ = false;
    challenges_ = 0;
    served_ = std::exchange(waiting_, {});
    write();
}

/// False: there is a pause, or what changed was told and the record cannot be paid yet; then it comes back.
bool LocalPublisher::isDue() {
    if (!waiting_.empty()) return true;
    if (!was_published_) return !was_refused_;
    const TimePoint now = reactor_.now();
    if (now < not_before_) {
        wakeAt(not_before_);
        return false;
    }
    const SegmentDesc& desc = describe_();
    earn(desc);
    const double missing = static_cast<double>(bytesOf(desc.buffers.size())) - saved_;
    if (missing <= 0) return true;
    if (desc.version != told_version_) {
        if (!store_.announce({SegmentEvent::Kind::Published, name_, desc.version, own_})) return true;
        told_version_ = desc.version;
        not_before_ = now + pauseAfter(desc.buffers.size());
    }
    wakeAt(now + std::chrono::milliseconds(1 + static_cast<std::int64_t>(missing * 1000 / kBytesPerSecond)));
    return false;
}

void LocalPublisher::wakeAt(TimePoint when) {
    if (timer_ != 0 && timer_at_ <= when) return;
    reactor_.cancelTimer(timer_);
    timer_at_ = when;
    timer_ = reactor_.runAt(when, [this] {
        timer_ = 0;
        publishWhenDue();
    });
}

void LocalPublisher::earn(const SegmentDesc& desc) {
    const TimePoint now = reactor_.now();
    const std::size_t regions = desc.buffers.size();
    const double most = static_cast<double>(std::max(kMostSaved, 2 * bytesOf(regions)));
    // The first time is the first record, which finds it full.
    if (earned_at_ != TimePoint{}) saved_ += std::chrono::duration<double>(now - earned_at_).count() * kBytesPerSecond;
    if (std::exchange(earned_version_, desc.version) != desc.version) {
        const std::size_t changed = std::max(regions, earned_regions_) - std::min(regions, earned_regions_);
        saved_ += static_cast<double>(std::max<std::size_t>(changed, 1) * kBytesPerChange);
    }
    earned_at_ = now;
    earned_regions_ = regions;
    saved_ = std::min(saved_, most);
}

void LocalPublisher::write() {
    if (ended_) return;
    const SegmentDesc& desc = describe_();
    earn(desc);
    began_ = reactor_.now();
    saved_ = std::max(0.0, saved_ - static_cast<double>(bytesOf(desc.buffers.size())));
    told_version_ = desc.version;
    not_before_ = reactor_.now() + pauseAfter(desc.buffers.size());
    store_.publish(desc, settings_.lease_ttl, [this](const Status& status) { written(status); });
}

void LocalPublisher::written(const Status& status) {
    if (status.code() == Code::AlreadyExists && !was_published_ && challenges_++ < kMaxChallenges)
        return challenge(status);
    finish(status);
}

void LocalPublisher::finish(const Status& status) {
    // Once for each kind of problem: with the store away, every change would say it again. Before the name is ours it
    // is init that fails with it.
    const bool problem = !status && status.code() != Code::Canceled;  // By its own withdrawal.
    if (problem && was_published_ && std::exchange(last_problem_, status.code()) != status.code())
        log_->warn("publishing segment {}: {}", name_, status.toString());
    if (status) {
        was_published_ = true;
        last_problem_ = Code::Ok;
    }
    was_refused_ = !status && !was_published_;
    running_ = false;
    // What came while the store was away is in its record as soon as the store is back, paid or not.
    if (wanted_ && (!status || reactor_.now() - began_ > kSlowWrite))
        saved_ = std::max(saved_, static_cast<double>(bytesOf(describe_().buffers.size())));
    auto told = std::exchange(served_, {});
    // Who came meanwhile would wait as long to hear the same. What they changed is still wanted, and goes out later.
    if (!status)
        for (Reply& reply : std::exchange(waiting_, {})) told.push_back(std::move(reply));
    for (const Reply& reply : told) reply(status);
    publishWhenDue();
}

// --- taking over from the dead -----------------------------------------------------------------------------------

void LocalPublisher::challenge(const Status& refusal) {
    store_.resolve(name_, settings_.open_timeout, [this, refusal](const Result<SegmentDesc>& holder) {
        if (holder) return challengeHolder(refusal, *holder);
        // Gone meanwhile: the name is free.
        if (holder.status().code() == Code::NotFound) return write();
        finish(refusal);
    });
}

void LocalPublisher::challengeHolder(const Status& refusal, const SegmentDesc& holder) {
    if (ended_) return;
    if (holder.incarnation.isNull()) return finish(refusal);
    IncarnationProbe::Question question;
    question.control = holder.control;
    question.incarnation = holder.incarnation;
    question.boot_id = holder.boot_id;
    question.asking = own_;
    question.timeout = settings_.connect_timeout;
    question.auth = auth_;
    probe_ = std::make_unique<IncarnationProbe>(
        reactor_, std::move(question),
        [this, refusal, who = holder.incarnation](IncarnationProbe::Verdict verdict, const std::string& why) {
            judge(refusal, who, verdict, why);
        });
}

void LocalPublisher::judge(const Status& refusal, const Incarnation& holder, IncarnationProbe::Verdict verdict,
                           const std::string& why) {
    if (verdict != IncarnationProbe::Verdict::Gone) {
        const bool alive = verdict == IncarnationProbe::Verdict::Alive;
        return finish(Status(Code::AlreadyExists,
                             refusal.message() + (alive ? ", and " + why + "; end it, or take another local_server_name"
                                                        : ", which cannot be proven dead (" + why +
                                                              "); if it is, its lease ends by itself")));
    }
    log_->info("segment {}: taking the name over from incarnation {}: {}", name_, holder.toString(), why);
    store_.evict(name_, holder, [this](const Status& status) {
        // NotFound: another successor was faster, or the lease has ended.
        if (status || status.code() == Code::NotFound) return write();
        finish(status);
    });
}

}  // namespace troupe
