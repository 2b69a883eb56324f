#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "metadata/metadata_store.h"

namespace troupe {

class InprocStore;

/// What the engines of one test publish in: the server that a real store would be. Made by the test, and shared by
/// the stores that use it; it may outlive them and they it.
///
/// Any thread: engines run on their own loops. The mutex guards the records and the list of stores; under it nothing
/// is called but Reactor::post, so that no callback of anyone runs inside.
class InprocDirectory {
  public:
    // --- faults, for tests ---------------------------------------------------------------------------------------

    /// While on, every operation answers with ConnectionLost and no event is delivered. When it goes off, stores
    /// publish again what they had published, and hear of what changed meanwhile.
    void setOutage(bool on);
    /// How long an operation takes from now on. A resolve whose timeout is shorter answers with Timeout.
    void setDelay(Duration delay);
    /// Forgets every record without a word, as a server that was restarted empty; meant for within an outage.
    void loseRecords();

    // --- looking at it -------------------------------------------------------------------------------------------

    std::vector<std::string> names() const;

  private:
    friend class InprocStore;

    struct Record {
        SegmentDesc desc;
        TimePoint expires;
    };
    struct Client;

    Duration delay() const;
    bool outage() const;
    void attach(std::shared_ptr<Client> client);
    void detach(const Client* client);
    Status put(const SegmentDesc& desc, TimePoint now, Duration ttl);
    /// NotFound: `owner` does not have it.
    Status erase(const std::string& name, const Incarnation& owner);
    Result<SegmentDesc> get(const std::string& name, TimePoint now);
    Result<std::vector<StoredSegment>> all(TimePoint now);
    /// Live records by name, with incarnation and version; and when the next one expires.
    struct Listing;
    Listing listing(TimePoint now);

    void dropExpired(TimePoint now);
    void tellEveryone();

    mutable std::mutex mutex_;
    bool outage_ = false;
    Duration delay_{0};
    std::map<std::string, Record> records_;
    std::vector<std::shared_ptr<Client>> clients_;
};

/// A MetadataStore in the process, for tests and for engines that live together. One per engine.
///
/// A record outlives its store until its lease ends, as it does when a process dies; withdraw it to be gone at once.
/// A withdraw that fails because of an outage leaves the record to the end of its lease. The watcher hears of the
/// engine's own segment too.
class InprocStore : public MetadataStore {
  public:
    explicit InprocStore(std::shared_ptr<InprocDirectory> directory);
    ~InprocStore() override;
    InprocStore(const InprocStore&) = delete;
    InprocStore& operator=(const InprocStore&) = delete;

    /// InvalidArgument when it is called twice.
    Status start(Reactor& reactor) override;
    void publish(const SegmentDesc& desc, Duration ttl, DoneCallback done) override;
    void withdraw(const std::string& name, DoneCallback done) override;
    void resolve(const std::string& name, Duration timeout, ResolveCallback done) override;
    void inspect(const std::string& name, Duration timeout, InspectCallback done) override;
    void evict(const std::string& name, const Incarnation& holder, DoneCallback done) override;
    void list(Duration timeout, ListCallback done) override;
    void watch(WatchCallback changed) override;

  private:
    std::shared_ptr<InprocDirectory> directory_;
    std::shared_ptr<InprocDirectory::Client> client_;  ///< Null before start.
};

}  // namespace troupe
