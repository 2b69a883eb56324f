#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/incarnation.h"
#include "base/log.h"
#include "base/reactor.h"
#include "control/incarnation_probe.h"
#include "metadata/metadata_store.h"

namespace troupe {

/// Publishes the local segment: when, how often, and what to do when somebody else has the name. A part of the
/// SegmentDirectory; on its loop's turn.
///
/// A record is written whole, so that writing it with every registration would cost N records of N regions. Two bounds
/// keep N regions, registered one by one, at O(N) bytes, whether they come in a burst or slowly:
///
/// * changes are gathered: after each record, or word of a change, there is a pause in which kPublishRate would send as
///   many bytes as the record has: some milliseconds up to 100 regions, two thirds of a second with 10,000. What
///   changed is then told to those who watch, who fetch the descriptor from its owner; that costs some 200 bytes;
/// * the record itself is written when it can be paid: a region that came or went brings kBytesPerChange, a second
///   kBytesPerSecond, and at most kMostSaved, or two records, are saved up. So one change alone goes out at once, and
///   while many come slowly the record in the store is behind, which only listings show.
///
/// Who asks for an answer (updateLocalSegmentDesc) waits for neither, and what changed while the store was away is not
/// made to be paid.
///
/// A name that is held by a dead incarnation is taken over at once: its control endpoint is asked, and if that proves
/// it dead (IncarnationProbe), its record is removed and ours published.
class LocalPublisher {
  public:
    using Reply = std::function<void(Status)>;

    /// Bytes of records per second at most, while changes go on.
    static constexpr std::uint64_t kPublishRate = 2u << 20;
    /// What pays for records: a change brings what 16 regions take, so a record of many is written when a sixteenth of
    /// it has changed. A second brings some times what the store's look at the record costs each second.
    static constexpr std::uint64_t kBytesPerChange = 2u << 10;
    static constexpr std::uint64_t kBytesPerSecond = 4u << 10;
    static constexpr std::uint64_t kMostSaved = 64u << 10;
    /// About what a region, and all else, take in a record.
    static constexpr std::uint64_t kBytesPerRegion = 128;
    static constexpr std::uint64_t kBytesPerRecord = 1024;

    /// `describe` gives the descriptor as of now. `auth` may be null.
    LocalPublisher(Reactor& reactor, MetadataStore& store, const Config& settings, Logger log, std::string name,
                   const Incarnation& own, std::function<const SegmentDesc&()> describe,
                   std::shared_ptr<const ClusterAuth> auth = nullptr);
    ~LocalPublisher();
    LocalPublisher(const LocalPublisher&) = delete;
    LocalPublisher& operator=(const LocalPublisher&) = delete;

    /// Something changed. `reply` (may be empty) is called when a record that includes it was written, or why not.
    void publish(Reply reply);
    /// The end: answers whoever still waits, and whoever comes later, with `why`. Nothing is written any more, so that
    /// what is withdrawn stays so.
    void end(const Status& why);

  private:
    void publishWhenDue();
    bool isDue();
    void wakeAt(TimePoint when);
    void earn(const SegmentDesc& desc);
    void write();
    void written(const Status& status);
    void finish(const Status& status);
    void challenge(const Status& refusal);
    void challengeHolder(const Status& refusal, const SegmentDesc& holder);
    void judge(const Status& refusal, const Incarnation& holder, IncarnationProbe::Verdict verdict,
               const std::string& why);

    Reactor& reactor_;
    MetadataStore& store_;
    const Config& settings_;
    const Logger log_;
    const std::string name_;
    const Incarnation own_;
    const std::function<const SegmentDesc&()> describe_;
    const std::shared_ptr<const ClusterAuth> auth_;

    std::optional<Status> ended_;  ///< Why.
    bool wanted_ = false;          ///< Something changed since the last record began.
    bool running_ = false;         ///< A record is being written.
    bool was_published_ = false;   ///< The name was ours once.
    /// Before the name was ever ours: only who asks for an answer has it written again. The engine that was refused has
    /// given up, and must not take the name when its holder's lease ends.
    bool was_refused_ = false;
    TimePoint began_{};          ///< When the latest record began.
    TimePoint not_before_{};     ///< The end of the pause.
    double saved_ = kMostSaved;  ///< Bytes of records that can be paid.
    TimePoint earned_at_{};      ///< Up to when the time has been counted.
    std::uint64_t earned_version_ = 0;
    std::size_t earned_regions_ = 0;
    std::uint64_t told_version_ = 0;  ///< The latest that was written or announced.
    std::uint32_t challenges_ = 0;
    Code last_problem_ = Code::Ok;
    std::vector<Reply> waiting_;  ///< For a record that has not begun.
    std::vector<Reply> served_;   ///< By the one that is being written.
    std::unique_ptr<IncarnationProbe> probe_;
    Reactor::TimerId timer_ = 0;
    TimePoint timer_at_{};
};

}  // namespace troupe
