#include "host_backend/remote_path.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace troupe::host {

namespace {

/// Between two tries at a listener whose queue is full.
constexpr std::chrono::milliseconds kBusyPause{2};
constexpr int kFramesPerPass = 64;
/// A copy that begins later than this after the last look at the socket hears the peer first. A poll takes less, so it
/// is a process that was stopped, or lost its processor, that comes here; what the owner said meanwhile must count.
constexpr std::chrono::milliseconds kHearEvery{1};
/// Mapped bytes between two looks at the clock, whose 25 ns a copy of 4 KiB alone would feel. A call of process_vm
/// looks each time.
constexpr std::uint64_t kWatchEvery = 16u << 10;
/// More frames than a socket holds: one that says more without a pause may be heard by the next look.
constexpr int kPassesWhenLate = 64;
constexpr std::size_t kMaxAsks = 64;
/// An owner that makes us owe it more answers than this, without reading any, is no owner.
constexpr std::size_t kMaxUnsent = 65536;
/// What a request costs beside its bytes, in bytes of copying: bounds a pass over many tiny ones.
constexpr std::uint64_t kRequestCost = 256;

}  // namespace

RemotePath::RemotePath(const HostShared& shared, Links& links, PathNews& news, DeviceJobs& devices, std::string nic,
                       PathId id, std::shared_ptr<const Peer> peer)
    : shared_(shared),
      links_(links),
      news_(news),
      devices_(devices),
      nic_(std::move(nic)),
      id_(id),
      peer_(std::move(peer)),
      link_(Link::Kind::Path, this),
      process_link_(Link::Kind::PathProcess, this) {}

RemotePath::~RemotePath() { hangUp(); }

// --- the connection ----------------------------------------------------------------------------------------------

void RemotePath::dial(TimePoint now, std::vector<Failure>& failures) {
    if (state_ == State::Down) {
        greet_until_ = saturatedAdd(now, shared_.config.handshake_timeout);
        greeting_ = std::make_unique<Greeting>(GreetingPlan{peer_->desc->host_socket, shared_.incarnation,
                                                            peer_->desc->incarnation, shared_.hint, shared_.auth});
    }
    const auto started = greeting_->start();
    if (!started) return broken(started.status(), failures);
    state_ = *started ? State::Greeting : State::Dialing;
    deadline_ = *started ? greet_until_ : std::min(greet_until_, now + kBusyPause);
    if (!*started) return;
    if (const auto added = links_.add(link_, greeting_->fd(), EPOLLIN); !added) broken(added, failures);
}

void RemotePath::onTimer(TimePoint now, std::vector<Failure>& failures) {
    if (now < deadline_) return;
    if (state_ == State::Down) return dial(now, failures);
    if (now >= greet_until_) return broken(Status(Code::ConnectionRefused, "it did not answer in time"), failures);
    dial(now, failures);
}

void RemotePath::greeted(std::vector<Failure>& failures) {
    socket_ = greeting_->takeSocket();
    process_ = greeting_->takeProcess();
    // Of a process that lives, by the kernel's word, so the number is nobody else's.
    grants_.setSameProcess(process_->pid() == ::getpid());
    vm_ = greeting_->vm();
    greeting_.reset();
    state_ = State::Up;
    deadline_ = kForever;
    if (const auto added = links_.add(process_link_, process_->fd(), EPOLLIN); !added) return broken(added, failures);
    if (std::exchange(lost_, false)) news_.changes.push_back({id_, true});
}

void RemotePath::update(std::shared_ptr<const Peer> peer) {
    peer_ = std::move(peer);
    if (state_ != State::Down || !lost_) return;
    deadline_ = peer_->desc->host_socket.empty() ? kForever : Clock::now();
}

bool RemotePath::onEvent(std::vector<Failure>& failures) {
    if (state_ == State::Greeting) {
        const auto done = greeting_->advance();
        if (!done && done.status().code() == Code::TransportMissing)
            impossible(done.status(), failures);
        else if (!done)
            broken(done.status(), failures, done.status().code() != Code::StaleIncarnation);
        else if (*done)
            greeted(failures);
        return !done || *done;
    }
    if (state_ != State::Up) return false;
    flush();
    bool moved = false;
    for (int i = 0; i < kFramesPerPass && state_ == State::Up; ++i) {
        Received received;
        const Io io = receivePacket(socket_.get(), received);
        if (io == Io::Again) break;
        moved = true;
        if (io == Io::Closed) {
            broken(Status(Code::ConnectionLost, process_->name() + " hung up"), failures);
            break;
        }
        const auto frame = decode(received.packet.span());
        if (!frame)
            broken(frame.status(), failures);
        else if (received.lost_descriptor)
            lostDescriptor(failures);
        else
            onFrame(*frame, std::move(received.descriptor), failures);
    }
    if (state_ == State::Up && unsent_.size() > kMaxUnsent)
        broken(Status(Code::ProtocolError, process_->name() + " does not read its host socket"), failures);
    if (moved && state_ == State::Up) reconsider();
    return moved;
}

void RemotePath::onProcessEnded(std::vector<Failure>& failures) {
    if (state_ == State::Up) broken(Status(Code::ConnectionLost, process_->name() + " has ended"), failures);
}

void RemotePath::say(const Frame& frame) {
    const Packet packet = encode(frame);
    // A connection that broke is noticed when it is read.
    if (unsent_.empty() && sendPacket(socket_.get(), packet) != Io::Again) return;
    if (unsent_.empty()) links_.change(link_, socket_.get(), EPOLLIN | EPOLLOUT);
    unsent_.push_back(packet);
}

void RemotePath::flush() {
    if (unsent_.empty()) return;
    while (!unsent_.empty()) {
        if (sendPacket(socket_.get(), unsent_.front()) == Io::Again) return;
        unsent_.pop_front();
    }
    links_.change(link_, socket_.get(), EPOLLIN);
}

void RemotePath::hangUp() {
    if (socket_) links_.remove(socket_.get());
    if (process_) links_.remove(process_->fd());
    process_.reset();
    // Closing tells the owner that nothing is used any more, so first nothing is. For it the connection ends even when
    // a child made by fork has the descriptor too.
    if (!partWithDevices() && socket_) ::shutdown(socket_.get(), SHUT_RDWR);
    socket_.reset();
    asks_.clear();
    ask_limit_ = 1;
    unsent_.clear();
    if (greeting_ && greeting_->fd() >= 0) links_.remove(greeting_->fd());
    greeting_.reset();
    state_ = State::Down;
    deadline_ = kForever;
}

void RemotePath::lose(TimePoint try_again) {
    lost_ = true;
    // Said each time: somebody may have begun to use it since.
    news_.changes.push_back({id_, false});
    deadline_ = try_again;
}

/// The peer cannot be reached, or is lost: all work fails. It is dialed again for the next, or after a pause.
void RemotePath::broken(const Status& cause, std::vector<Failure>& failures, bool retryable) {
    // To the tracker these say "have a look at the peer"; of the others Timeout would mean the task's own deadline.
    const bool keeps = cause.code() == Code::ConnectionLost || cause.code() == Code::StaleIncarnation ||
                       cause.code() == Code::ProtocolError;
    const Status status = keeps ? cause : Status(Code::ConnectionRefused, cause.message());
    hangUp();
    lose(back_off_.broke(Clock::now(), news_.random));
    drop(status.withContext(nic_ + " to '" + peer_->name + "'"), retryable, failures);
}

/// The owner takes what it granted for given, so only another connection gets the descriptor. The peer did no wrong.
void RemotePath::lostDescriptor(std::vector<Failure>& failures) {
    const Status why(Code::ResourceExhausted, "this process cannot take the descriptor of the memory that " +
                                                  process_->name() +
                                                  " grants: it has none left (raise RLIMIT_NOFILE, ulimit -n), or may "
                                                  "not receive any");
    hangUp();
    lose(back_off_.broke(Clock::now(), news_.random));
    drop(why.withContext(nic_ + " to '" + peer_->name + "'"), true, failures);
}

/// The peer is there, but not to be reached in this way (any more). Trying again would not help: another transport
/// does, and the failures have the directory look whether this one is on the route still.
void RemotePath::impossible(const Status& cause, std::vector<Failure>& failures) {
    broken(Status(Code::ConnectionLost, cause.message()), failures);
    deadline_ = kForever;
}

void RemotePath::drop(const Status& cause, bool retryable, std::vector<Failure>& failures) {
    for (auto* jobs : {&jobs_, &waiting_}) {
        for (const Job& job : *jobs) {
            retire(job.request);
            failures.push_back({job.request, cause, retryable, true, true});
        }
        jobs->clear();
    }
}

// --- grants ------------------------------------------------------------------------------------------------------

void RemotePath::onFrame(const Frame& frame, UniqueFd descriptor, std::vector<Failure>& failures) {
    if (const auto* grant = std::get_if<Grant>(&frame))
        return onGrant(*grant, grant->writable, std::move(descriptor), failures);
    if (const auto* grant = std::get_if<DeviceGrant>(&frame))
        return onGrant(*grant, true, std::move(descriptor), failures);
    const auto* refused = std::get_if<GrantRefused>(&frame);
    const auto* revoke = std::get_if<Revoke>(&frame);
    if (descriptor || (refused == nullptr && revoke == nullptr))
        return broken(Status(Code::ProtocolError, process_->name() + " sent a frame that has no place here"), failures);
    if (refused != nullptr && refused->code == Code::ConnectionLost)
        return broken(Status(refused->code, process_->name() + " refused: " + refused->text), failures);
    if (refused != nullptr && refused->code == Code::TransportMissing)
        return impossible(Status(refused->code, process_->name() + " refused: " + refused->text), failures);
    if (refused != nullptr) return onRefused(*refused, failures);
    onRevoke(*revoke);
}

void RemotePath::onRevoke(const Revoke& revoke) {
    // No copy of this thread is under way, and the next one looks for its grant first.
    auto import = grants_.remove(revoke.region);
    if (!import || import->isGone()) return say(RevokeAck{revoke.region});
    takeBack(*import);
    leaving_.push_back({revoke.region, std::move(import)});
    releaseLeaving();
}

template <class SomeGrant>
void RemotePath::onGrant(const SomeGrant& grant, bool writable, UniqueFd descriptor, std::vector<Failure>& failures) {
    const auto ask = asks_.find(grant.id);
    if (ask == asks_.end() || ask->second - grant.base >= grant.length)
        return broken(Status(Code::ProtocolError, process_->name() + " granted what was not asked for"), failures);
    const auto asker =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const Job& job) { return job.asked == grant.id; });
    if (asker != waiting_.end() && asker->request.opcode == Opcode::Write && !writable)
        return broken(Status(Code::ProtocolError, process_->name() + " granted less than was asked for"), failures);
    const auto added = grants_.add(grant, std::move(descriptor));
    if (!added) return broken(added.status(), failures);
    if (const auto* const entry = grants_.find(grant.base); *added && entry != nullptr && entry->device)
        shared_.ways->add(peer_->desc->incarnation, entry->range, entry->device->memory(), entry->device->isOwn());
    asks_.erase(ask);
    if (asker != waiting_.end()) asker->asked = 0;
    ask_limit_ = *added ? std::min(2 * ask_limit_, kMaxAsks) : std::max<std::size_t>(ask_limit_ / 2, 1);
}

void RemotePath::onRefused(const GrantRefused& refused, std::vector<Failure>& failures) {
    if (asks_.erase(refused.id) == 0)
        return broken(Status(Code::ProtocolError, process_->name() + " refused what was not asked for"), failures);
    const auto job =
        std::find_if(waiting_.begin(), waiting_.end(), [&](const Job& each) { return each.asked == refused.id; });
    if (job == waiting_.end()) return;  // It was dropped meanwhile.
    if (refused.code == Code::Unsupported) {
        decline(*job, Status(refused.code, refused.text), failures);
        waiting_.erase(job);
        return;
    }
    retire(job->request);
    const std::string who = "segment '" + peer_->name + "' through " + nic_;
    failures.push_back({job->request, Status(refused.code, who + ": " + refused.text), false, true, true});
    waiting_.erase(job);
}

void RemotePath::askFor(Job& job, std::uint64_t addr) {
    if (job.asked != 0 || asks_.size() >= ask_limit_) return;
    job.asked = next_ask_++;
    asks_.emplace(job.asked, addr);
    say(GrantRequest{job.asked, addr, job.request.remote + job.request.length - addr,
                     job.request.opcode == Opcode::Write});
}

/// True when everything that is left of a job may be copied now; otherwise `missing` is the first address that may not.
bool RemotePath::isGranted(Job& job, std::uint64_t& missing) {
    const ByteRange left{job.request.remote + job.done, job.request.length - job.done};
    const bool write = job.request.opcode == Opcode::Write;
    const GrantCache::Entry* const entry = job.granted ? grants_.find(left.addr) : nullptr;
    if (entry != nullptr && (entry->writable || !write)) return true;
    missing = left.addr;
    // A range that wraps is the owner's to refuse.
    job.granted = !left.wraps() && grants_.covers(left, write, missing);
    return job.granted;
}

bool RemotePath::prepareFront() {
    std::uint64_t missing = 0;
    if (isGranted(jobs_.front(), missing)) return true;
    waiting_.push_back(jobs_.front());
    jobs_.pop_front();
    askFor(waiting_.back(), missing);
    return false;
}

void RemotePath::reconsider() {
    const auto granted = std::stable_partition(waiting_.begin(), waiting_.end(), [this](Job& job) {
        std::uint64_t missing = 0;
        if (job.asked != 0) return true;
        if (isGranted(job, missing)) return false;
        askFor(job, missing);
        return true;
    });
    jobs_.insert(jobs_.end(), granted, waiting_.end());
    waiting_.erase(granted, waiting_.end());
}

// --- work --------------------------------------------------------------------------------------------------------

void RemotePath::push(const WorkRequest& request, const device::PlacedMemory* device) {
    bytes_ += request.length;
    requests_ += 1;
    jobs_.push_back(Job{request, 0, false, 0, device});
}

void RemotePath::retire(const WorkRequest& request) {
    bytes_ -= request.length;
    requests_ -= 1;
}

Failure RemotePath::failure(const WorkRequest& request, const Status& cause, bool retryable) const {
    return {request, cause.withContext(nic_ + " to '" + peer_->name + "'"), retryable, true, true};
}

std::uint64_t RemotePath::run(std::uint64_t budget, TimePoint now, Copier& copier, Sweep& sweep) {
    if (state_ == State::Down && hasWork()) dial(now, sweep.failed);
    std::uint64_t used = 0;
    heard_at_ = now;
    unwatched_ = kWatchEvery;
    while (state_ == State::Up && !jobs_.empty() && used < budget) {
        used += kRequestCost;
        if (!prepareFront()) continue;
        const Job& job = jobs_.front();
        const GrantCache::Entry& grant = *grants_.find(job.request.remote + job.done);
        if (grant.device || job.device) [[unlikely]] {
            runDevice(grant, sweep);
            continue;
        }
        if (grant.data == nullptr && !vm_) {
            impossible(Status(vm_.code(), grant.range.toString() + " cannot be mapped, and " + vm_.message()),
                       sweep.failed);
            break;
        }
        const std::uint64_t left = used < budget ? budget - used : 1;
        used += grant.data != nullptr ? runMapped(grant, left, copier, sweep) : runVm(left, sweep);
    }
    return used;
}

bool RemotePath::wokeLate(std::vector<Failure>& failures) {
    const TimePoint now = Clock::now();
    if (now - heard_at_ <= kHearEvery) return false;
    heard_at_ = now;
    for (int pass = 0; pass < kPassesWhenLate && onEvent(failures); ++pass) {
    }
    return true;
}

/// Copies the next piece of the first job, which lies in `grant`.
std::uint64_t RemotePath::runMapped(const GrantCache::Entry& grant, std::uint64_t budget, Copier& copier,
                                    Sweep& sweep) {
    if (unwatched_ >= kWatchEvery) {
        unwatched_ = 0;
        if (wokeLate(sweep.failed)) return 0;
    }
    Job& job = jobs_.front();
    const WorkRequest& request = job.request;
    const std::uint64_t offset = request.remote + job.done - grant.range.addr;
    const std::uint64_t piece =
        std::min({request.length - job.done, grant.range.length - offset, std::max(budget, kNeverCut)});
    std::byte* const remote = grant.data + offset;
    std::byte* const local = request.local + job.done;
    if (request.opcode == Opcode::Read)
        copier.copy(local, remote, piece);
    else
        copier.copy(remote, local, piece);
    unwatched_ += piece + kRequestCost;
    job.done += piece;
    if (job.done == request.length) {
        sweep.complete(request.cookie, request.length);
        retire(request);
        jobs_.pop_front();
    }
    return piece;
}

}  // namespace troupe::host
