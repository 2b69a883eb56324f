// SegmentDirectory: what it has to do with the metadata store.

#include <algorithm>
#include <utility>

#include "actors/peer_monitor.h"
#include "actors/segment_directory.h"

namespace troupe {

namespace {

// The store answers before the caller's own time is up, so that the caller hears the reason.
Duration storeTimeout(const Config& settings) { return settings.open_timeout * 7 / 8; }

// Between two questions about a peer that stays down; its return is told by an event.
constexpr auto kLookPause = std::chrono::seconds(1);

// Records that are asked about at once after events were missed.
constexpr std::size_t kLooksAtOnce = 64;

// How long the end waits until the store has removed the local record. One that does not answer has its lease.
constexpr auto kWithdrawBound = std::chrono::milliseconds(500);

}  // namespace

void SegmentDirectory::beginWithStore() {
    publisher_ = std::make_unique<LocalPublisher>(
        loop(), *store_, settings_, log_, local_.name, local_.incarnation,
        [this]() -> const SegmentDesc& { return localDesc(); }, local_.auth);
    store_->watch([this](const SegmentEvent& event) { storeChanged(event); });
}

// --- records of others -------------------------------------------------------------------------------------------

void SegmentDirectory::resolveInStore(Entry& entry) {
    store_->resolve(entry.name, storeTimeout(settings_), [this, index = entry.index](const Result<SegmentDesc>& desc) {
        if (Entry* self = find(index)) resolved(*self, desc);
    });
}

void SegmentDirectory::resolved(Entry& entry, const Result<SegmentDesc>& desc) {
    const std::uint32_t index = entry.index;
    Status bad = desc.status();
    if (desc && desc->control.host.empty())
        bad = Status(Code::Unsupported, "segment '" + entry.name + "' is published by an engine that is not Troupe");
    // A peer that is up can be asked itself, whatever became of its record or the store.
    if (!bad && entry.peer && entry.monitor && entry.state == PeerState::Up)
        return send(entry.monitor, FetchDescriptor{});
    if (!bad) {
        answer(entry.opening, bad);
        answer(entry.syncing, bad);
        return removeUnused(index);
    }
    // A record of another incarnation than the one we watch: the old one is gone.
    if (entry.monitor && entry.expect != desc->incarnation) send(std::exchange(entry.monitor, nullptr), Shutdown{});
    entry.expect = desc->incarnation;
    if (!entry.monitor)
        startMonitor(entry, desc->control);
    else if (!entry.opening.empty() || !entry.syncing.empty())
        send(entry.monitor, FetchDescriptor{});
}

void SegmentDirectory::storeChanged(const SegmentEvent& event) {
    if (ending_) return;
    if (event.kind == SegmentEvent::Kind::Missed) return lookAtAll();
    if (event.name == local_.name && event.kind == SegmentEvent::Kind::Published && !event.incarnation.isNull() &&
        event.incarnation != local_.incarnation && std::exchange(taken_by_, event.incarnation) != event.incarnation)
        log_->warn("segment {}: incarnation {} has taken the name in the store", local_.name,
                   event.incarnation.toString());
    const auto known = by_name_.find(event.name);
    Entry* entry = known == by_name_.end() ? nullptr : find(known->second);
    // Without a monitor it is being looked up already.
    if (entry == nullptr || !entry->monitor) return;
    if (event.kind == SegmentEvent::Kind::Published) return looked(*entry, {event.incarnation, event.version});
    // Withdrawn: its owner says so itself over the control connection, unless that is broken.
    if (event.incarnation == entry->expect && entry->state == PeerState::Up)
        send(entry->monitor, PingPeer{loop().now() + settings_.keepalive_timeout, [](const Status&) {}});
}

/// Whose record is it now? Asked at most once at a time and once a second.
void SegmentDirectory::look(Entry& entry) {
    const TimePoint now = loop().now();
    if (entry.looking || now < entry.next_look) return;
    entry.looking = true;
    entry.next_look = now + kLookPause;
    store_->inspect(entry.name, storeTimeout(settings_), [this, index = entry.index](const Result<RecordHead>& head) {
        Entry* self = find(index);
        if (self == nullptr) return;
        self->looking = false;
        if (head)
            looked(*self, *head);
        else
            log_->debug("segment {}: {}", self->name, head.status().toString());
    });
}

void SegmentDirectory::looked(Entry& entry, const RecordHead& head) {
    if (head.incarnation != entry.expect) return resolveInStore(entry);
    if (!entry.monitor) return;
    if (entry.state == PeerState::Down)
        send(entry.monitor, ConnectPeer{});
    else if (entry.peer && entry.state == PeerState::Up && entry.peer->desc->version < head.version)
        send(entry.monitor, FetchDescriptor{});
}

/// After events were missed every open segment is looked at, some at a time.
void SegmentDirectory::lookAtAll() {
    to_look_at_.clear();
    for (const auto& [index, entry] : entries_) to_look_at_.push_back(index);
    lookAtNext();
}

void SegmentDirectory::lookAtNext() {
    while (looks_ < kLooksAtOnce && !to_look_at_.empty()) {
        const std::uint32_t index = to_look_at_.front();
        to_look_at_.pop_front();
        const Entry* entry = find(index);
        if (entry == nullptr || !entry->monitor) continue;
        ++looks_;
        store_->inspect(entry->name, storeTimeout(settings_), [this, index](const Result<RecordHead>& head) {
            --looks_;
            if (Entry* self = find(index); self != nullptr && head) looked(*self, *head);
            lookAtNext();
        });
    }
}

// --- the local record --------------------------------------------------------------------------------------------

void SegmentDirectory::publishLocal(const PublishLocal& request) {
    if (publisher_) return publisher_->publish(request.reply);
    if (request.reply) request.reply(Status::ok());
}

/// The name is free at once for a successor. Ends the actor when the store has done it, or after a bound.
void SegmentDirectory::endPublishing() {
    if (!store_ || std::exchange(ending_, true)) return quit();
    // What is published after it would stay until its lease ends.
    publisher_->end(Status(Code::Canceled, "the engine ends"));
    const auto again = [this] { send(caf::actor(this), Shutdown{}); };
    withdraw_timer_ = loop().runAt(loop().now() + kWithdrawBound, again);
    store_->withdraw(local_.name, [again](const Status&) { again(); });
}

}  // namespace troupe
