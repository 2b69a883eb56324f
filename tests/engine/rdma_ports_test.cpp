// The port of rdma_cm, chosen by a setting: whole engines on the software device.

#include <gmock/gmock.h>

#include <memory>
#include <string>

#include "tests/support/engine_pair.h"
#include "tests/verbs_backend/soft_system.h"

namespace troupe::test {
namespace {

using testing::HasSubstr;
using verbs::testing::SoftVerbs;

constexpr std::uint16_t kPort = 18515;

EngineSetup onDevice(const std::string& device) {
    EngineSetup setup;
    setup.tcp = false;
    setup.config.rdma_devices = device;
    setup.config.rdma_port = kPort;
    return setup;
}

TEST(RdmaPorts, ThePortIsTheOneThatWasAskedForOrTheInstallIsRefused) {
    const auto soft = std::make_shared<SoftVerbs>(std::vector<std::string>{"a0", "b0"});
    {
        const verbs::testing::SoftSystem system{soft};
        const auto first = startEngine(onDevice("a0"));
        const auto installed = first->installTransport("rdma");
        ASSERT_TRUE(installed) << installed.status().toString();
        EXPECT_EQ((*first->getSegmentDescByID(kLocalSegmentID))->rdma_port, kPort);

        // Although pairs could be made without rdma_cm, over the control connection.
        const auto second = startEngine(onDevice("b0"));
        const Status refused = second->installTransport("rdma").status();
        expectCode(refused, Code::AlreadyExists);
        EXPECT_THAT(refused.message(), HasSubstr("rdma.port " + std::to_string(kPort)));
        EXPECT_EQ(second->getTransport("rdma"), nullptr);

        // It is free again with the transport.
        EXPECT_TRUE(first->uninstallTransport("rdma"));
        EXPECT_TRUE(second->installTransport("rdma"));
    }
    EXPECT_EQ(soft->leftovers(), "");
    for (const std::string& violation : soft->violations()) ADD_FAILURE() << violation;
}

}  // namespace
}  // namespace troupe::test
