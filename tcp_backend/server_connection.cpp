#include "tcp_backend/server_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/endpoint.h"
#include "base/fault_injector.h"
#include "tcp_backend/crc32c.h"
#include "tcp_backend/prefetch.h"
#include "tcp_backend/readable.h"

namespace troupe::tcp {

/// Takes the frames of the requests.
class ServerConnection::Receiver {
  public:
    explicit Receiver(ServerConnection& connection) : my_(connection) {}

    bool onHeader(const std::byte* bytes, Payload& next) {
        RequestHeader request;
        if (!decodeRequest(bytes, request)) return false;
        const ByteRange range{request.addr, request.length};
        RangeFault fault = my_.shared_.guard.check(range, request.op == Op::Write);
        int device = Gpu::kNone;
        // What is empty touches nothing, and there would be nothing to wait for.
        if (my_.shared_.guard.mayBeDevice() && !fault && range.length != 0) [[unlikely]] {
            const auto found = Gpu::ordinalOf(my_.shared_.guard.deviceOf(range));
            if (found)
                device = *found;
            else
                fault = {Code::Unsupported, range.addr};
        }
        if (request.op == Op::Read) {
            if (fault) {
                my_.refuse(request.id, fault);
            } else if (const auto bad = device == Gpu::kNone ? my_.knownUnreadable(range) : std::nullopt) {
                my_.refuse(request.id, {Code::AccessDenied, *bad, Denial::Untouchable});
            } else if (!my_.mayAskFor(range.length)) {
                my_.refuse(request.id, {Code::CapacityExceeded, range.addr});
            } else {
                my_.responses_.push() = {ResponseKind::ReadData,
                                         request.crc,
                                         false,
                                         Denial::LocalOnly,
                                         static_cast<std::int16_t>(device),
                                         0,
                                         request.id,
                                         range};
                my_.bytes_asked_for_ += range.length;
                *my_.bytes_of_peer_ += range.length;
            }
            return true;
        }
        // Checked once: whoever unregisters the range waits until `touches` denies it.
        my_.incoming_ = {request.id, range, fault, device, request.crc, request.crc32c, 0};
        next.to = fault ? nullptr : reinterpret_cast<std::byte*>(request.addr);
        next.length = request.length;
        if (device != Gpu::kNone) [[unlikely]]
            next = my_.stagedPayload();
        if (next.length == 0) onPayload();
        return true;
    }

    void onBytes(std::byte* data, std::size_t size) {
        if (my_.shared_.faults != nullptr) my_.shared_.faults->corrupt(my_.shared_.name, {data, size});
        if (my_.incoming_.crc) my_.incoming_.actual_crc = crc32c(my_.incoming_.actual_crc, data, size);
    }

    /// Its memory was protected after it was registered. That is no fault of the requests behind this one.
    bool onFault() {
        my_.incoming_.fault = {Code::AccessDenied, 0, Denial::Untouchable};
        return true;
    }

    void onPayload() {
        const Incoming& write = my_.incoming_;
        RangeFault fault = write.fault;
        if (!fault && write.crc && write.actual_crc != write.expected_crc)
            fault = {Code::ChecksumMismatch, write.range.addr};
        if (my_.receives_.isOpen()) [[unlikely]]
            my_.acknowledgeStaged(fault);
        else if (fault)
            my_.refuse(write.id, fault);
        else
            my_.acknowledge(write.id);
    }

    Room roomFor(std::span<std::byte>& here) { return my_.receives_.roomFor(here); }
    void onStaged(std::size_t size) { my_.receives_.commit(size); }
    void onSilence() { my_.receives_.onSilence(); }

    std::size_t headerRoom() const { return my_.isPaused() ? 0 : kMostResponses - my_.responses_.size(); }

  private:
    ServerConnection& my_;
};

ServerConnection::ServerConnection(Shared& shared, UniqueFd socket, TimePoint deadline, SocketAddress from)
    : Link(Kind::Server), shared_(shared), deadline_(deadline), bytes_of_peer_(std::make_shared<std::uint64_t>(0)) {
    fd = std::move(socket);
    greeting_->from = from;
}

/// What is asked for alone is never too much, or it could never be had.
bool ServerConnection::mayAskFor(std::uint64_t length) const {
    const std::uint64_t limit = shared_.config.peer_tcp_bytes;
    return *bytes_of_peer_ == 0 || (*bytes_of_peer_ < limit && length <= limit - *bytes_of_peer_);
}

/// Before an answer goes: it is sent, or becomes an error.
void ServerConnection::forget(const Response& response) {
    if (response.kind != ResponseKind::ReadData) return;
    bytes_asked_for_ -= response.range.length;
    *bytes_of_peer_ -= response.range.length;
}

bool ServerConnection::receiveHello(TimePoint now) {
    Greeting& greeting = *greeting_;
    std::byte* const into = greeting.challenged ? greeting.proof.data() : greeting.hello.data();
    const std::size_t whole = greeting.challenged ? greeting.proof.size() : greeting.hello_bytes;
    const ssize_t got = ::recv(fd.get(), into + greeting.have, whole - greeting.have, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (got <= 0) {
        close("closed by the peer before its greeting was complete");
        return true;
    }
    greeting.have += static_cast<std::size_t>(got);
    if (greeting.challenged) {
        if (greeting.have == whole) onProof(now);
        return true;
    }
    if (!startsLikeHello(greeting.hello.data(), greeting.have)) {
        close("what it sent is not a greeting");
        return true;
    }
    if (greeting.have == greeting.hello_bytes) onHello(now);
    return true;
}

/// All of the Hello that was expected is there.
void ServerConnection::onHello(TimePoint now) {
    Greeting& greeting = *greeting_;
    auto hello = decodeHello(greeting.hello.data());
    if (!hello.isOk()) return close(hello.status().message().c_str());
    hello_ = *hello;
    if (hello_.has_nonce && greeting.hello_bytes == kHelloBytes) {
        // Then this is not all of it.
        greeting.hello_bytes += kAuthBytes;
        return;
    }
    const bool keyed = hasKey(shared_.auth);
    if (keyed && !hello_.has_nonce) {
        refuseGreeting(AuthRefusal::NoProof, needsKey("this engine"), now);
    } else if (!keyed && hello_.has_nonce) {
        refuseGreeting(AuthRefusal::UnusedKey, hasNoKey("this engine"), now);
    } else if (!keyed) {
        state_ = State::Greeted;
    } else {
        encodeHelloReply({shared_.incarnation, Code::Ok, true}, greeting.challenge.data());
        const Nonce nonce = randomNonce();
        std::copy(nonce.begin(), nonce.end(), greeting.challenge.begin() + kHelloReplyBytes);
        const auto& bytes = greeting.challenge;
        const ssize_t sent = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent != static_cast<ssize_t>(bytes.size())) return close("the greeting could not be answered");
        greeting.challenged = true;
        greeting.have = 0;
    }
}

void ServerConnection::onProof(TimePoint now) {
    const Greeting& greeting = *greeting_;
    if (!shared_.auth->accepts(AuthRole::Initiator, kAuthProtocol, {greeting.hello, greeting.challenge},
                               greeting.proof))
        return refuseGreeting(AuthRefusal::WrongProof, otherKey("this engine"), now);
    shared_.auth->countAccepted();
    state_ = State::Greeted;
}

void ServerConnection::refuseGreeting(AuthRefusal why, const Status& said, TimePoint now) {
    countRefusal(shared_.auth, why);
    const auto from = SocketAddress::remote(fd.get());
    shared_.refusals.say(
        shared_.log, now,
        shared_.name + ": data connection" + (from ? " from " + from->toString() : "") + " refused: " + said.message());
    if (!sendReply(said.code(), false)) return;
    shared_.events.closeInOrder(*this);
    state_ = State::Closed;
}

/// False: it could not be sent, and the connection is closed.
bool ServerConnection::sendReply(Code code, bool proven) {
    std::array<std::byte, kHelloReplyBytes + kAuthBytes> bytes{};
    encodeHelloReply({shared_.incarnation, code, proven}, bytes.data());
    std::size_t length = kHelloReplyBytes;
    if (proven) {
        const Proof proof =
            shared_.auth->prove(AuthRole::Responder, kAuthProtocol,
                                {greeting_->hello, greeting_->challenge, std::span(bytes).first(kHelloReplyBytes)});
        std::copy(proof.begin(), proof.end(), bytes.begin() + kHelloReplyBytes);
        length = bytes.size();
    }
    const ssize_t sent = ::send(fd.get(), bytes.data(), length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(length)) return true;
    close("the greeting could not be answered");
    return false;
}

void ServerConnection::answerHello(Code code) {
    if (!sendReply(code, hasKey(shared_.auth))) return;
    greeting_.reset();
    deadline_ = kForever;
    state_ = State::Serving;
    if (code == Code::Ok) return;
    // An orderly end, so that the reply arrives.
    shared_.log->debug("{}: connection refused: {}", shared_.name, codeName(code));
    shared_.events.closeInOrder(*this);
    state_ = State::Closed;
}

bool ServerConnection::serve() {
    bool moved = false;
    std::size_t budget = kPassBytes;
    if (hasUnsent()) moved = flush();
    if (state_ == State::Closed || isPaused()) return moved;
    Receiver receiver(*this);
    const ReadEnd end = reader_.read(fd.get(), shared_.scratch, budget, receiver, moved);
    receives_.pause();
    shared_.pass_bytes += kPassBytes - budget;
    starved_ = end == ReadEnd::Starved;
    switch (end) {
        case ReadEnd::Starved:
        case ReadEnd::Drained:
        case ReadEnd::Budget: break;
        case ReadEnd::Closed: close("closed by the peer"); return true;
        case ReadEnd::Failed: close("the connection broke"); return true;
        case ReadEnd::Violation: close("the peer sent a request that the protocol does not know"); return true;
    }
    if (hasUnsent() && flush()) moved = true;
    return moved;
}

bool ServerConnection::touches(const ByteRange& range) const {
    if (state_ != State::Serving) return false;
    if (reader_.payload().length != 0 && !incoming_.fault && incoming_.range.overlaps(range)) return true;
    for (auto i = responses_.first(); i != responses_.end(); ++i)
        if (responses_[i].kind == ResponseKind::ReadData && responses_[i].range.overlaps(range)) return true;
    return false;
}

void ServerConnection::close(const char* why) {
    shared_.log->debug("{}: connection ended: {}", shared_.name, why);
    shared_.events.closeAbruptly(*this);
    state_ = State::Closed;
    responses_.clear();
    *bytes_of_peer_ -= std::exchange(bytes_asked_for_, 0);
    reader_.reset();
    if (receives_.isOpen()) shared_.gpu.leaveBehind(hello_.lane.initiator, incoming_.range);
    for (const Landing& landing : landings_) shared_.gpu.leaveBehind(hello_.lane.initiator, landing.range);
    receives_.clear();
    landings_.clear();
    staged_.clear();
    starved_ = false;
    waits_for_gpu_ = false;
}

void ServerConnection::acknowledge(std::uint64_t id) {
    if (!responses_.empty()) {
        Response& last = responses_.back();
        // One that is sent in part says already how many it stands for.
        const bool begun = responses_.size() == 1 && sent_offset_ != 0;
        if (last.kind == ResponseKind::WriteAck && last.device == Gpu::kNone && !begun && last.id + last.value == id &&
            last.value != UINT32_MAX) {
            ++last.value;
            return;
        }
    }
    responses_.push() = {ResponseKind::WriteAck, false, true, Denial::LocalOnly, Gpu::kNone, 1, id, {}};
}

void ServerConnection::refuse(std::uint64_t id, const RangeFault& fault) { responses_.push() = refusal(id, fault); }

/// A send met memory that cannot be read. Makes errors of the answers that were to carry it. False when there is none,
/// or when a part of one is sent: then only the end of the connection tells the peer, and it is known when it is asked
/// for again.
bool ServerConnection::refuseUnreadable() {
    bool refused = false;
    std::uint64_t seen = 0;
    std::uint64_t begun = sent_offset_;
    // As far as fill() goes.
    for (auto i = responses_.first(); i != responses_.end() && seen < kSendBytes; ++i, begun = 0) {
        Response& response = responses_[i];
        seen += frameBytes(response) - begun;
        if (response.kind != ResponseKind::ReadData || response.device != Gpu::kNone) continue;
        const std::uint64_t sent = begun > kResponseBytes ? begun - kResponseBytes : 0;
        const auto bad = firstUnreadable({response.range.addr + sent, response.range.length - sent});
        if (!bad) continue;
        if (begun != 0) {
            if (shared_.unreadable.size() >= kMostUnreadable) shared_.unreadable.erase(shared_.unreadable.begin());
            shared_.unreadable.push_back(*bad);
            return false;
        }
        forget(response);
        response = refusal(response.id, {Code::AccessDenied, *bad, Denial::Untouchable});
        refused = true;
    }
    return refused;
}

std::optional<std::uint64_t> ServerConnection::knownUnreadable(const ByteRange& range) {
    if (shared_.unreadable.empty()) return std::nullopt;
    std::erase_if(shared_.unreadable, [](std::uint64_t addr) { return !firstUnreadable({addr, 1}); });
    std::optional<std::uint64_t> first;
    for (const std::uint64_t addr : shared_.unreadable)
        if (ByteRange{addr, 1}.overlaps(range) && (!first || addr < *first)) first = addr;
    return first;
}

ServerConnection::Response ServerConnection::refusal(std::uint64_t id, const RangeFault& fault) {
    const auto code = static_cast<std::uint32_t>(fault.code);
    return {ResponseKind::Error, false, true, fault.denial, Gpu::kNone, code, id, {fault.addr, 0}};
}

RangeFault ServerConnection::faultOf(const Response& response) {
    return {static_cast<Code>(response.value), response.range.addr, response.denial};
}

bool ServerConnection::flush() {
    bool moved = false;
    std::size_t budget = kPassBytes;
    while (hasUnsent() && budget > 0) {
        Gather& gather = shared_.gather;
        waits_for_gpu_ = false;
        fill(gather);
        if (gather.bytes() == 0) [[unlikely]] {
            if (!gpu_failure_) close(gpu_failure_.message().c_str());
            return moved || state_ == State::Closed;
        }
        const ssize_t sent = gather.send(fd.get());
        if (sent < 0) {
            blocked_ = true;
            if (errno == EAGAIN || errno == EWOULDBLOCK) return moved;
            if (errno == EFAULT && refuseUnreadable()) continue;
            close("the connection broke, or memory that is registered cannot be read");
            return true;
        }
        const auto bytes = static_cast<std::size_t>(sent);
        moved = true;
        shared_.pass_bytes += bytes;
        countSent(bytes);
        blocked_ = bytes < gather.bytes();
        if (blocked_) return true;
        budget -= std::min(budget, bytes);
    }
    return moved;
}

void ServerConnection::fill(Gather& gather) {
    gather.clear();
    std::uint64_t offset = sent_offset_;
    for (auto i = responses_.first(); i != responses_.end() && gather.hasRoom() && gather.bytes() < kSendBytes; ++i) {
        Response& response = responses_[i];
        if (response.device != Gpu::kNone) [[unlikely]] {
            if (!addStaged(gather, i, offset)) return;
            offset = 0;
            continue;
        }
        if (addResponse(gather, response, offset) + offset < frameBytes(response)) return;
        offset = 0;
    }
}

/// Adds the frame of a response from `offset` on, or as much of it as one send takes; returns how much.
std::uint64_t ServerConnection::addResponse(Gather& gather, Response& response, std::uint64_t offset) {
    if (response.crc && !response.has_value) {
        response.value = crc32c(0, reinterpret_cast<const void*>(response.range.addr), response.range.length);
        response.has_value = true;
    }
    std::byte* head = gather.scratch(kResponseBytes);
    std::uint64_t length = response.kind == ResponseKind::ReadData ? response.range.length : 0;
    const std::byte* payload = reinterpret_cast<const std::byte*>(response.range.addr);
    if (response.kind == ResponseKind::Error) {
        std::byte* text = gather.scratch(kMaxMessageBytes);
        length = refusalText(faultOf(response), reinterpret_cast<char*>(text));
        payload = text;
    }
    encodeResponse({response.kind, response.crc, response.value, response.id, length}, head);
    std::uint64_t added = 0;
    if (offset < kResponseBytes) {
        added = kResponseBytes - offset;
        gather.add(head + offset, added);
        offset = kResponseBytes;
    }
    const std::uint64_t done = offset - kResponseBytes;
    const auto size = std::min<std::uint64_t>(length - done, kSendBytes);
    if (size != 0) gather.add(payload + done, size);
    prefetchPayload(payload + done, size);
    return added + size;
}

std::uint64_t ServerConnection::frameBytes(const Response& response) const {
    switch (response.kind) {
        case ResponseKind::ReadData: return kResponseBytes + response.range.length;
        case ResponseKind::Error: {
            char text[kMaxMessageBytes];
            return kResponseBytes + refusalText(faultOf(response), text);
        }
        default: return kResponseBytes;
    }
}

void ServerConnection::countSent(std::size_t bytes) {
    while (bytes != 0) {
        const std::uint64_t missing = frameBytes(responses_.front()) - sent_offset_;
        if (responses_.front().device != Gpu::kNone) [[unlikely]]
            countStaged(responses_.first(), sent_offset_, sent_offset_ + std::min<std::uint64_t>(bytes, missing));
        if (bytes < missing) {
            sent_offset_ += bytes;
            return;
        }
        bytes -= missing;
        sent_offset_ = 0;
        forget(responses_.front());
        responses_.pop();
    }
}

}  // namespace troupe::tcp
