#include "transports/range_fault.h"

#include "base/byte_range.h"

namespace troupe {

namespace {

std::string denied(std::uint64_t addr, Denial denial) {
    switch (denial) {
        case Denial::LocalOnly: break;
        case Denial::ReadOnly: return hexAddress(addr) + " is mapped read-only";
        case Denial::NotCopied:
            return hexAddress(addr) +
                   " is registered, but the driver of its owner's GPU refuses to copy it: was it freed there while it "
                   "was registered?";
        case Denial::Untouchable:
            return (addr != 0 ? hexAddress(addr) + " is registered, but its owner may not touch it"
                              : std::string("it is registered, but its owner may not touch all of it")) +
                   ": protected, or its file cut short";
    }
    return hexAddress(addr) + " is not remotely accessible";
}

}  // namespace

std::string RangeFault::toString() const {
    switch (code) {
        case Code::Ok: return "nothing is wrong";
        case Code::InvalidArgument: return "it passes the end of the address space";
        case Code::AddressNotRegistered: return hexAddress(addr) + " is not registered";
        case Code::AccessDenied: return denied(addr, denial);
        case Code::Unsupported: return "it is of several allocations, of which one is a GPU's: ask for one at a time";
        case Code::DeviceLost: return hexAddress(addr) + " is of a GPU that its owner has lost";
        default: return hexAddress(addr) + " cannot be served";
    }
}

}  // namespace troupe
