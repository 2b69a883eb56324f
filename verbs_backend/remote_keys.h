#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "transports/nic.h"

namespace troupe::verbs {

/// Finds the key for an address of a peer in the peer's descriptor. One thread.
class RemoteKeys {
  public:
    explicit RemoteKeys(std::shared_ptr<const Peer> peer);

    /// The key that covers `addr` with `device` (its index in the descriptor), and how many bytes from `addr` on.
    struct Found {
        std::uint32_t key = 0;
        std::uint64_t length = 0;
        bool read_back = false;  ///< What is written there is to be followed by a read; see RdmaWrites.
    };
    /// AddressNotRegistered: nothing is registered there, as far as this version of the descriptor knows. AccessDenied:
    /// its owner lets nobody in. Unsupported: it is memory of a GPU that no RDMA device of its owner reaches.
    Result<Found> find(std::uint64_t addr, std::size_t device) const;

    /// Ok when all of it can be found for such a request; the first error otherwise. Unsupported, of a WRITE: the
    /// owner's GPU would not see what a device writes there.
    Status covers(const ByteRange& range, Opcode opcode) const;

    const Peer& peer() const { return *peer_; }

  private:
    const BufferDesc* bufferAt(std::uint64_t addr) const;
    Status refusal(std::uint64_t addr, const BufferDesc* buffer) const;

    std::shared_ptr<const Peer> peer_;
    std::vector<std::uint32_t> order_;  ///< Indices of the descriptor's buffers by address; empty: they are sorted.
    mutable std::size_t last_ = 0;      ///< Where the last one was found; requests come in runs.
};

}  // namespace troupe::verbs
