// Feeds every file of the folders that are named to a target, its corpus, and then what comes of them by chance: so the
// decoders meet new inputs in every run of the suite, with any compiler and under every sanitizer. It knows nothing of
// what code an input reaches, as libFuzzer does; that is ./dev fuzz.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

using Bytes = std::vector<std::uint8_t>;

// Where memory errors show there is more to find.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::chrono::seconds kTrying{3};
#else
constexpr std::chrono::seconds kTrying{1};
#endif
constexpr std::size_t kMostTries = 200'000;
constexpr std::size_t kLongestInput = 4096;
constexpr std::size_t kMostChanges = 4;

/// In memory of its own size, so that a sanitizer sees a read past its end.
void feed(const Bytes& input) {
    const Bytes exact(input.begin(), input.end());
    LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

class Mutator {
  public:
    Mutator(const std::vector<Bytes>& corpus, std::uint64_t seed) : corpus_(corpus), random_(seed) {}

    Bytes next() {
        Bytes made = corpus_[below(corpus_.size())];
        for (std::size_t changes = 1 + below(kMostChanges); changes > 0; --changes) change(made);
        if (made.size() > kLongestInput) made.resize(kLongestInput);
        return made;
    }

  private:
    std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
    std::uint8_t byte() { return static_cast<std::uint8_t>(random_()); }

    void change(Bytes& made) {
        static constexpr std::uint64_t kEdges[] = {
            0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, 0xffffffffffffffff};
        const std::size_t at = below(made.size() + 1);
        const auto place = made.begin() + static_cast<std::ptrdiff_t>(at);
        switch (below(6)) {
            case 0:  // One bit.
                if (at < made.size()) made[at] ^= static_cast<std::uint8_t>(1u << below(8));
                break;
            case 1:  // One byte.
                if (at < made.size()) made[at] = byte();
                break;
            case 2: {  // A number at an edge of its range, in some width, little-endian.
                const std::uint64_t number = kEdges[below(std::size(kEdges))] + below(3) - 1;
                const std::size_t width = std::size_t{1} << below(4);
                for (std::size_t i = 0; i < width && at + i < made.size(); ++i)
                    made[at + i] = static_cast<std::uint8_t>(number >> (8 * i));
                break;
            }
            case 3:  // Some bytes less.
                made.erase(place, place + static_cast<std::ptrdiff_t>(below(made.size() - at + 1)));
                break;
            case 4: {  // Some bytes more.
                const Bytes more(1 + below(16), byte());
                made.insert(place, more.begin(), more.end());
                break;
            }
            default: {  // A part of another, in the place of the rest or between.
                const Bytes& other = corpus_[below(corpus_.size())];
                const std::size_t from = below(other.size() + 1);
                if (below(2) == 0) made.erase(place, made.end());
                made.insert(made.begin() + static_cast<std::ptrdiff_t>(at),
                            other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
            }
        }
    }

    const std::vector<Bytes>& corpus_;
    std::mt19937_64 random_;
};

/// TROUPE_FUZZ_SEED tries again what a run that said this seed had tried, and leaves each input in the file
/// `fuzz_input` before it is tried, so that the last one is there after a crash.
void tryOthers(const std::vector<Bytes>& corpus) {
    const char* const given = std::getenv("TROUPE_FUZZ_SEED");
    const std::uint64_t seed = given == nullptr ? std::random_device()() : std::strtoull(given, nullptr, 10);
    std::fprintf(stderr, "others, of TROUPE_FUZZ_SEED=%llu\n", static_cast<unsigned long long>(seed));
    Mutator mutator(corpus, seed);
    const auto end = std::chrono::steady_clock::now() + kTrying;
    std::size_t tried = 0;
    while (tried < kMostTries && (given != nullptr || std::chrono::steady_clock::now() < end)) {
        const Bytes input = mutator.next();
        if (given != nullptr)
            std::ofstream("fuzz_input", std::ios::binary)
                .write(reinterpret_cast<const char*>(input.data()), static_cast<std::streamsize>(input.size()));
        feed(input);
        ++tried;
    }
    std::fprintf(stderr, "%zu others\n", tried);
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<Bytes> corpus;
    for (int i = 1; i < argc; ++i) {
        for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
            if (!entry.is_regular_file()) continue;
            std::ifstream file(entry.path(), std::ios::binary);
            const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
            // Said before, so that the last line names the one that crashes.
            std::fprintf(stderr, "%s: %zu bytes\n", entry.path().c_str(), bytes.size());
            feed(corpus.emplace_back(bytes.begin(), bytes.end()));
        }
    }
    std::fprintf(stderr, "%zu inputs\n", corpus.size());
    if (corpus.empty()) return 1;
    tryOthers(corpus);
    return 0;
}
