#include "metadata_redis/redis_listing.h"

#include <algorithm>
#include <utility>

#include "metadata_redis/redis_errors.h"
#include "security/record_signature.h"

namespace troupe {

namespace {

// Keys that the server looks at for one page of SCAN: some tens of microseconds of its time.
constexpr const char* kPage = "500";
constexpr std::size_t kMaxRecords = 1u << 20;

// Records on their way at once: hides the round trip, and bounds what is held of large ones.
constexpr std::size_t kUnderWay = 32;

}  // namespace

RedisListing::RedisListing(Reactor& reactor, std::weak_ptr<RedisLife> life, const RedisRecords& records,
                           RedisClient& client, std::size_t max_record_bytes, Duration timeout,
                           std::shared_ptr<const ClusterAuth> auth, MetadataStore::ListCallback done)
    : reactor_(reactor),
      life_(std::move(life)),
      records_(records),
      client_(client),
      max_record_bytes_(max_record_bytes),
      deadline_(saturatedAdd(reactor.now(), timeout)),
      auth_(std::move(auth)),
      done_(std::move(done)) {}

void RedisListing::start() { scan("0"); }

/// Hands a reply that is no error to `handle`; any other ends the listing.
template <class Handle>
RedisClient::ReplyCallback RedisListing::then(Handle handle) {
    return [self = shared_from_this(), handle = std::move(handle)](const Result<RedisReply>& reply) {
        if (!self->done_ || !RedisLife::of(self->life_)) return;
        if (!reply) return self->finish(reply.status());
        handle(*self, *reply);
    };
}

void RedisListing::scan(const std::string& cursor) {
    client_.run({"SCAN", cursor, "MATCH", records_.pattern(), "COUNT", kPage}, left(),
                then([](RedisListing& self, const RedisReply& page) { self.onPage(page); }));
}

void RedisListing::onPage(const RedisReply& page) {
    const auto& parts = page.elements;
    if (parts.size() != 2 || !parts[0].isString() || parts[1].type != RedisReply::Type::Array)
        return finish(wrongReply(page, "a page of keys"));
    for (const RedisReply& key : parts[1].elements) {
        const std::string_view name = records_.segmentOf(key.text);
        if (!key.isString() || name.empty() || name.size() > kMaxSegmentName) continue;
        names_.emplace(name);
    }
    if (names_.size() > kMaxRecords)
        return finish(Status(Code::CapacityExceeded, "more than " + std::to_string(kMaxRecords) + " segments"));
    if (parts[0].text != "0") return scan(parts[0].text);
    next_ = names_.begin();
    fetch();
}

void RedisListing::fetch() {
    while (done_ && under_way_ < kUnderWay && next_ != names_.end()) {
        ++under_way_;
        client_.run({"EVAL", std::string(kReadScript), "1", records_.key(*next_), std::to_string(max_record_bytes_)},
                    left(),
                    then([name = *next_](RedisListing& self, const RedisReply& reply) { self.onRecord(name, reply); }));
        ++next_;
    }
    if (under_way_ != 0 || next_ != names_.end() || !done_) return;
    std::sort(found_.begin(), found_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    finish(std::move(found_));
}

void RedisListing::onRecord(const std::string& name, const RedisReply& record) {
    const auto text = decodeRead(record, max_record_bytes_);
    if (text && !text->has_value()) {
        // Gone since the page was read.
        --under_way_;
        return fetch();
    }
    StoredSegment segment{name, std::nullopt, 0, text.status(), {}};
    if (text) {
        const std::string& json = **text;
        const RecordSignature signature = checkRecord(json, auth_);
        const Status signed_well = judgeRecord(signature, auth_);
        segment.bytes = json.size();
        segment.signature = signatureName(signature);
        segment.desc = signed_well ? decodeSegmentDesc(json) : Result<SegmentDesc>(signed_well);
    }
    client_.run({"PTTL", records_.key(name)}, left(),
                then([segment = std::move(segment)](RedisListing& self, const RedisReply& lease) {
                    self.onLease(segment, lease);
                }));
}

void RedisListing::onLease(StoredSegment segment, const RedisReply& lease) {
    --under_way_;
    if (lease.type != RedisReply::Type::Integer) return finish(wrongReply(lease, "a time to live"));
    // -2: gone; -1: it stays.
    constexpr std::int64_t kCentury = 100ll * 365 * 24 * 3600 * 1000;
    if (lease.integer != -2) {
        if (lease.integer >= 0) segment.lease = std::chrono::milliseconds(std::min(lease.integer, kCentury));
        found_.push_back(std::move(segment));
    }
    fetch();
}

void RedisListing::finish(Result<std::vector<StoredSegment>> result) {
    const auto done = std::exchange(done_, {});
    done(std::move(result));
}

}  // namespace troupe
