#pragma once

#include <cstdint>
#include <vector>

#include "transports/nic.h"

namespace troupe {

/// A Nic that completes every request at the next poll without touching a byte. It keeps no request, only runs of
/// equal cookies, so that its own cost is about a nanosecond per request. Because a request is as good as done when
/// it is posted, one that closePath or resetPath finds is still completed, never failed.
class NullNic : public Nic {
  public:
    explicit NullNic(NicInfo info) : info_(std::move(info)) {}

    const NicInfo& info() const override { return info_; }
    Result<PathId> openPath(std::shared_ptr<const Peer> peer) override;
    void closePath(PathId path, const Status& cause) override;
    void resetPath(PathId, const Status&) override {}
    std::size_t post(PathId path, std::span<const WorkRequest> requests) override;
    bool poll(TimePoint now, Sweep& sweep) override;
    bool arm() override { return runs_.empty() && ended_.empty(); }
    int waitFd() const override { return -1; }
    bool servesPeerIn(const ByteRange&) const override { return false; }
    void cutPeersIn(const ByteRange&) override {}

  private:
    struct Path {
        bool open = true;
        std::uint64_t epoch = 0;  ///< The poll that the counts belong to; in a later one they are 0.
        std::uint64_t bytes = 0;  ///< Posted since the last poll.
        std::uint32_t requests = 0;
    };

    const NicInfo info_;
    std::vector<Path> paths_;       ///< By path id.
    std::vector<Completion> runs_;  ///< Done since the last poll.
    std::vector<Failure> ended_;    ///< Posted on a closed path.
    std::uint64_t epoch_ = 1;       ///< Counts polls.
};

}  // namespace troupe
