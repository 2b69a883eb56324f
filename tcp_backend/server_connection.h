#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "base/endpoint.h"
#include "tcp_backend/frame_reader.h"
#include "tcp_backend/ring.h"
#include "tcp_backend/shared.h"
#include "tcp_backend/staged_receives.h"
#include "tcp_backend/wire.h"

namespace troupe::tcp {

/// The target's end of one connection: applies writes to and answers reads from registered memory.
///
/// Owned by a TcpNic. Nothing here grows with what a peer sends: it stops receiving while kMostResponses answers
/// wait for the peer to read them.
class ServerConnection : public Link {
  public:
    enum class State : std::uint8_t {
        Greeting,  ///< Waits for a Hello, and for its proof where one is due.
        Greeted,   ///< Has one that the Nic has not answered: see hello().
        Serving,
        Closed,  ///< Ended; the Nic forgets it.
    };

    /// `deadline`: when the Hello must be complete. `from`: the other end's address.
    ServerConnection(Shared& shared, UniqueFd socket, TimePoint deadline, SocketAddress from = {});

    State state() const { return state_; }
    TimePoint deadline() const { return deadline_; }
    const Hello& hello() const { return hello_; }
    /// Greeting: whether it comes from the same address as `other`, whatever the port.
    bool isFrom(const SocketAddress& other) const { return greeting_ && greeting_->from.sameHost(other); }
    /// Greeted: what this connection asks for is counted with what others of its peer do.
    void countWith(std::shared_ptr<std::uint64_t> bytes_of_peer) { bytes_of_peer_ = std::move(bytes_of_peer); }
    const std::shared_ptr<std::uint64_t>& bytesOfPeer() const { return bytes_of_peer_; }

    /// Greeting: receives the Hello, and has it proven. Closes on garbage as soon as it shows.
    bool receiveHello(TimePoint now);
    /// Greeted: sends the reply; closes the connection unless `code` is Ok.
    void answerHello(Code code);

    /// Serving: one pass over requests and answers. True when anything moved.
    bool serve();
    /// Answers wait for the socket to take them.
    bool hasUnsent() const { return !responses_.empty(); }
    /// Too many do, so that nothing is received.
    bool isPaused() const { return responses_.size() >= kMostResponses; }
    /// What is to be sent next waits for a GPU.
    bool waitsForGpu() const { return waits_for_gpu_; }
    /// The socket did not take all of the last send.
    bool isBlocked() const { return blocked_; }
    /// What is to be received next finds no room on its way to a GPU.
    bool isStarved() const { return starved_; }

    /// A request that was accepted is reading from or writing to `range`.
    bool touches(const ByteRange& range) const;
    /// Ends the connection at once; `why` is logged.
    void close(const char* why);

    /// Passes in a row in which serve() had nothing to do; counted by the Nic.
    unsigned idle_passes = 0;
    bool is_hot = false;  ///< In the Nic's list of connections that are tried without epoll.

  private:
    class Receiver;

    /// An answer that is not sent yet.
    struct Response {
        ResponseKind kind = ResponseKind::WriteAck;
        bool crc = false;
        bool has_value = false;             ///< ReadData: the checksum in `value` is computed.
        Denial denial = Denial::LocalOnly;  ///< Error: as in RangeFault.
        std::int16_t device = Gpu::kNone;   ///< ReadData: of this GPU. WriteAck: it waits for this GPU.
        std::uint32_t value = 0;            ///< As in ResponseHeader.
        std::uint64_t id = 0;
        ByteRange range;  ///< ReadData: what was asked for. Error: of which only the first address at fault.
    };

    /// The write whose payload is being received.
    struct Incoming {
        std::uint64_t id = 0;
        ByteRange range;
        RangeFault fault;  ///< If there is one, the payload is dropped.
        int device = Gpu::kNone;
        bool crc = false;
        std::uint32_t expected_crc = 0;
        std::uint32_t actual_crc = 0;
    };

    bool flush();
    void fill(Gather& gather);
    void countSent(std::size_t bytes);
    Payload stagedPayload();
    void acknowledgeStaged(const RangeFault& fault);
    bool hasLanded(std::uint64_t number);
    bool addStaged(Gather& gather, std::uint64_t number, std::uint64_t offset);
    bool failStaged(Gather& gather, std::uint64_t number, std::uint64_t offset, const Status& why);
    void copyAhead(std::uint64_t number, device::Staging& staging);
    void countStaged(std::uint64_t number, std::uint64_t before, std::uint64_t after);
    std::uint64_t addResponse(Gather& gather, Response& response, std::uint64_t offset);
    std::uint64_t frameBytes(const Response& response) const;
    void acknowledge(std::uint64_t id);
    bool mayAskFor(std::uint64_t length) const;
    void forget(const Response& response);
    void refuse(std::uint64_t id, const RangeFault& fault);
    bool refuseUnreadable();
    std::optional<std::uint64_t> knownUnreadable(const ByteRange& range);
    static Response refusal(std::uint64_t id, const RangeFault& fault);
    static RangeFault faultOf(const Response& response);

    /// As many READ headers as one buffer holds. The queue has room for a power of two of entries, and one payload
    /// under way may add its answer to a full one: 16,384 of 40 bytes, 640 KiB, at worst.
    static constexpr std::size_t kMostResponses = 8192;
    static_assert(sizeof(Response) == 40);

    /// What the greeting needs, and nothing after it.
    struct Greeting {
        SocketAddress from;
        std::array<std::byte, kHelloBytes + kAuthBytes> hello{};
        std::size_t have = 0;  ///< Bytes of the Hello, then of the proof.
        std::size_t hello_bytes = kHelloBytes;
        bool challenged = false;
        std::array<std::byte, kHelloReplyBytes + kAuthBytes> challenge{};
        Proof proof{};
    };
    void onHello(TimePoint now);
    void onProof(TimePoint now);
    void refuseGreeting(AuthRefusal why, const Status& said, TimePoint now);
    bool sendReply(Code code, bool proven);

    Shared& shared_;
    State state_ = State::Greeting;
    TimePoint deadline_;
    Hello hello_;
    std::unique_ptr<Greeting> greeting_ = std::make_unique<Greeting>();

    FrameReader<kRequestBytes> reader_;
    Incoming incoming_;
    Ring<Response> responses_;
    std::uint64_t bytes_asked_for_ = 0;             ///< By READs whose answers are not sent whole.
    std::shared_ptr<std::uint64_t> bytes_of_peer_;  ///< The same of all connections of its initiator to this Nic.
    std::uint64_t sent_offset_ = 0;                 ///< Bytes of the oldest response's frame that are sent.

    // Memory of GPUs.
    bool waits_for_gpu_ = false;
    bool starved_ = false;
    bool blocked_ = false;     ///< The socket did not take all of the last send.
    Status gpu_failure_;       ///< Why the frame that is being sent cannot be completed.
    StagedSends staged_;       ///< By the numbers of the responses.
    StagedReceives receives_;  ///< Of which `incoming_` is the one that is being received.
    struct Landing {
        std::uint64_t number;  ///< Of the response that waits for it.
        ByteRange range;
        RangeFault fault;  ///< What is to be said of it when no copy of it is under way any more.
        std::unique_ptr<device::StagedSink> sink;
    };
    std::deque<Landing> landings_;
};

}  // namespace troupe::tcp
