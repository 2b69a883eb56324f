#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/run_queue.h"
#include "messages/data_plane.h"
#include "messages/task_history.h"

namespace troupe {

/// A path's window holds at least this many flights of a large task, so that one is always on the wire while another
/// is being reported.
constexpr std::uint64_t kFlightsPerWindow = 8;

/// A worker, as a tracker knows it.
struct KnownWorker {
    NicInfo nic;
    std::uint32_t loop = 0;
    std::vector<std::string> far_from;  ///< Locations.

    bool isFarFrom(const std::string& location) const;
};

/// What a tracker has under way over one worker to one peer.
struct Path {
    std::uint32_t worker = 0;
    std::uint64_t bytes = 0;    ///< In flight.
    std::uint32_t flights = 0;  ///< In flight.
    std::uint32_t rank = 0;     ///< Of its transport among those that reach the peer; 0 is preferred.
    bool usable = true;         ///< False: lost, and its worker tries to get it back; the others are used.
    bool on_trial = false;      ///< It came back; one flight at a time until one has arrived.
    bool retired = false;       ///< Of an earlier route: kept while flights are out, for their deadlines.
    Train train;                ///< Being filled during flush.

    void add(const Flight& flight);
    /// A flight of `length` is back; all of it arrived, or not.
    void remove(std::uint64_t length, bool arrived);
};

/// The paths of one peer, best first, and which of them takes what. One thread.
class PathLadder {
  public:
    /// The route is `workers` from here on, best transport first. Paths that stay keep what is in flight on them and,
    /// while the peer is the `same` process, what is known of them. Of one transport those of `loop` come first: they
    /// cost no crossing.
    void route(const std::vector<std::uint32_t>& workers, const std::vector<KnownWorker>& known, std::uint32_t loop,
               bool same);
    /// Its workers close all paths; new ones are not lost yet.
    void closed();

    std::vector<Path>& paths() { return paths_; }
    const std::vector<Path>& paths() const { return paths_; }
    Path* of(std::uint32_t worker);
    /// Forgets the path if it is of an earlier route and carries nothing any more.
    void dropIfOver(std::uint32_t worker);

    /// Some of several paths are through Nics that are far from some memory.
    bool hasFar() const { return has_far_; }
    /// A path of the route is not lost; `but` does not count.
    bool anyUsable(std::uint32_t but = Run::kAnyWorker) const;
    /// There is a path that the run may take, now or later.
    bool mayCarry(const Run& run) const;
    /// The path for the run's next flight, null while there is no room. `location`: where its memory lies; "*": that
    /// makes no difference.
    Path* pick(const Run& run, const std::string& location, const std::vector<KnownWorker>& known);
    /// Who is out of the question for what a worker declined: all of its transport, and of those that are preferred to
    /// it, which came before. 0: nobody else is left.
    std::uint64_t barredBy(std::uint32_t worker) const;

  private:
    Path* pickAny(const Run& run, const std::vector<KnownWorker>& known);

    std::vector<Path> paths_;
    bool has_far_ = false;
};

}  // namespace troupe
