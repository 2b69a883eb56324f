#include "tcp_backend/lane.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <iterator>

#include "tcp_backend/socket_util.h"

namespace troupe::tcp {

namespace {

/// How long what is unfenced waits for a target that does not answer: a process that stands still may do so for ever,
/// and a task's end must not. Several round trips between continents.
constexpr std::chrono::seconds kFenceBound{1};

/// The send buffer of a new socket always has room for what a greeting says.
Status sendWhole(int socket, std::span<const std::byte> bytes) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(bytes.size())) return {};
    return errnoStatus(Code::ConnectionLost, "send", errno);
}

}  // namespace

Lane::Lane(Shared& shared, PathState& path, std::uint32_t number)
    : Link(Kind::Lane), shared_(shared), path_(path), number_(number) {}

Lane::~Lane() { shared_.events.closeAbruptly(*this); }

void Lane::start(TimePoint now, std::vector<Failure>& failed) {
    if (isUnfenced() && fence_until_ == kForever) fence_until_ = saturatedAdd(now, kFenceBound);
    if (state_ != State::Idle || now < retry_at_) return;
    auto socket = startConnect(path_.address);
    if (!socket.isOk()) return lose(now, socket.status(), true, failed);
    fd = std::move(*socket);
    tuneSocket(fd.get(), shared_.config.tcp_socket_buffer);
    if (const Status status = shared_.events.add(*this, EPOLLIN | EPOLLOUT); !status)
        return lose(now, status, true, failed);
    state_ = State::Connecting;
    deadline_ = saturatedAdd(now, shared_.config.connect_timeout);
}

TimePoint Lane::deadline() const {
    switch (state_) {
        case State::Idle: return hasWork() ? std::min(retry_at_, fence_until_) : kForever;
        case State::Up: return kForever;
        default: return std::min(deadline_, fence_until_);
    }
}

void Lane::onTimer(TimePoint now, std::vector<Failure>& failed) {
    if (now < deadline()) return;
    if (now >= fence_until_) giveUpFencing(failed);
    if (state_ == State::Idle) return hasWork() ? start(now, failed) : void();
    if (now < deadline_) return;
    const char* what = state_ == State::Connecting ? "no answer to connect" : "connected, but no greeting came back";
    lose(now, {Code::Timeout, what}, true, failed);
}

bool Lane::advance(TimePoint now, std::vector<Failure>& failed) {
    if (state_ == State::Connecting) {
        Status status = connectOutcome(fd.get());
        if (status) status = greet();
        if (!status) {
            lose(now, status, true, failed);
            return true;
        }
        shared_.events.setInterest(*this, EPOLLIN);
        state_ = State::Greeting;
        return true;
    }
    if (state_ != State::Greeting) return false;
    readReply(now, failed);
    return true;
}

Status Lane::greet() {
    Hello hello;
    hello.lane = {shared_.incarnation, shared_.index, number_};
    hello.target = path_.peer->desc->incarnation;
    hello.attempt = ++shared_.attempts;
    hello.crc = shared_.config.tcp_crc;
    hello.has_nonce = hasKey(shared_.auth);
    std::array<std::byte, kHelloBytes + kAuthBytes> bytes{};
    encodeHello(hello, bytes.data());
    std::size_t length = kHelloBytes;
    auth_.reset();
    if (hello.has_nonce) {
        const Nonce nonce = randomNonce();
        std::copy(nonce.begin(), nonce.end(), bytes.begin() + kHelloBytes);
        length = bytes.size();
        auth_ = std::make_unique<Conversation>();
        auth_->hello = bytes;
    }
    reply_have_ = 0;
    reader_.reset();
    return sendWhole(fd.get(), std::span(bytes).first(length));
}

/// The target asks for a proof.
Status Lane::onChallenge() {
    auth_->challenged = true;
    auth_->challenge = reply_;
    reply_have_ = 0;
    const Proof proof = shared_.auth->prove(AuthRole::Initiator, kAuthProtocol, {auth_->hello, auth_->challenge});
    return sendWhole(fd.get(), proof);
}

/// Whether a reply may be believed, whatever it says.
Status Lane::checkReply(const HelloReply& reply) const {
    if (!auth_) {
        if (reply.has_auth) return {Code::ProtocolError, "the peer proves what nobody asked for"};
        return reply.code == Code::AccessDenied ? needsKey("the peer") : Status::ok();
    }
    const ClusterAuth& auth = *shared_.auth;
    if (!reply.has_auth) {
        auth.count(AuthRefusal::NoProof);
        if (reply.code == Code::AccessDenied) return auth_->challenged ? otherKey("the peer") : hasNoKey("the peer");
        return {Code::AccessDenied,
                "the peer answers without a proof of the cluster key; is auth.key_file set there? (docs/security.md)"};
    }
    const std::span<const std::byte> bytes(reply_);
    if (auth.accepts(AuthRole::Responder, kAuthProtocol,
                     {auth_->hello, auth_->challenge, bytes.first(kHelloReplyBytes)},
                     bytes.subspan(kHelloReplyBytes))) {
        auth.countAccepted();
        return Status::ok();
    }
    auth.count(AuthRefusal::WrongProof);
    return otherKey("this engine");
}

void Lane::readReply(TimePoint now, std::vector<Failure>& failed) {
    Result<HelloReply> reply = HelloReply{};
    for (;;) {
        std::size_t whole = kHelloReplyBytes;
        if (reply_have_ >= kHelloReplyBytes) {
            reply = decodeHelloReply(reply_.data());
            if (!reply.isOk()) return lose(now, reply.status(), true, failed);
            if (reply->has_auth) whole += kAuthBytes;
            if (reply_have_ == whole) break;
        }
        const ssize_t got = ::recv(fd.get(), reply_.data() + reply_have_, whole - reply_have_, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
        if (got < 0) return lose(now, errnoStatus(Code::ConnectionLost, "recv", errno), true, failed);
        if (got == 0)
            return lose(now, {Code::ConnectionLost, "the peer closed the connection during the greeting"}, true,
                        failed);
        reply_have_ += static_cast<std::size_t>(got);
    }
    if (auth_ && !auth_->challenged && reply->has_auth) {
        if (const Status sent = onChallenge(); !sent) lose(now, sent, true, failed);
        return;
    }
    if (const Status believed = checkReply(*reply); !believed)
        return lose(now, believed, believed.code() != Code::AccessDenied, failed);
    auth_.reset();
    const Incarnation& meant = path_.peer->desc->incarnation;
    if (reply->code == Code::StaleIncarnation || reply->target != meant)
        return lose(now,
                    {Code::StaleIncarnation,
                     "incarnation " + reply->target.toString() + " answers there, not " + meant.toString()},
                    false, failed);
    if (reply->code == Code::CapacityExceeded)
        return lose(now,
                    {reply->code,
                     "the peer has all the connections of this engine that it takes "
                     "(peer.tcp_connections there)"},
                    true, failed);
    if (reply->code != Code::Ok) return lose(now, {reply->code, "the peer refused the connection"}, true, failed);
    state_ = State::Up;
    deadline_ = kForever;
    blocked_ = false;
    giveBack(failed);
}

void Lane::lose(TimePoint now, const Status& cause, bool retryable, std::vector<Failure>& failed,
                std::uint64_t culprit) {
    retry_at_ = back_off_.broke(now, shared_.random);
    shared_.log->debug("{}: {}: {}", shared_.name, where(), cause.toString());
    shared_.events.closeAbruptly(*this);
    state_ = State::Idle;
    failAll(cause.withContext(where()), retryable, culprit, failed);
    // Somebody else listens there, so the process has ended. That nobody does proves nothing: a firewall that rejects
    // looks the same, and the process may still apply what lies in its socket.
    if (cause.code() == Code::StaleIncarnation) giveBack(failed);
}

void Lane::end(const Status& cause, bool retryable, std::vector<Failure>& failed) {
    shared_.events.closeAbruptly(*this);
    state_ = State::Idle;
    failAll(cause, retryable, kNone, failed);
    if (cause.code() == Code::StaleIncarnation) giveBack(failed);
    if (cause.code() == Code::PeerDown) giveUpFencing(failed);
}

void Lane::failAll(const Status& cause, bool retryable, std::uint64_t culprit, std::vector<Failure>& failed) {
    deadline_ = kForever;
    blocked_ = false;
    interest = 0;
    // With a culprit, the others did nothing wrong.
    const Status reset = culprit == kNone ? cause : Status(Code::PathReset, cause.message());
    while (!ring_.empty()) {
        const std::uint64_t id = ring_.first();
        const bool guilty = id == culprit;
        const bool sent = id < sent_ || (id == sent_ && sent_offset_ != 0);
        const WorkRequest& request = ring_.front().request;
        auto& to = sent && request.opcode == Opcode::Write ? unfenced_ : failed;
        to.push_back({request, guilty ? cause : reset, retryable && !guilty, true, !sent, shared_.passes});
        retire();
    }
    sent_ = ring_.end();
    sent_offset_ = 0;
    reader_.reset();  // It may have pointed into a buffer that is the caller's again.
    // Copies that are under way run on, and the Nic keeps back what they touch.
    staged_.clear();
    receives_.clear();
    waits_for_gpu_ = false;
    starved_ = false;
    gpu_failure_ = {};
    gpu_refusal_ = {};
}

void Lane::giveBack(std::vector<Failure>& failed) {
    for (Failure& failure : unfenced_) failure.fenced = true;
    handOver(failed);
}

void Lane::handOver(std::vector<Failure>& failed) {
    failed.insert(failed.end(), std::make_move_iterator(unfenced_.begin()), std::make_move_iterator(unfenced_.end()));
    unfenced_.clear();
    fence_until_ = kForever;
}

void Lane::giveUpFencing(std::vector<Failure>& failed) {
    for (Failure& failure : unfenced_) {
        failure.cause =
            Status(failure.cause.code(), failure.cause.message() + "; what was sent of it may still arrive there");
        // This lane's next connection ends the last one before anything else is sent; that of another lane does not.
        failure.retryable = failure.retryable && path_.lanes == 1;
    }
    handOver(failed);
}

std::string Lane::where() const {
    return "segment '" + path_.peer->name + "' at " + path_.address.toString() + " through " + shared_.name;
}

std::string Lane::describe(const WorkRequest& request) const {
    char text[96];
    std::snprintf(text, sizeof text, "%s of %" PRIu64 " bytes at 0x%" PRIx64 " of ",
                  request.opcode == Opcode::Read ? "read" : "write", request.length, request.remote);
    return text + where();
}

}  // namespace troupe::tcp
