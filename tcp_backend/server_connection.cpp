#include "tcp_backend/server_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

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
        const Code code = my_.shared_.guard.check(range, request.op == Op::Write);
        if (request.op == Op::Read) {
            if (code != Code::Ok)
                my_.refuse(request.id, range, code);
            else if (my_.isKnownUnreadable(range))
                my_.refuse(request.id, range, Code::AccessDenied, true);
            else
                my_.responses_.push() = {ResponseKind::ReadData, request.crc, false, false, 0, request.id, range};
            return true;
        }
        // Checked once: whoever unregisters the range waits until `touches` denies it.
        my_.incoming_ = {request.id, range, code, false, request.crc, request.crc32c, 0};
        next.to = code == Code::Ok ? reinterpret_cast<std::byte*>(request.addr) : nullptr;
        next.length = request.length;
        if (next.length == 0) onPayload();
        return true;
    }

    void onBytes(std::byte* data, std::size_t size) {
        if (my_.shared_.faults != nullptr) my_.shared_.faults->corrupt(my_.shared_.name, {data, size});
        if (my_.incoming_.crc) my_.incoming_.actual_crc = crc32c(my_.incoming_.actual_crc, data, size);
    }

    /// Its memory was protected after it was registered. That is no fault of the requests behind this one.
    bool onFault() {
        my_.incoming_.refusal = Code::AccessDenied;
        my_.incoming_.is_protected = true;
        return true;
    }

    void onPayload() {
        const Incoming& write = my_.incoming_;
        if (write.refusal != Code::Ok)
            my_.refuse(write.id, write.range, write.refusal, write.is_protected);
        else if (write.crc && write.actual_crc != write.expected_crc)
            my_.refuse(write.id, write.range, Code::ChecksumMismatch);
        else
            my_.acknowledge(write.id);
    }

    std::size_t headerRoom() const { return my_.isPaused() ? 0 : kMostResponses - my_.responses_.size(); }

  private:
    ServerConnection& my_;
};

ServerConnection::ServerConnection(Shared& shared, UniqueFd socket, TimePoint deadline)
    : Link(Kind::Server), shared_(shared), deadline_(deadline) {
    fd = std::move(socket);
}

bool ServerConnection::receiveHello() {
    const ssize_t got =
        ::recv(fd.get(), hello_bytes_.data() + hello_have_, hello_bytes_.size() - hello_have_, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    if (got <= 0) {
        close("closed by the peer before its greeting was complete");
        return true;
    }
    hello_have_ += static_cast<std::size_t>(got);
    if (!startsLikeHello(hello_bytes_.data(), hello_have_)) {
        close("what it sent is not a greeting");
        return true;
    }
    if (hello_have_ < hello_bytes_.size()) return true;
    auto hello = decodeHello(hello_bytes_.data());
    if (!hello.isOk()) {
        close(hello.status().message().c_str());
        return true;
    }
    hello_ = *hello;
    state_ = State::Greeted;
    return true;
}

void ServerConnection::answerHello(Code code) {
    std::array<std::byte, kHelloReplyBytes> bytes{};
    encodeHelloReply({shared_.incarnation, code}, bytes.data());
    const ssize_t sent = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(bytes.size())) return close("the greeting could not be answered");
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
    shared_.pass_bytes += kPassBytes - budget;
    switch (end) {
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
    if (reader_.payload().length != 0 && incoming_.refusal == Code::Ok && incoming_.range.overlaps(range)) return true;
    for (auto i = responses_.first(); i != responses_.end(); ++i)
        if (responses_[i].kind == ResponseKind::ReadData && responses_[i].range.overlaps(range)) return true;
    return false;
}

void ServerConnection::close(const char* why) {
    shared_.log->debug("{}: connection ended: {}", shared_.name, why);
    shared_.events.closeAbruptly(*this);
    state_ = State::Closed;
    responses_.clear();
    reader_.reset();
}

void ServerConnection::acknowledge(std::uint64_t id) {
    if (!responses_.empty()) {
        Response& last = responses_.back();
        // One that is sent in part says already how many it stands for.
        const bool begun = responses_.size() == 1 && sent_offset_ != 0;
        if (last.kind == ResponseKind::WriteAck && !begun && last.id + last.value == id && last.value != UINT32_MAX) {
            ++last.value;
            return;
        }
    }
    responses_.push() = {ResponseKind::WriteAck, false, true, false, 1, id, {}};
}

void ServerConnection::refuse(std::uint64_t id, const ByteRange& range, Code code, bool is_protected) {
    responses_.push() = {ResponseKind::Error, false, true, is_protected, static_cast<std::uint32_t>(code), id, range};
}

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
        if (response.kind != ResponseKind::ReadData) continue;
        const std::uint64_t sent = begun > kResponseBytes ? begun - kResponseBytes : 0;
        const auto bad = firstUnreadable({response.range.addr + sent, response.range.length - sent});
        if (!bad) continue;
        if (begun != 0) {
            if (shared_.unreadable.size() >= kMostUnreadable) shared_.unreadable.erase(shared_.unreadable.begin());
            shared_.unreadable.push_back(*bad);
            return false;
        }
        response = {ResponseKind::Error, false,         true, true, static_cast<std::uint32_t>(Code::AccessDenied),
                    response.id,         response.range};
        refused = true;
    }
    return refused;
}

bool ServerConnection::isKnownUnreadable(const ByteRange& range) {
    if (shared_.unreadable.empty()) return false;
    std::erase_if(shared_.unreadable, [](std::uint64_t addr) { return !firstUnreadable({addr, 1}); });
    return std::any_of(shared_.unreadable.begin(), shared_.unreadable.end(), [&](std::uint64_t addr) {
        return ByteRange{addr, 1}.overlaps(range);
    });
}

std::size_t ServerConnection::textOf(const Response& response, char* out) {
    return response.is_protected ? protectedText(response.range, out)
                                 : refusalText(static_cast<Code>(response.value), response.range, out);
}

bool ServerConnection::flush() {
    bool moved = false;
    std::size_t budget = kPassBytes;
    while (hasUnsent() && budget > 0) {
        Gather& gather = shared_.gather;
        fill(gather);
        const ssize_t sent = gather.send(fd.get());
        if (sent < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return moved;
            if (errno == EFAULT && refuseUnreadable()) continue;
            close("the connection broke, or memory that is registered cannot be read");
            return true;
        }
        const auto bytes = static_cast<std::size_t>(sent);
        moved = true;
        shared_.pass_bytes += bytes;
        countSent(bytes);
        if (bytes < gather.bytes()) return true;
        budget -= std::min(budget, bytes);
    }
    return moved;
}

void ServerConnection::fill(Gather& gather) {
    gather.clear();
    std::uint64_t offset = sent_offset_;
    for (auto i = responses_.first(); i != responses_.end() && gather.hasRoom() && gather.bytes() < kSendBytes; ++i) {
        Response& response = responses_[i];
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
        length = textOf(response, reinterpret_cast<char*>(text));
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
            return kResponseBytes + textOf(response, text);
        }
        default: return kResponseBytes;
    }
}

void ServerConnection::countSent(std::size_t bytes) {
    while (bytes != 0) {
        const std::uint64_t missing = frameBytes(responses_.front()) - sent_offset_;
        if (bytes < missing) {
            sent_offset_ += bytes;
            return;
        }
        bytes -= missing;
        sent_offset_ = 0;
        responses_.pop();
    }
}

}  // namespace troupe::tcp
