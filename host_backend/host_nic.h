#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/snapshot.h"
#include "host_backend/copy.h"
#include "transports/nic.h"
#include "transports/registration_table.h"

namespace troupe {

/// The copy engine of one data loop: moves bytes within the process, a bounded piece per poll, in the order posted.
///
/// The remote range is checked against the registration table as its owner would check it, when the copy begins;
/// from then until it ends `servesPeerIn` holds the region. Where source and destination overlap the result is that
/// of memmove, whatever the length; that holds for one work request, so whoever cuts requests into several must not
/// cut such a one (see NicInfo::slice_bytes).
///
/// Between two polls nothing is being copied, so everything that ends early is quiesced.
class HostNic : public Nic {
  public:
    /// `regions` outlives the Nic. `chunk_bytes`, at least 1, bounds what one poll copies, roughly.
    HostNic(NicInfo info, Incarnation incarnation, const RegistrationTable& regions, std::uint64_t chunk_bytes);

    const NicInfo& info() const override { return info_; }
    Result<PathId> openPath(std::shared_ptr<const Peer> peer) override;
    void closePath(PathId path, const Status& cause) override;
    void resetPath(PathId path, const Status& cause) override;
    std::size_t post(PathId path, std::span<const WorkRequest> requests) override;
    bool poll(TimePoint now, Sweep& sweep) override;
    bool arm() override { return jobs_.empty() && ended_.empty(); }
    int waitFd() const override { return -1; }
    bool servesPeerIn(const ByteRange& range) const override;
    void cutPeersIn(const ByteRange& range) override;

  private:
    struct Path {
        std::string peer;
        std::uint64_t bytes = 0;  ///< Posted and not yet ended.
        std::uint32_t requests = 0;
    };
    struct Job {
        WorkRequest request;
        PathId path;
    };

    void endAll(PathId path, const Status& cause, bool retryable);
    void retire(const Job& job);
    Status check(const WorkRequest& request, const RegionMap& regions);
    std::uint64_t copyPiece(const WorkRequest& request, std::uint64_t budget);

    const NicInfo info_;
    const Incarnation incarnation_;
    SnapshotReader<RegionMap> regions_;
    const std::uint64_t chunk_bytes_;
    Copier copier_;
    std::map<PathId, Path> paths_;
    PathId next_path_ = 1;
    std::deque<Job> jobs_;          ///< In the order posted; only the first may be half done.
    bool started_ = false;          ///< The first job was checked.
    std::uint64_t done_bytes_ = 0;  ///< Of the first job.
    std::vector<Failure> ended_;    ///< Told by the next poll.
    ByteRange last_region_;         ///< Of the last request in this poll: most requests lie where the last one did.
};

}  // namespace troupe
