#include "base/wire_code.h"

namespace troupe {

Code codeFromWire(std::uint32_t number) {
    const auto code = static_cast<Code>(number);
    const bool ours = code == Code::Canceled || code == Code::Timeout || code == Code::PathReset;
    return number <= static_cast<std::uint32_t>(Code::DeviceLost) && !ours ? code : Code::Internal;
}

}  // namespace troupe
