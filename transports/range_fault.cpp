#include "transports/range_fault.h"

#include "base/byte_range.h"

namespace troupe {

std::string RangeFault::toString() const {
    switch (code) {
        case Code::Ok: return "nothing is wrong";
        case Code::InvalidArgument: return "it passes the end of the address space";
        case Code::AddressNotRegistered: return hexAddress(addr) + " is not registered";
        case Code::AccessDenied:
            return hexAddress(addr) + (read_only ? " is mapped read-only" : " is not remotely accessible");
        default: return hexAddress(addr) + " cannot be served";
    }
}

}  // namespace troupe
