#include "base/resolver.h"

#include <netdb.h>

#include <algorithm>

#include "base/endpoint.h"

namespace troupe {

namespace {

// How often an open query is looked at: short against the time a name server takes.
constexpr auto kLook = std::chrono::milliseconds(2);

}  // namespace

struct Resolver::Query {
    std::string host;
    addrinfo hints{};
    gaicb request{};
    TimePoint deadline;
    std::function<void(Result<std::string>)> done;
};

Resolver::Resolver(Reactor& reactor) : reactor_(reactor) {}

Resolver::~Resolver() {
    reactor_.cancelTimer(timer_);
    drop(open_);
}

void Resolver::drop(std::list<std::unique_ptr<Query>>& queries) {
    for (auto& query : queries) {
        // A query that glibc's thread has begun cannot be taken back; its memory must outlive it.
        if (query && gai_cancel(&query->request) == EAI_NOTCANCELED) query.release();
    }
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
    freeaddrinfo(query.request.ar_result);
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
        if (error == EAI_INPROGRESS && gai_cancel(&query->request) == EAI_NOTCANCELED) query.release();
        done(std::move(result));
        if (alive.expired()) {
            drop(looked);
            drop(still_open);
            return;
        }
    }
    open_.splice(open_.end(), still_open);
    if (!open_.empty() && timer_ == 0) timer_ = reactor_.runAt(now + kLook, [this] { look(); });
}

}  // namespace troupe
