#include "actors/resolver.h"

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
    for (auto& query : open_) {
        // A query that glibc's thread has begun cannot be taken back; its memory must outlive it.
        if (gai_cancel(&query->request) == EAI_NOTCANCELED) query.release();
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

void Resolver::look() {
    timer_ = 0;
    const TimePoint now = reactor_.now();
    std::list<std::unique_ptr<Query>> still_open;
    auto looked = std::move(open_);
    open_.clear();
    for (auto& query : looked) {
        const int error = gai_error(&query->request);
        if (error == EAI_INPROGRESS) {
            if (now < query->deadline) {
                still_open.push_back(std::move(query));
                continue;
            }
            query->done(Status(Code::Timeout, "resolve '" + query->host + "': no answer from the resolver in time"));
            if (gai_cancel(&query->request) == EAI_NOTCANCELED) query.release();
            continue;
        }
        if (error != 0) {
            query->done(Status(Code::NotFound, "resolve '" + query->host + "': " + gai_strerror(error)));
            continue;
        }
        char text[NI_MAXHOST] = "";
        const addrinfo* first = query->request.ar_result;
        getnameinfo(first->ai_addr, first->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
        freeaddrinfo(query->request.ar_result);
        query->done(std::string(text));
    }
    open_.splice(open_.end(), still_open);
    if (!open_.empty() && timer_ == 0) timer_ = reactor_.runAt(now + kLook, [this] { look(); });
}

}  // namespace troupe
