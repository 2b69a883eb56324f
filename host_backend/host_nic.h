#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/snapshot.h"
#include "host_backend/copy.h"
#include "host_backend/device_jobs.h"
#include "host_backend/grant_server.h"
#include "host_backend/host_shared.h"
#include "host_backend/links.h"
#include "host_backend/remote_path.h"
#include "transports/nic.h"
#include "transports/registration_table.h"

namespace troupe {

/// The copy engine of one data loop: moves bytes within the process and between it and other processes of the host, a
/// bounded piece per poll.
///
/// Within the process the remote range is checked against the registration table as its owner would check it, when the
/// copy begins; from then until it ends `servesPeerIn` holds the region. Where source and destination overlap the
/// result is that of memmove, whatever the length; that holds for one work request, so whoever cuts requests into
/// several must not cut such a one (see NicInfo::slice_bytes). To another process it copies under grants: see
/// host::RemotePath, and host::GrantServer for the other side, which one Nic of the engine runs.
///
/// Between two polls nothing is being copied by this thread, so what ends early is quiesced; what GPUs copy is waited
/// for, see host::DeviceJobs.
class HostNic : public Nic {
  public:
    /// `listener`: of `shared->socket`, for the one Nic of the engine that lets other processes in; empty for the rest.
    /// `loop`: the one that polls it.
    HostNic(NicInfo info, std::shared_ptr<const host::HostShared> shared, UniqueFd listener = {}, unsigned loop = 0);
    ~HostNic() override;
    Status shut() override;

    const NicInfo& info() const override { return info_; }
    Result<PathId> openPath(std::shared_ptr<const Peer> peer) override;
    void updatePeer(PathId path, std::shared_ptr<const Peer> peer) override;
    void closePath(PathId path, const Status& cause) override;
    void resetPath(PathId path, const Status& cause) override;
    std::size_t post(PathId path, std::span<const WorkRequest> requests) override;
    bool poll(TimePoint now, Sweep& sweep) override;
    bool arm() override {
        return jobs_.empty() && runnable_.empty() && ended_.empty() && news_.changes.empty() &&
               (devices_.isIdle() || devices_.arm());
    }
    int waitFd() const override { return links_.fd(); }
    TimePoint nextDeadline() const override { return std::min(next_deadline_, devices_.nextDeadline()); }
    bool servesPeerIn(const ByteRange& range) const override;
    void cutPeersIn(const ByteRange& range) override;
    void revokeIn(const RangeSet& ranges) override;
    Status heldIn(const ByteRange& range) const override;
    std::vector<Holding> holdingsIn(const ByteRange& range) const override;
    void closeToPeers() override;
    void openToPeers() override;

    /// Null for the Nics that let nobody in.
    const host::GrantServer* server() const { return server_.get(); }

  private:
    struct Path {
        std::string peer;
        std::uint64_t bytes = 0;  ///< Posted and not yet ended; within the process.
        std::uint32_t requests = 0;
        std::unique_ptr<host::RemotePath> remote;  ///< Null: within the process.
    };
    struct Job {
        WorkRequest request;
        PathId path;
    };

    // Within the process.
    void endAll(PathId path, const Status& cause, bool retryable);
    void retire(const Job& job);
    RangeFault check(const WorkRequest& request, const RegionMap& regions);
    std::uint64_t copyPiece(const WorkRequest& request, std::uint64_t budget);
    std::uint64_t runLocal(std::uint64_t budget, Sweep& sweep);
    bool servesOwnIn(const ByteRange& range) const;

    // With GPUs; host_nic_devices.cpp.
    bool takeDevice(const Job& job, const RegionMap& regions);
    void failTaken(const Job& job, const Status& cause);
    void pushRemote(host::RemotePath& path, const WorkRequest& request);
    bool releaseParting();
    bool isCopyingWhereItIs(const host::PathNews::Parting& parting) const;
    void onMapped();
    bool pollDevices(TimePoint now, Sweep& sweep);
    void tellDropped(std::vector<host::DeviceJobs::Ended>& dropped, bool retryable);
    void tellFailed(const host::DeviceJobs::Ended& ended, const Status& cause, bool retryable);
    bool tellUnfenced(TimePoint now);

    // To other processes.
    void enlist(host::RemotePath& path);
    bool look(TimePoint now, Sweep& sweep);
    void runTimers(TimePoint now, Sweep& sweep);
    void findDeadline();
    void runAll(TimePoint now, Sweep& sweep);

    const NicInfo info_;
    const std::shared_ptr<const host::HostShared> shared_;
    SnapshotReader<RegionMap> regions_;
    const std::uint64_t chunk_bytes_;
    Copier copier_;
    std::map<PathId, Path> paths_;
    PathId next_path_ = 1;
    std::deque<Job> jobs_;          ///< Within the process, in the order posted; only the first may be half done.
    bool started_ = false;          ///< The first job was checked.
    std::uint64_t done_bytes_ = 0;  ///< Of the first job.
    std::vector<Failure> ended_;    ///< Told by the next poll.
    ByteRange last_region_;         ///< Of the last request in this poll: most requests lie where the last one did.

    host::Links links_;
    host::DeviceJobs devices_;
    std::vector<host::DeviceJobs::Ended> device_ended_;  ///< Reused.
    /// A failure that is kept back while a copy touches the other end.
    struct Unfenced {
        Failure failure;
        ByteRange there;
        TimePoint since;
    };
    std::vector<Unfenced> unfenced_;
    Status no_links_;  ///< Why other processes are out of reach.
    std::unique_ptr<host::GrantServer> server_;
    host::PathNews news_;
    std::vector<host::RemotePath*> runnable_;
    std::size_t turn_ = 0;  ///< Who copies first; moves on each poll.
    TimePoint looked_at_{};
    TimePoint next_deadline_ = kForever;
    std::array<epoll_event, 64> events_{};
};

}  // namespace troupe
