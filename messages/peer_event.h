#pragma once

#include <string>

#include <caf/allowed_unsafe_message_type.hpp>

#include "base/status.h"
#include "messages/transfer_types.h"

namespace troupe {

/// To those who asked for it: a peer came up, went down, or became suspect: the control connection to it was lost and
/// is being made anew. What follows is Up or Down.
struct PeerEvent {
    std::string name;
    SegmentID segment = kInvalidSegmentID;
    PeerState state = PeerState::Unknown;
    Status cause;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PeerEvent)
