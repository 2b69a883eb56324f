#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/support/child_process.h"
#include "base/status.h"

namespace troupe::apps::faults {

/// Soft-RoCE devices of this machine whose interfaces are the two ends of a veth pair, as the VM of tests/rdma_vm has
/// them: of each such rail one end is the traffic's and the other its targets'. What is done to them is undone with
/// this. Needs root. One thread.
class Rails {
  public:
    /// Unsupported: there are none.
    static Result<Rails> find();
    Rails(Rails&& other) noexcept;
    Rails& operator=(Rails&&) = delete;
    ~Rails();

    std::size_t count() const { return rails_.size(); }
    /// The setting by which an engine keeps to the devices of this side, and of the targets'.
    std::string settingHere() const;
    std::string settingThere() const;

    /// All links. Up: returns once all ports are active again.
    Status setLinks(bool up);
    /// That of the rail that has carried most so far; up: of the one that was taken down.
    Status setBusiestLink(bool up);
    /// Of the packets in each direction; "5%".
    Status setLoss(const std::string& percentage);
    /// Deletes this side's device of the rail that has carried most. It is gone for good once nobody has it open any
    /// more, which is not waited for.
    Status deleteBusiestDevice();

  private:
    struct End {
        std::string device;
        std::string netdev;
        /// What the kernel forgets when the link goes down: routes and neighbours, as commands that bring them back.
        std::vector<std::vector<std::string>> memory;
    };
    struct Rail {
        End here;
        End there;
        std::uint64_t sent = 0;  ///< By this side, before it was ours; bytes.
        bool down = false;
    };

    Rails() = default;
    static Status remember(End& end);
    static Status setLink(Rail& rail, bool up);
    Rail& busiest();
    void makeDeviceAnew();

    std::vector<Rail> rails_;  ///< Empty once moved from.
    bool loses_ = false;
    std::optional<ChildProcess> deleting_;  ///< Ends when the device is gone.
    std::string deleted_;
    std::string deleted_of_;  ///< Its interface.
};

}  // namespace troupe::apps::faults
