// Another process with GPUs, for tests: takes commands by lines, and answers each with one. The fake is found by the
// environment.
//
//   alloc DEVICE BYTES          -> ok ADDRESS
//   virtual DEVICE PIECES TYPES -> ok ADDRESS       handle types as bits
//   free ADDRESS                -> ok
//   fill ADDRESS BYTES SEED     -> ok
//   check ADDRESS BYTES SEED    -> ok | differs
//   export ADDRESS BYTES FABRIC -> ok PIECES, then for each: KIND ID BASE LENGTH HANDLE FD
//   import DEVICE KIND BASE LENGTH HANDLE FD -> ok ADDRESS
//   copy DEVICE TO FROM BYTES   -> ok
//   release                     -> ok               all that was imported
//   violations                  -> ok TEXT
// What fails answers "error CODE: MESSAGE".

#include <unistd.h>

#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cuda_backend/cuda_fixture.h"
#include "tests/cuda_backend/cuda_peer_wire.h"
#include "tests/cuda_backend/virtual_memory.h"

namespace troupe::cuda::testing {
namespace {

using namespace device;

class CudaPeer {
  public:
    explicit CudaPeer(std::shared_ptr<CudaRuntime> runtime) : runtime_(std::move(runtime)) {}

    std::string run(std::istringstream& line) {
        std::string command;
        line >> command;
        if (command == "alloc") return allocate(line);
        if (command == "virtual") return reserve(line);
        if (command == "free") return free(line);
        if (command == "fill" || command == "check") return bytes(line, command == "fill");
        if (command == "export") return share(line);
        if (command == "import") return import(line);
        if (command == "copy") return copy(line);
        if (command == "release") return imported_.clear(), "ok";
        if (command == "violations") return "ok " + oneLine(control_.violations());
        return "error no command " + command;
    }

  private:
    static std::string failed(const Status& status) { return "error " + oneLine(status.toString()); }
    static std::string oneLine(std::string text) {
        for (char& letter : text)
            if (letter == '\n') letter = ';';
        return text;
    }

    std::string allocate(std::istringstream& line) {
        int device = 0;
        std::uint64_t bytes = 0;
        line >> device >> bytes;
        auto gpu = runtime_->open(device);
        if (!gpu) return failed(gpu.status());
        auto memory = (*gpu)->allocate(bytes);
        if (!memory) return failed(memory.status());
        const std::uint64_t addr = memory->get();
        memory_[addr] = std::move(*memory);
        return "ok " + std::to_string(addr);
    }
    std::string reserve(std::istringstream& line) {
        int device = 0;
        std::size_t pieces = 0;
        unsigned types = 0;
        line >> device >> pieces >> types;
        auto made = std::make_unique<VirtualMemory>(runtime_->driver(), device, pieces, types);
        const std::uint64_t addr = made->base();
        virtual_[addr] = std::move(made);
        return "ok " + std::to_string(addr);
    }
    std::string free(std::istringstream& line) {
        std::uint64_t addr = 0;
        line >> addr;
        return memory_.erase(addr) + virtual_.erase(addr) != 0 ? "ok" : "error nothing there";
    }
    std::string bytes(std::istringstream& line, bool fill) {
        std::uint64_t addr = 0;
        std::size_t length = 0;
        unsigned seed = 0;
        line >> addr >> length >> seed;
        if (!fill) return control_.read(addr, length) == noise(length, seed) ? "ok" : "differs";
        control_.write(addr, noise(length, seed));
        return "ok";
    }
    std::string share(std::istringstream& line) {
        ByteRange range;
        bool fabric = false;
        line >> range.addr >> range.length >> fabric;
        auto place = runtime_->locate(range);
        if (!place) return failed(place.status());
        auto gpu = runtime_->open(place->device);
        if (!gpu) return failed(gpu.status());
        auto shared = (*gpu)->exportMemory(*place, fabric);
        if (!shared) return failed(shared.status());
        std::string answer = "ok " + std::to_string(shared->size());
        for (SharedMemory& each : *shared) {
            answer += " " + toText(each);
            exported_.push_back(std::move(each));  // Keeps the descriptors open.
        }
        return answer;
    }
    std::string import(std::istringstream& line) {
        int device = 0;
        line >> device;
        const SharedMemory shared = fromText(line, ::getppid());
        auto gpu = runtime_->open(device);
        if (!gpu) return failed(gpu.status());
        auto mapped = (*gpu)->importMemory(shared);
        if (!mapped) return failed(mapped.status());
        imported_.push_back(std::move(*mapped));
        return "ok " + std::to_string(imported_.back().get());
    }
    std::string copy(std::istringstream& line) {
        int device = 0;
        std::uint64_t to = 0;
        std::uint64_t from = 0;
        std::uint64_t length = 0;
        line >> device >> to >> from >> length;
        auto gpu = runtime_->open(device);
        if (!gpu) return failed(gpu.status());
        auto stream = (*gpu)->makeStream();
        if (!stream) return failed(stream.status());
        if (Status status = (*gpu)->copy(*stream, to, from, length); !status) return failed(status);
        const Status status = (*gpu)->synchronize(*stream);
        return status ? "ok" : failed(status);
    }

    fake_cuda::Control control_;
    std::shared_ptr<CudaRuntime> runtime_;
    std::map<std::uint64_t, DeviceMemory> memory_;
    std::map<std::uint64_t, std::unique_ptr<VirtualMemory>> virtual_;
    std::vector<SharedMemory> exported_;
    std::vector<ImportedMemory> imported_;
};

int serve() {
    auto runtime = CudaRuntime::create({fake_cuda::Control::path(), false});
    if (!runtime) {
        std::cout << "error " << runtime.status().toString() << std::endl;
        return 1;
    }
    CudaPeer peer(std::move(*runtime));
    for (std::string text; std::getline(std::cin, text);) {
        std::istringstream line(text);
        std::cout << peer.run(line) << std::endl;
    }
    return 0;
}

}  // namespace
}  // namespace troupe::cuda::testing

int main() { return troupe::cuda::testing::serve(); }
