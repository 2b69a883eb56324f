#pragma once

#include <string>

#include <caf/allowed_unsafe_message_type.hpp>

#include "base/status.h"
#include "messages/transfer_types.h"

namespace troupe {

/// To those who asked for it: how a peer stands has changed.
///
///     Unknown -> Connecting   the segment is being opened
///     Connecting -> Up, Down  its owner has greeted; or not, and why
///     Up -> Suspect           the control connection was lost, and is being made anew at once
///     Suspect -> Up, Down     that worked; or not, and its tasks have ended
///     Up -> Down              it said goodbye, fell silent, or another incarnation answers
///     Up -> Connecting        the store names another incarnation
///     Down -> Connecting      somebody answers there again
///
/// Unknown is never said. Attempts to connect that nobody answers are not, either.
struct PeerEvent {
    std::string name;
    SegmentID segment = kInvalidSegmentID;
    PeerState state = PeerState::Unknown;
    Status cause;  ///< Of Suspect and Down.
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::PeerEvent)
