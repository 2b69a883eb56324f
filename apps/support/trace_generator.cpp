#include "apps/support/trace_generator.h"

namespace troupe::apps {

TraceGenerator::TraceGenerator(const TraceShape& shape) : shape_(shape), random_(shape.seed) {
    for (std::size_t i = 0; i < shape.system_prompts; ++i) {
        Conversation prompt;
        extend(prompt, kTokensPerBlock * (1 + random_.below(4)));
        prompts_.push_back(std::move(prompt));
    }
    for (std::size_t i = 0; i < shape.conversations; ++i) conversations_.push_back(begin());
}

TraceRequest TraceGenerator::next() {
    auto& conversation = conversations_[random_.below(conversations_.size())];
    const std::uint64_t question = random_.logUniform(16, 4096);
    if (conversation.tokens + question > shape_.max_input_tokens) conversation = begin();
    extend(conversation, question);

    TraceRequest request;
    request.timestamp_ms = now_ms_;
    request.input_tokens = conversation.tokens;
    request.output_tokens = random_.logUniform(8, 1024);
    request.hash_ids = conversation.blocks;
    // The last block is not full: what fills it makes it another block next time.
    if (conversation.tokens % kTokensPerBlock != 0) request.hash_ids.push_back(next_id_++);
    extend(conversation, request.output_tokens);
    now_ms_ += random_.below(2 * shape_.mean_interval_ms + 1);
    return request;
}

TraceGenerator::Conversation TraceGenerator::begin() {
    return prompts_.empty() ? Conversation{} : prompts_[random_.below(prompts_.size())];
}

void TraceGenerator::extend(Conversation& conversation, std::uint64_t tokens) {
    conversation.tokens += tokens;
    while (conversation.blocks.size() < conversation.tokens / kTokensPerBlock)
        conversation.blocks.push_back(next_id_++);
}

std::vector<TraceRequest> generateTrace(const TraceShape& shape) {
    TraceGenerator generator(shape);
    std::vector<TraceRequest> requests;
    requests.reserve(shape.requests);
    for (std::size_t i = 0; i < shape.requests; ++i) requests.push_back(generator.next());
    return requests;
}

}  // namespace troupe::apps
