// A priority matrix from a file, locations, and the kernel's lists of processors.

#include "tests/fuzz/fuzz.h"
#include "topology/location.h"
#include "topology/matrix.h"
#include "topology/topology.h"

using namespace troupe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    fuzz::Input input(data, size);
    const std::uint8_t kind = input.byte();
    const std::string_view text = input.text();
    if (kind % 3 == 0) {
        if (const auto matrix = parsePriorityMatrix(text)) {
            const auto back = parsePriorityMatrix(encodePriorityMatrix(*matrix));
            fuzz::require(back.isOk() && *back == *matrix, "a matrix survives a round trip");
        }
    } else if (kind % 3 == 1) {
        if (const auto location = parseLocation(text))
            for (const std::uint64_t length : {1ull, 4096ull, 1ull << 40})
                for (const std::uint64_t offset : {std::uint64_t{0}, length / 2, length - 1})
                    fuzz::require(!location->at(offset, length).empty(), "every byte is somewhere");
    } else if (const auto list = parseCpuList(text)) {
        fuzz::require(list->size() <= 1u << 20, "a list is bounded");
    }
    return 0;
}
