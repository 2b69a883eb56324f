#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/back_off.h"
#include "base/clock.h"
#include "host_backend/copy.h"
#include "host_backend/device_jobs.h"
#include "host_backend/grant_cache.h"
#include "host_backend/greeting.h"
#include "host_backend/host_shared.h"
#include "host_backend/links.h"
#include "transports/nic.h"

namespace troupe::host {

/// What the paths of one HostNic have to say, and what they share for it.
struct PathNews {
    std::vector<PathChange> changes;  ///< For the next poll to tell.
    std::minstd_rand random;          ///< Jitter only.

    /// Of the mapper. Null until one was needed.
    std::shared_ptr<MapperBell> bell;

    /// What a path let go of: unmapped, and then the connection that it was granted over is closed.
    struct Parting {
        std::vector<std::unique_ptr<DeviceImport>> imports;
        UniqueFd socket;
    };
    /// Those where GPUs still copy: let go of when they have ended.
    std::vector<Parting> partings;
};

/// Has the mapper do it. No GPU may copy there.
void letGo(DeviceMapper& mapper, PathNews::Parting parting);

/// The way of one HostNic to another process of this host: a connection to ask for grants, and the work that is done
/// under them. All copying happens inside `run`, on the owner's turn; between two calls nothing is being copied, so
/// what ends early is quiesced, and a Revoke that is acknowledged between two calls is kept by the next.
class RemotePath {
  public:
    RemotePath(const HostShared& shared, Links& links, PathNews& news, DeviceJobs& devices, std::string nic, PathId id,
               std::shared_ptr<const Peer> peer);
    ~RemotePath();

    /// Takes one request; the caller has checked the window. `device`: the GPU of its local memory, if it is of one.
    void push(const WorkRequest& request, const device::PlacedMemory* device = nullptr);
    std::uint64_t bytes() const { return bytes_; }
    std::uint32_t requests() const { return requests_; }

    /// A request that the Nic does in its stead has ended.
    void retire(const WorkRequest& request);

    /// True when `run` would get somewhere. What waits for the peer does not count.
    bool runnable() const { return (state_ == State::Up && !jobs_.empty()) || (state_ == State::Down && hasWork()); }
    bool isUp() const { return state_ == State::Up; }
    bool hasWork() const { return !jobs_.empty() || !waiting_.empty(); }
    /// Copies about `budget` bytes at most; returns how many.
    std::uint64_t run(std::uint64_t budget, TimePoint now, Copier& copier, Sweep& sweep);

    /// The socket is ready.
    bool onEvent(std::vector<Failure>& failures);
    void onTimer(TimePoint now, std::vector<Failure>& failures);
    TimePoint deadline() const { return deadline_; }

    /// GPUs have ended something: what waited for that goes on. True when anything did.
    bool releaseLeaving();
    /// The mapper has done something: the same.
    void onMapped();

    /// The peer was described anew: what was not possible may be.
    void update(std::shared_ptr<const Peer> peer);

    /// Another process's end was noticed.
    void onProcessEnded(std::vector<Failure>& failures);

    /// Ends all work. The connection and the grants stay.
    void drop(const Status& cause, bool retryable, std::vector<Failure>& failures);

    /// Stretches up to this are copied in one go, whatever is left of the budget.
    static constexpr std::uint64_t kNeverCut = 64u << 10;

    bool is_listed = false;  ///< The HostNic's: it is among the runnable ones.

  private:
    enum class State {
        Down,
        Dialing,
        Greeting,
        Up,
    };
    struct Job {
        WorkRequest request;
        std::uint64_t done = 0;                        ///< Bytes copied.
        bool granted = false;                          ///< All of it, when it was looked at first.
        std::uint64_t asked = 0;                       ///< Id of the grant request it made; 0: none.
        const device::PlacedMemory* device = nullptr;  ///< As in push.
    };
    /// A grant that was taken back: acknowledged when the GPUs that copy there have ended and it is unmapped.
    struct Leaving {
        std::uint64_t region = 0;
        std::unique_ptr<DeviceImport> import;
    };

    void dial(TimePoint now, std::vector<Failure>& failures);
    void greeted(std::vector<Failure>& failures);
    void onFrame(const Frame& frame, UniqueFd descriptor, std::vector<Failure>& failures);
    template <class SomeGrant>
    void onGrant(const SomeGrant& grant, bool writable, UniqueFd descriptor, std::vector<Failure>& failures);
    void onRevoke(const Revoke& revoke);
    bool partWithDevices();
    void takeBack(const DeviceImport& import);
    bool isCopying(const DeviceImport& import) const;
    Status needMapper();
    void runDevice(const GrantCache::Entry& grant, Sweep& sweep);
    void decline(const Job& job, const Status& why, std::vector<Failure>& failures);
    void onRefused(const GrantRefused& refused, std::vector<Failure>& failures);
    /// Moves jobs that wait back among those that run, as far as they are granted, and asks for more.
    void reconsider();
    /// True when the first job may run; otherwise it is moved to those that wait.
    bool prepareFront();
    void askFor(Job& job, std::uint64_t addr);
    void say(const Frame& frame);
    void flush();
    void hangUp();
    void broken(const Status& cause, std::vector<Failure>& failures, bool retryable = true);
    void lostDescriptor(std::vector<Failure>& failures);
    void impossible(const Status& cause, std::vector<Failure>& failures);
    void lose(TimePoint try_again);

    std::uint64_t runMapped(const GrantCache::Entry& grant, std::uint64_t budget, Copier& copier, Sweep& sweep);
    std::uint64_t runVm(std::uint64_t budget, Sweep& sweep);
    std::uint64_t gather(std::uint64_t budget);
    bool isGranted(Job& job, std::uint64_t& missing);
    void advance(std::uint64_t bytes);
    void failFront(const Status& cause, bool retryable, Sweep& sweep);
    /// Before each copy. True when this thread may have been stopped since the peer was last heard: then it hears the
    /// peer first, whose word (it takes memory back, it has ended) may have changed everything.
    bool wokeLate(std::vector<Failure>& failures);
    Status vmError(int error, const WorkRequest& request) const;
    Failure failure(const WorkRequest& request, const Status& cause, bool retryable) const;

    const HostShared& shared_;
    Links& links_;
    PathNews& news_;
    DeviceJobs& devices_;
    const std::string nic_;
    const PathId id_;
    std::shared_ptr<const Peer> peer_;
    Link link_;
    Link process_link_;

    State state_ = State::Down;
    std::unique_ptr<Greeting> greeting_;
    UniqueFd socket_;
    std::unique_ptr<ProcessHandle> process_;
    TimePoint deadline_ = kForever;  ///< When onTimer wants to be called.
    TimePoint greet_until_{};
    TimePoint heard_at_{};         ///< When the socket was looked at last, or a moment later.
    std::uint64_t unwatched_ = 0;  ///< Mapped bytes copied since the clock was looked at, and what requests cost.
    Status vm_;                    ///< Ok, or why process_vm is not to be used here.
    bool lost_ = false;            ///< It was said that it cannot be used; then it is dialed without work, too.
    BackOff back_off_;
    std::deque<Packet> unsent_;

    GrantCache grants_;
    std::vector<Leaving> leaving_;
    std::deque<Job> jobs_;     ///< Run in this order.
    std::deque<Job> waiting_;  ///< For a grant, or to be mapped.
    std::uint64_t next_ask_ = 1;
    std::unordered_map<std::uint64_t, std::uint64_t> asks_;  ///< Requests without an answer: id -> address.
    /// Of asks_. Grows while each answer brings a region that was new, so that the first batch over one large region
    /// does not ask for it a hundred times.
    std::size_t ask_limit_ = 1;
    std::uint64_t bytes_ = 0;  ///< Of all requests here.
    std::uint32_t requests_ = 0;

    // One system call's worth of runVm.
    std::vector<iovec> local_;
    std::vector<iovec> remote_;
    std::vector<std::uint64_t> pieces_;  ///< Bytes of the first jobs, one entry each.
    std::vector<WorkRequest> moved_;     ///< Complete, if the peer still lives.
};

}  // namespace troupe::host
