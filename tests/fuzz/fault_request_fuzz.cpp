// What a peer asks of the injector of faults, and the answer to it, as text.

#include <string>

#include "control/fault_request.h"
#include "tests/fuzz/fuzz.h"

using namespace troupe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const fuzz::Input input(data, size);
    const auto request = FaultRequest::decode(input.text());
    if (request) {
        const FaultRule& rule = request->rule;
        for (const auto& time : {rule.delay, rule.lasts, request->time})
            fuzz::require(time.count() >= 0 && time <= kLongestFault, "no fault lasts longer than the bound");
        fuzz::require(request->kind != FaultRequest::Kind::Add || rule.lasts.count() > 0, "nothing is broken for good");
        const std::string said = request->describe();
        fuzz::require(!said.empty() && said.find_first_of("\r\n") == std::string::npos, "it is one line of a log");
        const auto back = FaultRequest::decode(request->encode());
        fuzz::require(back.isOk(), "what was decoded encodes to what decodes");
        fuzz::require(*back == *request, "and to the same");
        // Whatever it says, an injector takes it or says why not.
        FaultInjector faults(1);
        if (request->kind == FaultRequest::Kind::Add) {
            const auto id = faults.add(rule, 7);
            fuzz::require(id.isOk() || id.status().code() == Code::InvalidArgument, "a rule is taken or refused");
            static_cast<void>(faults.judge(rule.point, "tcp0 a"));
        }
        if (request->kind == FaultRequest::Kind::DropPath)
            fuzz::require(faults.dropPath(request->where, request->time, 7).isOk(), "a path is lost for a time");
        faults.clear(7);
        fuzz::require(!faults.judge(rule.point, "tcp0 a"), "what was broken is mended");
    } else {
        fuzz::require(request.status().code() == Code::ProtocolError, "what does not decode is a ProtocolError");
    }
    const auto answer = FaultAnswer::decode(input.text());
    fuzz::require(answer.isOk() ? *FaultAnswer::decode(answer->encode()) == *answer
                                : answer.status().code() == Code::ProtocolError,
                  "an answer comes back as it was");
    return 0;
}
