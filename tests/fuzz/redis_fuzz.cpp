// What a Redis server says in arbitrary splits, and what its records, its channel and a URI hold.

#include <string>

#include "metadata_redis/redis_records.h"
#include "metadata_redis/redis_reply.h"
#include "metadata_redis/redis_uri.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;

namespace {

void look(const RedisReply& reply) {
    static_cast<void>(describe(reply));
    static_cast<void>(decodeRead(reply, 1000));
    static_cast<void>(describeHolder(reply.text));
    if (const auto event = RedisRecords::decodeEvent(reply.text)) {
        const auto back = RedisRecords::decodeEvent(RedisRecords::encodeEvent(*event));
        fuzz::require(back.isOk() && back->name == event->name && back->version == event->version,
                      "an event survives a round trip");
    }
    for (const RedisReply& element : reply.elements) look(element);
}

void replies(fuzz::Input input) {
    const std::size_t step = 1 + input.byte() % 64;
    RedisReplyReader reader({4096, 64, 128});
    while (!input.empty()) {
        const auto piece = input.take(step);
        if (!reader.feed({reinterpret_cast<const char*>(piece.data()), piece.size()})) return;
        for (;;) {
            const auto reply = reader.next();
            if (!reply) return;
            if (!reply->has_value()) break;
            look(**reply);
        }
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    switch (input.byte() % 3) {
        case 0: replies(input); break;
        case 1: {
            RedisReply reply;
            reply.type = RedisReply::Type::String;
            reply.text = input.text();
            look(reply);
            break;
        }
        default: {
            const auto uri = RedisUri::parse(input.text());
            if (uri && uri->kind == RedisUri::Kind::Server) {
                const auto back = RedisUri::parse(uri->toString());
                fuzz::require(back.isOk() && back->hosts == uri->hosts && back->database == uri->database,
                              "a URI as it is shown means the same");
            }
            static_cast<void>(withoutCredentials(input.text()));
        }
    }
    return 0;
}
