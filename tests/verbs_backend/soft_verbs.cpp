// SoftVerbs: what tests do to it, and see of it.

#include "tests/verbs_backend/soft_verbs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs_backend/device.h"

namespace troupe::verbs::testing {

SoftVerbs::SoftVerbs(const std::vector<std::string>& devices) {
    for (std::size_t i = 0; i < devices.size(); ++i) {
        auto hardware = std::make_unique<Hardware>();
        hardware->name = devices[i];
        hardware->number = i + 1;
        const std::string number = std::to_string(i + 1);
        // A link-local one first, as real ones have it.
        hardware->gids = {gid("fe80::" + number, 0), gid("::ffff:10.9.0." + number, 1)};
        hardware_.push_back(std::move(hardware));
    }
}

SoftVerbs::~SoftVerbs() = default;

CleanEnd::~CleanEnd() {
    if (soft_ == nullptr) return;
    for (const std::string& violation : soft_->violations()) ADD_FAILURE() << violation;
    EXPECT_EQ(soft_->leftovers(), "");
}

ibv_gid_entry SoftVerbs::gid(const std::string& address, std::uint32_t index, ibv_gid_type type) {
    ibv_gid_entry entry{};
    if (::inet_pton(AF_INET6, address.c_str(), entry.gid.raw) != 1) ADD_FAILURE() << address;
    entry.gid_index = index;
    entry.port_num = 1;
    entry.gid_type = static_cast<std::uint32_t>(type);
    return entry;
}

const ibv_gid_entry* SoftVerbs::Hardware::gidAt(std::size_t port, std::uint32_t index) const {
    const auto found = std::find_if(gids.begin(), gids.end(), [&](const ibv_gid_entry& entry) {
        return entry.port_num == port && entry.gid_index == index;
    });
    return found == gids.end() ? nullptr : &*found;
}

SoftVerbs::Place SoftVerbs::find(const SocketAddress& address) const {
    for (const auto& hardware : hardware_)
        for (const ibv_gid_entry& entry : hardware->gids)
            if (addressOfGid(entry.gid).host() == address.host()) return {hardware.get(), entry};
    return {};
}

bool SoftVerbs::isDead(const ibv_context* context) const {
    return static_cast<const Context*>(context)->hardware->dead;
}

SoftVerbs::Hardware* SoftVerbs::find(const std::string& device) const {
    for (const auto& hardware : hardware_)
        if (hardware->name == device) return hardware.get();
    ADD_FAILURE() << "no device " << device;
    return hardware_.front().get();
}

void SoftVerbs::setGids(const std::string& device, std::vector<ibv_gid_entry> gids) {
    const std::lock_guard lock(mutex_);
    find(device)->gids = std::move(gids);
}

void SoftVerbs::setMtu(const std::string& device, ibv_mtu mtu) {
    const std::lock_guard lock(mutex_);
    find(device)->mtu = mtu;
}

void SoftVerbs::setLid(const std::string& device, std::uint16_t lid) {
    const std::lock_guard lock(mutex_);
    for (Port& port : find(device)->ports) port.lid = lid;
}

void SoftVerbs::setTransport(const std::string& device, ibv_transport_type transport) {
    const std::lock_guard lock(mutex_);
    find(device)->transport = transport;
}

void SoftVerbs::requireGrh(const std::string& device) {
    const std::lock_guard lock(mutex_);
    find(device)->needs_grh = true;
}

void SoftVerbs::setPkey(const std::string& device, std::uint16_t pkey) {
    const std::lock_guard lock(mutex_);
    for (Port& port : find(device)->ports) port.pkeys[1] = pkey;
}

void SoftVerbs::setMaxMrSize(const std::string& device, std::uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    find(device)->max_mr_size = bytes;
}

void SoftVerbs::setDmabufs(std::function<DeviceBytes(int)> exporter) {
    const std::lock_guard lock(mutex_);
    dmabuf_exporter_ = std::move(exporter);
}

void SoftVerbs::setPeerMemory(std::function<DeviceBytes(const ByteRange&)> driver) {
    const std::lock_guard lock(mutex_);
    peer_memory_ = std::move(driver);
}

void SoftVerbs::addSecondPort(const std::string& device) {
    const std::lock_guard lock(mutex_);
    Hardware& hardware = *find(device);
    hardware.ports.resize(2);
    const std::string number = std::to_string(hardware.number);
    for (ibv_gid_entry entry : {gid("fe80::1:" + number, 0), gid("::ffff:10.9.1." + number, 1)}) {
        entry.port_num = 2;
        hardware.gids.push_back(entry);
    }
}

void SoftVerbs::cutRoute(const std::string& device, std::uint32_t gid_index) {
    const std::lock_guard lock(mutex_);
    find(device)->cut.push_back(gid_index);
}

void SoftVerbs::setSearchTime(std::chrono::milliseconds time) {
    const std::lock_guard lock(mutex_);
    search_time_ = time;
}

std::size_t SoftVerbs::pairsOn(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(pairs_.begin(), pairs_.end(), [&](const auto& entry) {
        return static_cast<const Context*>(entry.second->context)->hardware->name == device;
    }));
}

std::size_t SoftVerbs::connectionsOf(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(std::count_if(ids_.begin(), ids_.end(), [&](const auto& entry) {
        const Id& id = entry.second;
        return id.state == CmState::Connected && id.own.hardware != nullptr && id.own.hardware->name == device;
    }));
}

ibv_qp_attr SoftVerbs::lastRoute(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return find(device)->last_route;
}

ibv_qp_attr SoftVerbs::lastReady(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return find(device)->last_ready;
}

int SoftVerbs::lastAccess() const {
    const std::lock_guard lock(mutex_);
    return last_access_;
}

std::size_t SoftVerbs::lists() const {
    const std::lock_guard lock(mutex_);
    return lists_;
}

void SoftVerbs::completeWith(ibv_wc_status status) {
    const std::lock_guard lock(mutex_);
    next_status_ = status;
}

std::size_t SoftVerbs::requestsTo(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return find(device)->requests;
}

std::vector<int> SoftVerbs::dmabufs() const {
    const std::lock_guard lock(mutex_);
    return dmabufs_;
}

std::size_t SoftVerbs::inlined() const {
    const std::lock_guard lock(mutex_);
    return inlined_;
}

void SoftVerbs::fail(const std::string& call, int error, int count, int skip) {
    const std::lock_guard lock(mutex_);
    faults_[call] = {error, count, skip};
}

int SoftVerbs::fault(const std::string& call, const ibv_context* context) {
    if (const int error = fault(call)) return error;
    return fault(call + " " + static_cast<const Context*>(context)->hardware->name);
}

int SoftVerbs::fault(const std::string& call) {
    const auto found = faults_.find(call);
    if (found == faults_.end()) return 0;
    if (found->second.skip > 0) {
        --found->second.skip;
        return 0;
    }
    const int error = found->second.error;
    if (--found->second.count <= 0) faults_.erase(found);
    errno = error;
    return error;
}

void SoftVerbs::hold(bool held) {
    const std::lock_guard lock(mutex_);
    held_ = held;
    if (held) return;
    for (auto& [key, pair] : pairs_) execute(*pair);
}

void SoftVerbs::loseCompletions(int count) {
    const std::lock_guard lock(mutex_);
    lose_ = count;
}

void SoftVerbs::repeatCompletions(int count) {
    const std::lock_guard lock(mutex_);
    repeat_ = count;
}

void SoftVerbs::setReads(const std::string& device, int reads) {
    const std::lock_guard lock(mutex_);
    for (auto& hardware : hardware_)
        if (hardware->name == device) hardware->reads = reads;
}

void SoftVerbs::cutOff(const std::string& device, bool is_cut_off) {
    const std::lock_guard lock(mutex_);
    find(device)->cut_off = is_cut_off;
}

void SoftVerbs::deafen(const std::string& device) {
    const std::lock_guard lock(mutex_);
    for (Port& port : find(device)->ports) port.deaf = true;
}

void SoftVerbs::loseData(const std::string& device, bool is_lost) {
    const std::lock_guard lock(mutex_);
    find(device)->loses_data = is_lost;
}

void SoftVerbs::loseWayBack(const std::string& device) {
    const std::lock_guard lock(mutex_);
    find(device)->has_no_way_back = true;
}

void SoftVerbs::setPortUntold(const std::string& device, bool up, int stale_answers) {
    const std::lock_guard lock(mutex_);
    find(device)->at(1).up = up;
    find(device)->at(1).stale_answers = stale_answers;
}

void SoftVerbs::setPort(const std::string& device, bool up, std::uint8_t port) {
    const std::lock_guard lock(mutex_);
    find(device)->at(port).up = up;
    find(device)->at(port).stale_answers = 0;
    AsyncEvent event;
    event.type = up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
    event.port = port;
    event.name = up ? "port active" : "port error";
    raise(device, event);
}

void SoftVerbs::raise(const std::string& device, const AsyncEvent& event) {
    for (auto& [key, context] : contexts_) {
        if (context->hardware->name != device) continue;
        context->events.push_back(event);
        ring(context->async_fd);
    }
}

void SoftVerbs::raise(const std::string& device, ibv_event_type type, std::uint8_t port) {
    const std::lock_guard lock(mutex_);
    if (type == IBV_EVENT_DEVICE_FATAL) find(device)->dead = true;
    AsyncEvent event;
    event.type = type;
    event.port = port;
    event.name = ibv_event_type_str(type);
    raise(device, event);
}

void SoftVerbs::remove(const std::string& device, bool told) {
    const std::lock_guard lock(mutex_);
    if (told) raise(device, IBV_EVENT_DEVICE_FATAL);
    find(device)->dead = true;
    for (auto& [key, context] : contexts_) {
        if (context->hardware->name != device) continue;
        // In its place the end of a pipe whose other end is closed. Whoever waits is woken by the one before.
        const UniqueFd before(::dup(context->async_fd));
        int ends[2] = {-1, -1};
        if (::pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0 || ::dup2(ends[0], context->async_fd) < 0)
            ADD_FAILURE() << "no descriptors";
        ::close(ends[0]);
        ::close(ends[1]);
        ring(before.get());
    }
}

std::size_t SoftVerbs::eventsAsked(const std::string& device) const {
    const std::lock_guard lock(mutex_);
    return find(device)->events_asked;
}

void SoftVerbs::raiseOnPairs(const std::string& device, ibv_event_type type, bool with_work) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, pair] : pairs_) {
        if (static_cast<Context*>(pair->context)->hardware->name != device || pair->state != IBV_QPS_RTS) continue;
        if (with_work && pair->waiting.empty()) continue;
        pair->dead = true;
        pair->state = IBV_QPS_ERR;
        AsyncEvent event;
        event.type = type;
        event.qp = key;
        event.name = ibv_event_type_str(type);
        raise(device, event);
    }
}

void SoftVerbs::breakQueues(const std::string& device, bool told) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, queue] : queues_) {
        if (static_cast<Context*>(queue->context)->hardware->name != device) continue;
        queue->broken = true;
        queue->poll_fails = !told;
        queue->completions.clear();
        AsyncEvent event;
        event.type = IBV_EVENT_CQ_ERR;
        event.cq = key;
        event.name = ibv_event_type_str(event.type);
        if (told) raise(device, event);
        // What a sleeper has to wake it.
        Channel& channel = *lookUp(channels_, queue->channel);
        ++channel.events;
        ring(channel.fd);
    }
}

bool SoftVerbs::covers(std::uint32_t key, const std::string& device, const ByteRange& range) const {
    const std::lock_guard lock(mutex_);
    return std::any_of(registrations_.begin(), registrations_.end(), [&](const auto& entry) {
        const Registration& mr = *entry.second;
        return mr.rkey == key && static_cast<const Context*>(mr.context)->hardware->name == device &&
               ByteRange{reinterpret_cast<std::uint64_t>(mr.addr), mr.length}.contains(range);
    });
}

std::size_t SoftVerbs::held() const {
    const std::lock_guard lock(mutex_);
    std::size_t count = 0;
    for (const auto& [key, pair] : pairs_) count += pair->waiting.size();
    return count;
}

std::size_t SoftVerbs::busyPairs() const {
    const std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::count_if(pairs_.begin(), pairs_.end(), [](const auto& entry) { return !entry.second->waiting.empty(); }));
}

std::vector<std::string> SoftVerbs::violations() const {
    const std::lock_guard lock(mutex_);
    return violations_;
}

std::size_t SoftVerbs::count(const std::string& kind) const {
    const std::lock_guard lock(mutex_);
    if (kind == "context") return contexts_.size();
    if (kind == "pd") return pds_.size();
    if (kind == "mr") return registrations_.size();
    if (kind == "channel") return channels_.size();
    if (kind == "cq") return queues_.size();
    if (kind == "qp") return pairs_.size();
    if (kind == "id") return ids_.size();
    return event_channels_.size();
}

std::string SoftVerbs::leftovers() const {
    std::string text;
    for (const char* kind : {"context", "pd", "mr", "channel", "cq", "qp", "id", "event channel"})
        if (const auto left = count(kind); left != 0) text += std::to_string(left) + " " + kind + ", ";
    return text;
}

void SoftVerbs::ring(int fd) {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(fd, &one, sizeof one));
}

}  // namespace troupe::verbs::testing
