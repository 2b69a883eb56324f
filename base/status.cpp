#include "base/status.h"

#include <cstdio>
#include <cstdlib>

namespace troupe {

std::string_view codeName(Code code) {
    switch (code) {
        case Code::Ok: return "Ok";
        case Code::InvalidArgument: return "InvalidArgument";
        case Code::NotInitialised: return "NotInitialised";
        case Code::AddressOverlapped: return "AddressOverlapped";
        case Code::AddressNotRegistered: return "AddressNotRegistered";
        case Code::AccessDenied: return "AccessDenied";
        case Code::NotFound: return "NotFound";
        case Code::StaleHandle: return "StaleHandle";
        case Code::BatchBusy: return "BatchBusy";
        case Code::CapacityExceeded: return "CapacityExceeded";
        case Code::TransportMissing: return "TransportMissing";
        case Code::ConnectionRefused: return "ConnectionRefused";
        case Code::ConnectionLost: return "ConnectionLost";
        case Code::Timeout: return "Timeout";
        case Code::Canceled: return "Canceled";
        case Code::PeerDown: return "PeerDown";
        case Code::StaleIncarnation: return "StaleIncarnation";
        case Code::ProtocolError: return "ProtocolError";
        case Code::ChecksumMismatch: return "ChecksumMismatch";
        case Code::ResourceExhausted: return "ResourceExhausted";
        case Code::Unsupported: return "Unsupported";
        case Code::AlreadyExists: return "AlreadyExists";
        case Code::Internal: return "Internal";
        case Code::PathReset: return "PathReset";
        case Code::DeviceLost: return "DeviceLost";
    }
    return "Unknown";
}

Status::Status(Code code, std::string message) {
    if (code != Code::Ok) state_ = std::make_shared<const State>(State{code, std::move(message)});
}

const std::string& Status::message() const {
    static const std::string empty;
    return state_ ? state_->message : empty;
}

std::string Status::toString() const {
    std::string text(codeName(code()));
    if (!message().empty()) text.append(": ").append(message());
    return text;
}

Status Status::withContext(std::string_view context) const {
    if (isOk()) return *this;
    return Status(code(), std::string(context) + ": " + message());
}

Status Status::withCode(Code code) const {
    if (isOk() || code == this->code()) return *this;
    return Status(code, toString());
}

void abortForLackOfValue(const Status& status) {
    // The program ends here, and no Logger is at hand.
    std::fprintf(stderr, "troupe: value() of a Result that has none: %s\n", status.toString().c_str());
    std::abort();
}

}  // namespace troupe
