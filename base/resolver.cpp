#include "base/resolver.h"

#include <netdb.h>

#include <algorithm>

#include "base/endpoint.h"

namespace troupe {

namespace {

// How often an open query is looked at: short against the time a name server takes.
constexpr auto kLook = std::chrono::milliseconds(2);

// The same of one that nobody waits for any more: a name server that does not answer takes seconds.
constexpr auto kLookAtAbandoned = std::chrono::milliseconds(100);

}  // namespace

struct Resolver::Query {
    Query() = default;
    /// Not while glibc works on it.
    ~Query() {
        if (request.ar_result != nullptr) freeaddrinfo(request.ar_result);
    }
    Query(const Query&) = delete;
    Query& operator=(const Query&) = delete;

    std::string host;
    addrinfo hints{};
    gaicb request{};
    TimePoint deadline;
    std::function<void(Result<std::string>)> done;
};

/// Queries that nobody waits for, but which glibc's threads have begun: those cannot be taken back, and the memory must
/// outlive them.
struct Resolver::Abandoned {
    ~Abandoned() {
        // There is nobody left to look at them again.
        for (auto& query : queries)
            if (gai_error(&query->request) == EAI_INPROGRESS) static_cast<void>(query.release());
    }
    /// Looks at them until the last has ended.
    static void look(Reactor& reactor, const std::shared_ptr<Abandoned>& abandoned) {
        abandoned->queries.remove_if([](const auto& query) { return gai_error(&query->request) != EAI_INPROGRESS; });
        abandoned->looking = !abandoned->queries.empty();
        if (abandoned->looking)
            reactor.runAt(reactor.now() + kLookAtAbandoned, [&reactor, abandoned] { look(reactor, abandoned); });
    }

    std::list<std::unique_ptr<Query>> queries;
    bool looking = false;
};

Resolver::Resolver(Reactor& reactor) : reactor_(reactor), abandoned_(std::make_shared<Abandoned>()) {}

Resolver::~Resolver() {
    reactor_.cancelTimer(timer_);
    for (auto& query : open_) drop(reactor_, abandoned_, std::move(query));
}

void Resolver::drop(Reactor& reactor, const std::shared_ptr<Abandoned>& abandoned, std::unique_ptr<Query> query) {
    query->done = nullptr;
    if (gai_cancel(&query->request) != EAI_NOTCANCELED) return;
    abandoned->queries.push_back(std::move(query));
    if (!abandoned->looking) Abandoned::look(reactor, abandoned);
}

void Resolver::resolve(const std::string& host, TimePoint deadline, std::function<void(Result<std::string>)> done) {
    if (SocketAddress::fromNumeric(host, 0)) {
        done(host);
        return;
    }
    auto query = std::make_unique<Query>();
    query->host = host;
    query->hints.ai_socktype = SOCK_STREAM;
    query->hints.ai_flags = AI_ADDRCONFIG;
    query->request.ar_name = query->host.c_str();
    query->request.ar_request = &query->hints;
    query->deadline = deadline;
    query->done = std::move(done);
    gaicb* list[] = {&query->request};
    const int error = getaddrinfo_a(GAI_NOWAIT, list, 1, nullptr);
    if (error != 0) {
        query->done(Status(Code::ResourceExhausted, "resolve '" + host + "': " + gai_strerror(error)));
        return;
    }
    open_.push_back(std::move(query));
    if (timer_ == 0) timer_ = reactor_.runAt(reactor_.now() + kLook, [this] { look(); });
}

/// What there is to say of a query that has ended, or whose time has passed.
Result<std::string> Resolver::outcome(Query& query, int error) {
    if (error == EAI_INPROGRESS)
        return Status(Code::Timeout, "resolve '" + query.host + "': no answer from the resolver in time");
    if (error != 0) return Status(Code::NotFound, "resolve '" + query.host + "': " + gai_strerror(error));
    char text[NI_MAXHOST] = "";
    const addrinfo* first = query.request.ar_result;
    getnameinfo(first->ai_addr, first->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return std::string(text);
}

void Resolver::look() {
    timer_ = 0;
    const TimePoint now = reactor_.now();
    std::list<std::unique_ptr<Query>> still_open;
    auto looked = std::move(open_);
    open_.clear();
    // The one who is told may end the resolver.
    const std::weak_ptr<char> alive = alive_;
    Reactor& reactor = reactor_;
    const auto abandoned = abandoned_;
    while (!looked.empty()) {
        auto query = std::move(looked.front());
        looked.pop_front();
        const int error = gai_error(&query->request);
        if (error == EAI_INPROGRESS && now < query->deadline) {
            still_open.push_back(std::move(query));
            continue;
        }
        Result<std::string> result = outcome(*query, error);
        const auto done = std::move(query->done);
        if (error == EAI_INPROGRESS) drop(reactor, abandoned, std::move(query));
        done(std::move(result));
        if (alive.expired()) {
            looked.splice(looked.end(), still_open);
            for (auto& left : looked) drop(reactor, abandoned, std::move(left));
            return;
        }
    }
    open_.splice(open_.end(), still_open);
    if (!open_.empty() && timer_ == 0) timer_ = reactor_.runAt(now + kLook, [this] { look(); });
}

}  // namespace troupe
