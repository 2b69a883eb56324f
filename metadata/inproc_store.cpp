#include "metadata/inproc_store.h"

#include <algorithm>
#include <utility>

namespace troupe {

struct InprocDirectory::Listing {
    struct Entry {
        Incarnation incarnation;
        std::uint64_t version = 0;
        bool operator==(const Entry&) const = default;
    };
    std::map<std::string, Entry> entries;
    TimePoint next_expiry = kForever;
};

/// The state of one store. Everything but `reactor` is used on the reactor's turn only; others reach it by posting a
/// weak pointer there, which is dead once the store is destroyed.
struct InprocDirectory::Client : std::enable_shared_from_this<InprocDirectory::Client> {
    struct Published {
        SegmentDesc desc;
        Duration ttl;
    };

    Client(std::shared_ptr<InprocDirectory> its_directory, Reactor& its_reactor)
        : directory(std::move(its_directory)), reactor(its_reactor) {}

    /// Calls `work` after the injected delay, never at once.
    template <class Work>
    void later(Duration delay, Work work) {
        auto guarded = [weak = weak_from_this(), work = std::move(work)]() mutable {
            if (const auto self = weak.lock(); self && !self->stopped) work(*self);
        };
        if (delay <= Duration::zero())
            reactor.post(std::move(guarded));
        else
            reactor.runAt(saturatedAdd(reactor.now(), delay), std::move(guarded));
    }

    void renewAll();
    void armRenewal();
    void look();

    std::shared_ptr<InprocDirectory> directory;
    Reactor& reactor;
    bool stopped = false;
    std::map<std::string, Published> published;  ///< Renewed until withdrawn.
    MetadataStore::WatchCallback watcher;
    std::map<std::string, Listing::Entry> seen;  ///< What the watcher knows.
    Reactor::TimerId renewal = 0;
    Reactor::TimerId expiry = 0;
};

/// Renewing is publishing again, so that it also heals a directory that lost the record. A name that another
/// incarnation took meanwhile is tried again at the next renewal.
void InprocDirectory::Client::renewAll() {
    for (const auto& [name, each] : published) {
        // AlreadyExists is for the next renewal; nobody waits for an answer.
        [[maybe_unused]] const Status status = directory->put(each.desc, reactor.now(), each.ttl);
    }
    armRenewal();
}

/// At a third of the shortest lease, so that two renewals may be missed.
void InprocDirectory::Client::armRenewal() {
    if (renewal != 0) reactor.cancelTimer(std::exchange(renewal, 0));
    Duration shortest = Duration::max();
    for (const auto& [name, each] : published) shortest = std::min(shortest, each.ttl);
    if (shortest == Duration::max()) return;
    renewal = reactor.runAt(saturatedAdd(reactor.now(), shortest / 3), [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self || self->stopped) return;
        self->renewal = 0;
        self->renewAll();
    });
}

/// Compares the directory with what the watcher knows and tells it the difference.
void InprocDirectory::Client::look() {
    if (!watcher || directory->outage()) return;
    const Listing now = directory->listing(reactor.now());
    std::vector<SegmentEvent> events;
    for (const auto& [name, entry] : seen)
        if (now.entries.count(name) == 0) events.push_back({SegmentEvent::Kind::Withdrawn, name, 0, entry.incarnation});
    for (const auto& [name, entry] : now.entries) {
        const auto known = seen.find(name);
        if (known == seen.end() || !(known->second == entry))
            events.push_back({SegmentEvent::Kind::Published, name, entry.version, entry.incarnation});
    }
    seen = now.entries;
    if (expiry != 0) reactor.cancelTimer(std::exchange(expiry, 0));
    if (now.next_expiry != kForever) {
        expiry = reactor.runAt(now.next_expiry, [weak = weak_from_this()] {
            const auto self = weak.lock();
            if (!self || self->stopped) return;
            self->expiry = 0;
            self->look();
        });
    }
    for (const auto& event : events) {
        // The watcher may destroy the store.
        if (stopped) return;
        watcher(event);
    }
}

void InprocDirectory::setOutage(bool on) {
    const std::lock_guard lock(mutex_);
    if (std::exchange(outage_, on) == on || on) return;
    for (const auto& client : clients_)
        client->reactor.post([weak = std::weak_ptr(client)] {
            const auto self = weak.lock();
            if (!self || self->stopped) return;
            self->renewAll();
            self->look();
        });
}

void InprocDirectory::setDelay(Duration delay) {
    const std::lock_guard lock(mutex_);
    delay_ = delay;
}

void InprocDirectory::loseRecords() {
    const std::lock_guard lock(mutex_);
    records_.clear();
}

std::vector<std::string> InprocDirectory::names() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, record] : records_) names.push_back(name);
    return names;
}

Duration InprocDirectory::delay() const {
    const std::lock_guard lock(mutex_);
    return delay_;
}

bool InprocDirectory::outage() const {
    const std::lock_guard lock(mutex_);
    return outage_;
}

void InprocDirectory::attach(std::shared_ptr<Client> client) {
    const std::lock_guard lock(mutex_);
    clients_.push_back(std::move(client));
}

void InprocDirectory::detach(const Client* client) {
    const std::lock_guard lock(mutex_);
    std::erase_if(clients_, [&](const auto& each) { return each.get() == client; });
}

/// Under the mutex.
void InprocDirectory::dropExpired(TimePoint now) {
    if (std::erase_if(records_, [&](const auto& entry) { return entry.second.expires <= now; }) != 0) tellEveryone();
}

/// Under the mutex: has every store look for what changed.
void InprocDirectory::tellEveryone() {
    for (const auto& client : clients_)
        client->reactor.post([weak = std::weak_ptr(client)] {
            if (const auto self = weak.lock(); self && !self->stopped) self->look();
        });
}

Status InprocDirectory::put(const SegmentDesc& desc, TimePoint now, Duration ttl) {
    const std::lock_guard lock(mutex_);
    if (outage_) return {Code::ConnectionLost, "the in-process store is out (injected)"};
    dropExpired(now);
    const auto found = records_.find(desc.name);
    if (found != records_.end() && found->second.desc.incarnation != desc.incarnation)
        return {Code::AlreadyExists, "segment '" + desc.name + "' is held by incarnation " +
                                         found->second.desc.incarnation.toString() + " at " +
                                         found->second.desc.control.toString()};
    const bool changed = found == records_.end() || found->second.desc.version != desc.version;
    records_[desc.name] = {desc, saturatedAdd(now, ttl)};
    if (changed) tellEveryone();
    return Status::ok();
}

Status InprocDirectory::erase(const std::string& name, const Incarnation& owner) {
    const std::lock_guard lock(mutex_);
    if (outage_) return {Code::ConnectionLost, "the in-process store is out (injected)"};
    const auto found = records_.find(name);
    if (found == records_.end() || found->second.desc.incarnation != owner)
        return {Code::NotFound, "segment '" + name + "' is not held by incarnation " + owner.toString()};
    records_.erase(found);
    tellEveryone();
    return Status::ok();
}

Result<std::vector<StoredSegment>> InprocDirectory::all(TimePoint now) {
    const std::lock_guard lock(mutex_);
    if (outage_) return {Code::ConnectionLost, "the in-process store is out (injected)"};
    dropExpired(now);
    std::vector<StoredSegment> result;
    for (const auto& [name, record] : records_)
        result.push_back({name, record.expires - now, encodeSegmentDesc(record.desc).size(), record.desc});
    return result;
}

Result<SegmentDesc> InprocDirectory::get(const std::string& name, TimePoint now) {
    const std::lock_guard lock(mutex_);
    if (outage_) return {Code::ConnectionLost, "the in-process store is out (injected)"};
    dropExpired(now);
    const auto found = records_.find(name);
    if (found == records_.end()) return {Code::NotFound, "no segment '" + name + "' in the in-process store"};
    return found->second.desc;
}

InprocDirectory::Listing InprocDirectory::listing(TimePoint now) {
    const std::lock_guard lock(mutex_);
    dropExpired(now);
    Listing result;
    for (const auto& [name, record] : records_) {
        result.entries[name] = {record.desc.incarnation, record.desc.version};
        result.next_expiry = std::min(result.next_expiry, record.expires);
    }
    return result;
}

InprocStore::InprocStore(std::shared_ptr<InprocDirectory> directory) : directory_(std::move(directory)) {}

InprocStore::~InprocStore() {
    if (!client_) return;
    directory_->detach(client_.get());
    client_->stopped = true;
    if (client_->renewal != 0) client_->reactor.cancelTimer(client_->renewal);
    if (client_->expiry != 0) client_->reactor.cancelTimer(client_->expiry);
}

Status InprocStore::start(Reactor& reactor) {
    if (client_) return {Code::InvalidArgument, "this store was started before"};
    client_ = std::make_shared<InprocDirectory::Client>(directory_, reactor);
    directory_->attach(client_);
    return Status::ok();
}

void InprocStore::publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) {
    client_->later(directory_->delay(), [desc, ttl, done = std::move(done)](InprocDirectory::Client& client) {
        Status status = client.directory->put(desc, client.reactor.now(), ttl);
        // What failed because the store is out is published when it is back.
        if (status.code() != Code::AlreadyExists) {
            client.published.insert_or_assign(desc.name, InprocDirectory::Client::Published{desc, ttl});
            client.armRenewal();
        }
        done(std::move(status));
    });
}

void InprocStore::withdraw(const std::string& name, DoneCallback done) {
    client_->later(directory_->delay(), [name, done = std::move(done)](InprocDirectory::Client& client) {
        Status status;
        const auto found = client.published.find(name);
        if (found != client.published.end()) {
            status = client.directory->erase(name, found->second.desc.incarnation);
            // It is gone, or another's: as good as withdrawn.
            if (status.code() == Code::NotFound) status = Status::ok();
        } else if (client.directory->outage()) {
            status = Status(Code::ConnectionLost, "the in-process store is out (injected)");
        }
        if (found != client.published.end()) client.published.erase(found);
        client.armRenewal();
        done(std::move(status));
    });
}

void InprocStore::resolve(const std::string& name, Duration timeout, ResolveCallback done) {
    const Duration delay = directory_->delay();
    const bool late = delay > timeout;
    client_->later(late ? timeout : delay, [name, late, done = std::move(done)](InprocDirectory::Client& client) {
        if (late)
            done(Status(Code::Timeout, "the in-process store did not answer for segment '" + name + "' in time"));
        else
            done(client.directory->get(name, client.reactor.now()));
    });
}

void InprocStore::inspect(const std::string& name, Duration timeout, InspectCallback done) {
    resolve(name, timeout, [done = std::move(done)](const Result<SegmentDesc>& desc) {
        if (desc)
            done(RecordHead{desc->incarnation, desc->version});
        else
            done(desc.status());
    });
}

void InprocStore::evict(const std::string& name, const Incarnation& holder, DoneCallback done) {
    client_->later(directory_->delay(), [name, holder, done = std::move(done)](InprocDirectory::Client& client) {
        done(client.directory->erase(name, holder));
    });
}

void InprocStore::list(Duration timeout, ListCallback done) {
    const Duration delay = directory_->delay();
    const bool late = delay > timeout;
    client_->later(late ? timeout : delay, [late, done = std::move(done)](InprocDirectory::Client& client) {
        if (late)
            done(Status(Code::Timeout, "the in-process store did not list its segments in time"));
        else
            done(client.directory->all(client.reactor.now()));
    });
}

void InprocStore::watch(WatchCallback changed) {
    client_->watcher = std::move(changed);
    client_->seen = directory_->listing(client_->reactor.now()).entries;
    // A look in a later turn arms the expiry timer.
    client_->later(Duration::zero(), [](InprocDirectory::Client& client) { client.look(); });
}

}  // namespace troupe
