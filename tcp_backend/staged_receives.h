#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/byte_range.h"
#include "tcp_backend/frame_reader.h"
#include "transports/staged_copy.h"
#include "transports/staging.h"

namespace troupe::tcp {

/// The payloads that one connection receives for GPUs, one after the other. Small ones share a chunk, which goes on its
/// way when it is full, when nothing more came in with a pass, or when others need it: a stream of small pages costs a
/// copy for each chunk and not a chunk for each page. On the Nic's turn.
class StagedReceives {
  public:
    /// The next payload is for `range` of that GPU.
    void begin(device::Staging& staging, const ByteRange& range);
    /// One is being received.
    bool isOpen() const { return sink_ != nullptr; }

    // As FrameReader asks for it.
    Room roomFor(std::span<std::byte>& here);
    /// What went wrong is seen when there is no more room, or at the end.
    void commit(std::size_t bytes) { static_cast<void>(sink_->commit(bytes)); }
    /// A chunk with nothing in it is of more use to others.
    void onSilence() { sink_->giveUnused(); }

    /// All of it was received: whoever takes it waits for its copies. Null: none was being received.
    std::unique_ptr<device::StagedSink> take() { return std::move(sink_); }
    /// The end of every pass: what was taken may count on its bytes being on their way.
    void pause();
    /// The end of the connection. What is under way runs on, the rest is dropped.
    void clear();

  private:
    std::unique_ptr<device::StagedInbox> inbox_;  ///< While there are small ones.
    std::unique_ptr<device::StagedSink> sink_;
};

}  // namespace troupe::tcp
