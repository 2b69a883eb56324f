#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <caf/actor.hpp>
#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/error.hpp>
#include <caf/replies_to.hpp>
#include <caf/typed_actor.hpp>

#include "messages/peer_event.h"
#include "messages/transfer_types.h"
#include "metadata/segment_desc.h"

namespace troupe {

class CallThread;
class EngineCore;
class TransferEngine;

/// The engine as an actor, for services that run the C++ Actor Framework themselves. This header and the messages it
/// names are the only public ones that show CAF.
///
///     self->request(engine.actorApi()->actor(), caf::infinite, SubmitTransfers{requests})
///         .then([](const TransferReport& report) { ... }, [](const caf::error& e) { ... });
///
/// Every request is answered within a bound of the engine's: the deadlines of the tasks, `open_timeout`,
/// `unregister_timeout`. A timeout of CAF's own ends the waiting alone: what was submitted goes on, and uses its
/// buffers.

/// -> TransferReport once every task is terminal. Nothing is submitted on an error of category `troupe`. The errors of
/// TransferEngine::submitTransfer; InvalidArgument for cudaStreamPerThread as a `wait_stream`, too: the submitting
/// thread is the engine's.
struct SubmitTransfers {
    std::vector<TransferRequest> requests;
};
struct TransferReport {
    TransferStatus batch;               ///< As getBatchTransferStatus.
    std::vector<TransferStatus> tasks;  ///< In the order of the requests.
};

/// -> SegmentOpened.
struct OpenSegmentByName {
    std::string name;
};
struct SegmentOpened {
    SegmentID segment = kInvalidSegmentID;
    std::shared_ptr<const SegmentDesc> desc;
};

/// -> an empty answer once it is registered, or unregistered.
struct RegisterMemory {
    void* addr = nullptr;
    std::size_t length = 0;
    std::string location = "*";
    bool remote_accessible = true;
};
struct UnregisterMemory {
    void* addr = nullptr;
};

/// -> Quarantined (messages/transfer_types.h), as TransferEngine::quarantine.
struct ListQuarantine {};

/// The subscriber gets a PeerEvent message (messages/peer_event.h, which has the states) whenever a peer is being
/// connected to, comes up, becomes suspect or goes down, until it or the engine ends.
struct SubscribeEvents {
    caf::actor subscriber;
};

using EngineActor =
    caf::typed_actor<caf::replies_to<SubmitTransfers>::with<TransferReport>,
                     caf::replies_to<OpenSegmentByName>::with<SegmentOpened>,
                     caf::replies_to<RegisterMemory>::with<void>, caf::replies_to<UnregisterMemory>::with<void>,
                     caf::replies_to<ListQuarantine>::with<Quarantined>, caf::reacts_to<SubscribeEvents>>;

/// A Status as CAF's error: category "troupe", the Code as its number, the message as its context.
caf::error toCafError(const Status& status);
/// The reverse. Of CAF's own errors those of a receiver that has ended are Canceled; Internal for all others.
Status fromCafError(const caf::error& error);

/// Owns the engine's actor. Any thread.
class ActorApi {
  public:
    ActorApi(TransferEngine& engine, EngineCore& core);
    ~ActorApi();
    ActorApi(const ActorApi&) = delete;
    ActorApi& operator=(const ActorApi&) = delete;

    /// Blocking calls end: the one that runs is finished, the others and what comes later is answered with Canceled.
    /// Not on a loop's turn. Idempotent.
    void endCalls();
    /// endCalls, and then the actor: what was not answered so far is, with `why`. For a SubmitTransfers that says that
    /// its buffers are the requester's again, so only once nothing touches them any more. Idempotent.
    void end(const Status& why);

    /// After freeEngine requests get an error from CAF, which fromCafError makes Canceled.
    const EngineActor& actor() const { return actor_; }

  private:
    friend class EngineActorImpl;
    static Status submit(TransferEngine& engine, BatchID batch, const std::vector<TransferRequest>& requests,
                         std::function<void(BatchID)> on_done);

    std::shared_ptr<CallThread> calls_;
    EngineActor actor_;
};

}  // namespace troupe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SubmitTransfers)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::TransferReport)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::OpenSegmentByName)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SegmentOpened)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::RegisterMemory)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::UnregisterMemory)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::ListQuarantine)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::Quarantined)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::SubscribeEvents)
