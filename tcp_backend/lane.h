#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/back_off.h"
#include "base/endpoint.h"
#include "tcp_backend/frame_reader.h"
#include "tcp_backend/ring.h"
#include "tcp_backend/shared.h"
#include "tcp_backend/staged_receives.h"
#include "tcp_backend/wire.h"
#include "transports/nic.h"

namespace troupe::tcp {

/// What the lanes of a path have in common.
struct PathState {
    PathId id = 0;
    std::shared_ptr<const Peer> peer;
    SocketAddress address;
    std::uint64_t bytes = 0;     ///< In flight, all lanes.
    std::uint32_t requests = 0;  ///< In flight, all lanes.
    std::size_t lanes = 0;       ///< How many there are.
};

/// The initiator's end of one connection: queues work, keeps it until it is answered, connects when there is any.
///
/// Owned by a TcpNic, whose rules hold: one thread, no call blocks. Whatever ends the connection ends everything
/// queued on it; there is no partial survival to reason about.
///
/// Bytes of a WRITE that were sent may lie in the target's socket when the connection ends, and be applied much later:
/// after a newer write that came another way. So such a request is *unfenced*, and not given back until the target has
/// closed its end: it does so before it greets this lane's next connection. Also fenced is what was sent to a process
/// that is gone, which another one proves that answers there; a refused connection does not (a firewall may reject it).
class Lane : public Link {
  public:
    enum class State : std::uint8_t {
        Idle,        ///< No connection; start() makes one.
        Connecting,  ///< Until the kernel knows.
        Greeting,    ///< Hello sent, waiting for the reply.
        Up,
    };

    /// `number` tells it from other lanes of this Nic to the same target; all references outlive it.
    Lane(Shared& shared, PathState& path, std::uint32_t number);
    ~Lane();

    State state() const { return state_; }
    /// There is a reason to be connected.
    bool hasWork() const { return !ring_.empty() || isUnfenced(); }
    bool isUnfenced() const { return !unfenced_.empty(); }
    bool hasUnsent() const { return sent_ != ring_.end(); }
    /// True after a send that the socket did not take whole, until it takes bytes again.
    bool isBlocked() const { return blocked_; }
    /// What is to be sent next is still on its way from a GPU.
    bool waitsForGpu() const { return waits_for_gpu_; }
    /// What is to be received next finds no room on its way to a GPU.
    bool isStarved() const { return starved_; }
    /// The peer has something to answer.
    bool awaitsAnswer() const { return ring_.first() != sent_; }
    std::uint64_t backlogBytes() const { return backlog_; }

    /// `device`: the GPU of its local memory, or Gpu::kNone.
    void push(const WorkRequest& request, int device) {
        Outstanding& entry = ring_.push();
        entry.request = request;
        entry.device = device;
        entry.has_crc = false;
        backlog_ += request.length + kRequestBytes;
    }

    /// Idle: starts to connect, or waits for the back-off to end. Failures of work queued go to `failed`.
    void start(TimePoint now, std::vector<Failure>& failed);
    /// When something must happen although the socket is silent; kForever when nothing must.
    TimePoint deadline() const;
    /// Acts on a deadline that passed.
    void onTimer(TimePoint now, std::vector<Failure>& failed);

    /// Connecting, Greeting: the socket has something to say. True when anything changed.
    bool advance(TimePoint now, std::vector<Failure>& failed);
    /// Up: sends what is queued, about `kPassBytes`. True when anything was sent.
    bool send(TimePoint now, std::vector<Failure>& failed);
    /// Up: receives answers, about `kPassBytes`. True when anything came. Ends the connection when the peer did.
    bool receive(TimePoint now, Sweep& sweep);

    /// Closes the connection at once and fails all work with `cause`: what is unfenced later, unless the cause says
    /// that the target is gone or cannot be asked. Does not count towards the back-off.
    void end(const Status& cause, bool retryable, std::vector<Failure>& failed);

    /// "write of 4096 bytes at 0x... of segment 'a' (10.0.0.1:7000) through tcp0", for errors.
    std::string describe(const WorkRequest& request) const;

    bool is_active = false;   ///< On the Nic's list of lanes that are up and have work.
    bool is_pending = false;  ///< On its list of lanes that are to come up.

  private:
    class Receiver;

    struct Outstanding {
        WorkRequest request;
        int device = Gpu::kNone;
        std::uint32_t crc = 0;
        bool has_crc = false;  ///< Computed once: a header sent in two parts must not change in between.
    };

    /// As end(), for a connection that broke: back-off grows. `culprit` is the number of a request that is not
    /// worth another try, or kNone.
    void lose(TimePoint now, const Status& cause, bool retryable, std::vector<Failure>& failed,
              std::uint64_t culprit = kNone);
    void failAll(const Status& cause, bool retryable, std::uint64_t culprit, std::vector<Failure>& failed);
    /// Gives back what was unfenced, and is fenced now.
    void giveBack(std::vector<Failure>& failed);
    /// The target does not answer: gives it back unfenced.
    void giveUpFencing(std::vector<Failure>& failed);
    void handOver(std::vector<Failure>& failed);
    void readReply(TimePoint now, std::vector<Failure>& failed);
    Status greet();
    Status onChallenge();
    Status checkReply(const HelloReply& reply) const;
    void fill(Gather& gather);
    Payload stagedPayload();
    bool addStaged(Gather& gather, std::uint64_t id, std::uint64_t offset);
    void copyAhead(std::uint64_t id, device::Staging& staging);
    void countStaged(std::uint64_t id, std::uint64_t before, std::uint64_t after);
    std::uint64_t firstFaulty() const;
    void countSent(std::size_t bytes);
    std::string where() const;
    /// Removes the oldest request from every count.
    void retire() {
        const std::uint64_t length = ring_.front().request.length;
        backlog_ -= length + kRequestBytes;
        path_.bytes -= length;
        path_.requests -= 1;
        ring_.pop();
    }

    static constexpr std::uint64_t kNone = UINT64_MAX;

    Shared& shared_;
    PathState& path_;
    const std::uint32_t number_;
    State state_ = State::Idle;
    bool blocked_ = false;
    bool waits_for_gpu_ = false;
    bool starved_ = false;
    TimePoint deadline_ = kForever;  ///< Of Connecting and Greeting.
    TimePoint retry_at_{};           ///< Idle: no attempt before.
    BackOff back_off_;

    Ring<Outstanding> ring_;         ///< first: the oldest not answered; its numbers are the request ids.
    std::uint64_t sent_ = 0;         ///< First request that is not sent whole.
    std::uint64_t sent_offset_ = 0;  ///< Bytes of its frame that are.
    std::uint64_t backlog_ = 0;      ///< Bytes queued and not answered.

    StagedSends staged_;       ///< By the numbers of their requests.
    StagedReceives receives_;  ///< Of the READs.
    Status gpu_failure_;       ///< Why the frame that is sent next never will be,
    Status gpu_refusal_;       ///< and why the payload that is received is dropped.

    std::vector<Failure> unfenced_;
    TimePoint fence_until_ = kForever;  ///< Then they are given back anyhow.

    FrameReader<kResponseBytes> reader_;
    ResponseHeader response_;  ///< Whose payload is being received.
    std::uint32_t response_crc_ = 0;
    std::array<std::byte, kMaxMessageBytes> message_{};
    std::array<std::byte, kHelloReplyBytes + kAuthBytes> reply_{};
    std::size_t reply_have_ = 0;
    /// With a cluster key, while greeting.
    struct Conversation {
        std::array<std::byte, kHelloBytes + kAuthBytes> hello{};
        std::array<std::byte, kHelloReplyBytes + kAuthBytes> challenge{};
        bool challenged = false;
    };
    std::unique_ptr<Conversation> auth_;
};

}  // namespace troupe::tcp
