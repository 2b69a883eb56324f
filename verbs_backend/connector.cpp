// Connector: its thread, and what wakes it.

#include "verbs_backend/connector.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/quiet_thread.h"

namespace troupe::verbs {

namespace {

constexpr int kBacklog = 512;
constexpr const char* kCmFile = "/dev/infiniband/rdma_cm";
/// Ids destroyed in one pass.
constexpr int kMostBuried = 8;

/// Ids of rdma_cm are addresses, which are less.
constexpr std::uint64_t kFirstExchanged = std::uint64_t{1} << 63;

/// Pairs of this process have numbers of their own. Atomic, as several data loops order pairs at once.
std::uint32_t nextPair() {
    static std::atomic<std::uint32_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

int pollTimeout(TimePoint deadline) {
    if (deadline == kForever) return -1;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    // One more, so that it is not woken just before.
    return static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 60000));
}

}  // namespace

Connector::Connector(std::shared_ptr<VerbsApi> api, const Config& config, Incarnation incarnation, Logger log,
                     ControlExchange* exchange, std::shared_ptr<const ClusterAuth> auth,
                     std::function<void()> described_anew)
    : api_(std::move(api)),
      config_(config),
      incarnation_(incarnation),
      log_(std::move(log)),
      auth_(std::move(auth)),
      exchange_(exchange),
      described_anew_(std::move(described_anew)),
      inlet_(std::make_shared<Inlet>()),
      next_exchanged_(kFirstExchanged) {
    inlet_->to = this;
    std::uint32_t seed = 0;
    std::memcpy(&seed, incarnation_.bytes.data(), sizeof seed);
    random_.seed(seed);
}

Connector::~Connector() {
    {
        const std::lock_guard lock(inlet_->mutex);
        inlet_->to = nullptr;
    }
    if (thread_.joinable()) {
        command([this] { ending_ = true; });
        thread_.join();
    }
    while (!pairs_.empty()) destroyNow(pairs_.begin()->first);
    while (!served_.empty()) endServed(served_.begin()->first, "the engine ends");
    tryStuck([](const Stuck&) { return true; }, Clock::now());
    for (const Retired& retired : retired_) api_->cmDestroy(retired.id);
    if (listener_ != 0) api_->cmDestroy(listener_);
    if (channel_ != 0) api_->cmClose(channel_);
}

Result<std::uint16_t> Connector::start(const std::vector<std::shared_ptr<Device>>& devices) {
    for (const auto& device : devices) own_.push_back({device, nullptr, false, {}, {}, kForever});
    wake_ = UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (!wake_) return errnoStatus(Code::ResourceExhausted, "eventfd", errno);
    const bool wants_cm =
        std::any_of(devices.begin(), devices.end(), [](const auto& device) { return device->view()->by_cm; });
    Status listening;
    if (wants_cm) listening = listen(devices);
    // Who asked for a port and does not get it is to know.
    if (!listening && (!canExchange() || listening.code() == Code::AlreadyExists)) return listening;
    if (!listening) log_->warn("rdma: pairs are made without rdma_cm: {}", listening.message());
    auto thread = startQuietThread("troupe.rdma", [this] { run(); });
    if (!thread) return thread.status();
    thread_ = std::move(*thread);
    return port_;
}

Status Connector::listen(const std::vector<std::shared_ptr<Device>>& devices) {
    channel_ = api_->cmOpen();
    if (channel_ == 0) {
        const int error = errno;
        // librdmacm calls a file that it may not open a missing one.
        if (::access(kCmFile, F_OK) == 0 && ::access(kCmFile, R_OK | W_OK) != 0)
            return errnoStatus(Code::TransportMissing, std::string("no access to ") + kCmFile, errno);
        return errnoStatus(Code::TransportMissing, "no channel of rdma_cm; is the module rdma_ucm loaded", error);
    }
    listener_ = api_->cmCreate(channel_);
    if (listener_ == 0) return errnoStatus(Code::ResourceExhausted, "rdma_create_id", errno);
    // On all devices, so that one port number serves them all; requests by a device that is not ours are refused.
    const bool v6 = std::any_of(devices.begin(), devices.end(), [](const auto& device) {
        const auto view = device->view();
        return view->by_cm && view->address.family() == AF_INET6;
    });
    const auto port = static_cast<std::uint16_t>(config_.rdma_port);
    const auto any = SocketAddress::fromNumeric(v6 ? "::" : "0.0.0.0", port);
    if (!any) return any.status();
    const int error = api_->cmListen(listener_, *any, kBacklog, port_);
    if (error == 0) return {};
    if (port == 0) return errnoStatus(Code::ResourceExhausted, "rdma_listen", error);
    // Of a port that somebody has on any address the kernel says that the address is not available.
    if (error == EADDRINUSE || error == EADDRNOTAVAIL)
        return {Code::AlreadyExists, "rdma.port " + std::to_string(port) + " is taken on this machine"};
    return errnoStatus(Code::ResourceExhausted, "rdma_listen on rdma.port " + std::to_string(port), error);
}

// --- from other threads ----------------------------------------------------------------------------------------------

void Connector::command(std::function<void()> work) {
    {
        const std::lock_guard lock(mutex_);
        commands_.push_back(std::move(work));
    }
    const std::uint64_t one = 1;
    static_cast<void>(!::write(wake_.get(), &one, sizeof one));
}

Status Connector::attach(std::size_t device, std::shared_ptr<Mailbox> mailbox) {
    auto done = std::make_shared<std::promise<Status>>();
    auto outcome = done->get_future();
    command([this, device, mailbox = std::move(mailbox), done]() mutable {
        own_[device].mailbox = std::move(mailbox);
        Status left;
        if (own_[device].mailbox) {
            // What became of the device before anybody listened.
            tellQueue(device);
            if (!own_[device].out) tellPort(device, PairEvent::Kind::PortDown, own_[device].out);
        } else {
            std::vector<std::uint32_t> numbers;
            for (const auto& [number, pair] : pairs_)
                if (pair.order.device == device) numbers.push_back(number);
            for (const std::uint32_t number : numbers) destroyNow(number);
            const auto of_device = [device](const Stuck& each) { return each.owner == device; };
            tryStuck(of_device, Clock::now());
            const auto still = std::find_if(stuck_.begin(), stuck_.end(), of_device);
            if (still != stuck_.end()) left = still->cause;
        }
        done->set_value(left);
    });
    return outcome.get();
}

std::uint32_t Connector::connect(Order order) {
    const std::uint32_t number = nextPair();
    command([this, number, order = std::move(order)]() mutable {
        Pair& pair = pairs_[number];
        pair.number = number;
        pair.order = std::move(order);
        if (!pair.order.greeting.fence) pair.order.greeting.attempt = number;
        tryCandidate(pair);
    });
    return number;
}

void Connector::breakPair(std::uint32_t number, const Status& cause) {
    command([this, number, cause] {
        const auto found = pairs_.find(number);
        if (found != pairs_.end()) breakNow(found->second, cause);
    });
}

void Connector::destroy(std::uint32_t number) {
    command([this, number] { destroyNow(number); });
}

// --- the thread ------------------------------------------------------------------------------------------------------

void Connector::run() {
    std::vector<pollfd> watched;
    watched.push_back({wake_.get(), POLLIN, 0});
    // poll passes over descriptors that are none.
    watched.push_back({channel_ != 0 ? api_->cmDescriptor(channel_) : -1, POLLIN, 0});
    for (const Own& own : own_) watched.push_back({own.device->context()->async_fd, POLLIN, 0});
    while (!ending_) {
        if (::poll(watched.data(), watched.size(), pollTimeout(nextDeadline())) < 0 && errno != EINTR) {
            // Only for want of memory; ending the thread would leave those who wait for it hanging.
            log_->error("rdma: {}", errnoStatus(Code::Internal, "poll", errno).message());
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        runCommands();
        CmEvent event;
        while (!ending_ && channel_ != 0 && api_->cmNextEvent(channel_, event)) handleCm(event);
        for (std::size_t i = 0; i < own_.size(); ++i) {
            pollfd& events = watched[i + 2];
            if (events.revents != 0) handleAsync(i);
            if ((events.revents & (POLLERR | POLLHUP | POLLNVAL)) == 0) continue;
            // Of a device that was removed there is nothing more to come, and poll would say so for ever.
            events.fd = -1;
            putOut(i, {Code::ConnectionLost, own_[i].device->describe() + " was removed"});
        }
        runDeadlines(Clock::now());
    }
}

void Connector::runCommands() {
    std::uint64_t count = 0;
    static_cast<void>(!::read(wake_.get(), &count, sizeof count));
    std::vector<std::function<void()>> commands;
    {
        const std::lock_guard lock(mutex_);
        commands.swap(commands_);
    }
    for (const auto& work : commands) work();
}

void Connector::handleCm(CmEvent& event) {
    if (event.kind == CmEvent::Kind::ConnectRequest) return onRequest(event);
    if (Pair* pair = findPair(event.id)) {
        switch (event.kind) {
            case CmEvent::Kind::AddressResolved: return onResolved(*pair);
            case CmEvent::Kind::RouteResolved: return onRoute(*pair);
            case CmEvent::Kind::ConnectResponse: return onResponse(*pair, event);
            case CmEvent::Kind::Rejected: return onRejected(*pair, event);
            case CmEvent::Kind::Disconnected:
                return breakNow(*pair, {Code::ConnectionLost, "the peer ended the connection"}, true);
            case CmEvent::Kind::Failed:
                if (pair->step == Step::Up) return breakNow(*pair, {Code::ConnectionLost, "rdma_cm: " + event.name});
                if (pair->step == Step::Broken) return;
                return giveUpCandidate(
                    *pair, errnoStatus(std::abs(event.status) == ETIMEDOUT ? Code::Timeout : Code::ConnectionLost,
                                       "rdma_cm: " + event.name, std::abs(event.status)));
            default: return;
        }
    }
    if (served_.count(event.id) != 0 &&
        (event.kind == CmEvent::Kind::Disconnected || event.kind == CmEvent::Kind::Failed))
        endServed(event.id, event.name.c_str());
}

TimePoint Connector::nextDeadline() const {
    TimePoint next = kForever;
    for (const auto& [number, pair] : pairs_) next = std::min(next, pair.deadline);
    for (const Retired& retired : retired_) next = std::min(next, own_[retired.device].quiet_until);
    for (const Stuck& stuck : stuck_) next = std::min(next, stuck.next);
    for (const Own& own : own_) next = std::min(next, own.look_at);
    return next;
}

void Connector::runDeadlines(TimePoint now) {
    lookAtLostPorts(now);
    buryRetired();
    if (!stuck_.empty()) tryStuck([now](const Stuck& each) { return each.next <= now; }, now);
    std::vector<std::uint32_t> late;
    for (const auto& [number, pair] : pairs_)
        if (pair.deadline <= now) late.push_back(number);
    for (const std::uint32_t number : late) {
        const auto found = pairs_.find(number);
        if (found == pairs_.end()) continue;
        const char* doing = found->second.step == Step::Connecting ? "no answer to the connection request"
                                                                   : "its address could not be resolved in time";
        giveUpCandidate(found->second, {Code::Timeout, doing});
    }
}

/// Destroys an id, now or as soon as its port may speak.
void Connector::retire(CmId id, std::size_t device) {
    if (maySpeak(own_[device]))
        api_->cmDestroy(id);
    else
        retired_.push_back({id, device});
}

/// What a port says of itself now; nothing where it cannot be asked. A pair may break before the event of its port is
/// read, and a message sent while the link is down makes Soft-RoCE deaf to connections for good.
///
/// Asked twice: Soft-RoCE (kernel 6.1) notes the state first and then waits for whoever is taking the link down, so
/// that an answer may be as old as the question. What is asked after it has come is not.
std::optional<bool> Connector::askPort(const Own& own) const {
    const auto number = static_cast<std::uint8_t>(own.device->port);
    ibv_port_attr port{};
    for (int i = 0; i < 2; ++i)
        if (api_->queryPort(own.device->context(), number, port) != 0) return std::nullopt;
    return port.state == IBV_PORT_ACTIVE;
}

/// Whether what is broken may say goodbye through the device.
bool Connector::maySpeak(Own& own) {
    if (Clock::now() < own.quiet_until) return false;
    if (isActive(own)) return true;
    own.quiet_until = Clock::now() + kSettle;
    return false;
}

/// A few at a time: each is a call that may wait, and others want to connect meanwhile.
void Connector::buryRetired() {
    std::vector<std::size_t> quiet;
    int left = kMostBuried;
    std::erase_if(retired_, [&](const Retired& retired) {
        if (left == 0 || std::find(quiet.begin(), quiet.end(), retired.device) != quiet.end()) return false;
        if (!maySpeak(own_[retired.device])) {
            quiet.push_back(retired.device);
            return false;
        }
        api_->cmDestroy(retired.id);
        --left;
        return true;
    });
}

Connector::Pair* Connector::findPair(CmId id) {
    const auto number = pair_of_id_.find(id);
    if (number == pair_of_id_.end()) return nullptr;
    return &pairs_.at(number->second);
}

void Connector::tell(const Pair& pair, PairEvent event) {
    event.pair = pair.number;
    if (const auto& mailbox = own_[pair.order.device].mailbox) mailbox->put(std::move(event));
}

}  // namespace troupe::verbs
