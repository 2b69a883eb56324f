#pragma once

#include <cstdint>
#include <vector>

#include "apps/support/random.h"
#include "apps/support/trace.h"

namespace troupe::apps {

/// The shape of a made-up chat service.
struct TraceShape {
    std::size_t requests = 300;
    std::uint64_t seed = 1;
    std::size_t conversations = 40;          ///< Going on at the same time.
    std::size_t system_prompts = 3;          ///< Prefixes that conversations share.
    std::uint64_t mean_interval_ms = 200;    ///< Between requests.
    std::uint64_t max_input_tokens = 16384;  ///< A longer conversation ends and a new one begins.
};

/// Makes requests of conversations that each start with one of the shared prompts and come back with all that was said
/// before and some more, so that most blocks of a later turn are known. The same shape gives the same trace.
class TraceGenerator {
  public:
    explicit TraceGenerator(const TraceShape& shape);

    TraceRequest next();

  private:
    struct Conversation {
        std::vector<std::uint64_t> blocks;  ///< Ids of the whole blocks so far.
        std::uint64_t tokens = 0;
    };

    Conversation begin();
    void extend(Conversation& conversation, std::uint64_t tokens);

    TraceShape shape_;
    Random random_;
    std::uint64_t next_id_ = 0;
    std::uint64_t now_ms_ = 0;
    std::vector<Conversation> prompts_;
    std::vector<Conversation> conversations_;
};

/// As many of them as the shape says.
std::vector<TraceRequest> generateTrace(const TraceShape& shape);

}  // namespace troupe::apps
