// Another process with an engine and GPUs, for tests: takes commands by lines, and answers each with one.
//
//   start HOST_PEERS TCP      -> ok SEGMENT
//   make KIND BYTES           -> ok ADDRESS      and registers it
//   make_part KIND BYTES OFFSET LENGTH -> ok ADDRESS  the same, of which it registers a part; its address
//   register ADDRESS BYTES    -> ok              another part of what there is
//   fill ADDRESS BYTES SEED   -> ok
//   check ADDRESS BYTES SEED  -> ok | differs
//   read SEGMENT TO FROM BYTES -> ok             from another engine's memory into its own
//   begin SEGMENT TO FROM BYTES -> ok            the same without waiting for it
//   begin_write SEGMENT FROM TO BYTES -> ok
//   wait                      -> ok              for all that was begun
//   unregister ADDRESS        -> ok
//   free ADDRESS              -> ok
//   hold ON                   -> ok              no stream begins anything
//   lose DEVICE               -> ok
//   violations                -> ok TEXT
// What fails answers "error CODE: MESSAGE".

#include <iostream>
#include <list>
#include <map>
#include <sstream>
#include <string>

#include "tests/gpu/fixture.h"

namespace troupe::gpu::testing {
namespace {

class GpuPeer {
  public:
    GpuPeer() : runtime_(*cuda::CudaRuntime::create({fake_cuda::Control::path(), false})) {}

    std::string run(std::istringstream& line) {
        std::string command;
        line >> command;
        if (command == "start") return start(line);
        if (command == "make" || command == "make_part") return make(line, command == "make_part");
        if (command == "violations") return "ok " + oneLine(control_.violations());
        if (command == "read" || command == "begin") return transfer(line, Opcode::Read, command == "read");
        if (command == "begin_write") return transfer(line, Opcode::Write, false);
        if (command == "wait") return wait();
        std::uint64_t number = 0;
        line >> number;
        if (command == "hold") return control_.hold(number != 0), "ok";
        if (command == "lose") return control_.lose(static_cast<int>(number), cuda::api::Result::IllegalAddress), "ok";
        if (command == "unregister") return said(engine_->unregisterLocalMemory(reinterpret_cast<void*>(number)));
        Memory* memory = nullptr;
        for (Memory& each : memory_)
            if (number >= each.addr() && number < each.addr() + each.size()) memory = &each;
        if (memory == nullptr) return "error no such memory";
        if (command == "free") {
            memory_.remove_if([memory](const Memory& each) { return &each == memory; });
            return "ok";
        }
        std::uint64_t bytes = 0;
        unsigned seed = 0;
        line >> bytes >> seed;
        const std::uint64_t at = number - memory->addr();
        if (command == "register") return said(engine_->registerLocalMemory(memory->pointer(at), bytes));
        if (command == "fill") return memory->write(at, noise(bytes, seed)), "ok";
        if (command == "check") return memory->read(at, bytes) == noise(bytes, seed) ? "ok" : "differs";
        return "error no command " + command;
    }

  private:
    static std::string said(const Status& status) { return status ? "ok" : "error " + oneLine(status.toString()); }
    static std::string oneLine(std::string text) {
        for (char& letter : text)
            if (letter == '\n') letter = ';';
        return text;
    }

    std::string start(std::istringstream& line) {
        EngineSetup setup;
        line >> setup.config.host_peers >> setup.tcp;
        setup.config.gpu_driver = fake_cuda::Control::path();
        setup.config.gpu_staging_chunk_bytes = 64u << 10;
        setup.config.gpu_staging_chunks = 4;
        engine_ = startEngine(setup);
        return "ok " + engine_->localSegmentName();
    }
    std::string transfer(std::istringstream& line, Opcode opcode, bool waits) {
        std::string name;
        std::uint64_t local = 0;
        std::uint64_t remote = 0;
        std::uint64_t bytes = 0;
        line >> name >> local >> remote >> bytes;
        const auto segment = engine_->openSegment(name);
        if (!segment) return said(segment.status());
        batches_.emplace_back(*engine_, 1);
        const Status submitted =
            batches_.back().submit({makeRequest(opcode, *segment, reinterpret_cast<void*>(local), remote, bytes)});
        return submitted && waits ? wait() : said(submitted);
    }
    std::string wait() {
        Status outcome;
        for (const BatchHolder& batch : batches_)
            if (const auto status = batch.wait(); status.s != TransferStatusEnum::COMPLETED)
                outcome = Status(Code::Internal, toString(status.s) + (": " + status.error.toString()));
        batches_.clear();
        return said(outcome);
    }
    std::string make(std::istringstream& line, bool in_part) {
        std::string kind;
        std::uint64_t bytes = 0;
        line >> kind >> bytes;
        std::uint64_t offset = 0;
        std::uint64_t length = bytes;
        if (in_part) line >> offset >> length;
        memory_.emplace_back(kind, bytes, *runtime_, control_, [this](int ordinal) -> device::Device& {
            if (!gpus_[ordinal]) gpus_[ordinal] = *runtime_->open(ordinal);
            return *gpus_[ordinal];
        });
        Memory& memory = memory_.back();
        const Status done = engine_->registerLocalMemory(memory.pointer(offset), length);
        return done ? "ok " + std::to_string(memory.addr(offset)) : said(done);
    }

    fake_cuda::Control control_;
    std::shared_ptr<cuda::CudaRuntime> runtime_;
    std::map<int, std::shared_ptr<device::Device>> gpus_;
    std::list<Memory> memory_;
    std::unique_ptr<TransferEngine> engine_;
    std::list<BatchHolder> batches_;
};

}  // namespace
}  // namespace troupe::gpu::testing

int main() {
    troupe::gpu::testing::GpuPeer peer;
    for (std::string text; std::getline(std::cin, text);) {
        std::istringstream line(text);
        std::cout << peer.run(line) << std::endl;
    }
    return 0;
}
