#include "apps/support/remedy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace troupe::apps {
namespace {

using testing::HasSubstr;
using testing::Not;

// The messages are those that the commands print.
TEST(Remedy, OfAnErrorOfTheStoreIsAboutTheStore) {
    const struct {
        Code code;
        const char* message;
        const char* remedy;
    } cases[] = {
        {Code::ConnectionRefused, "cannot start the engine: redis 127.0.0.1:1: connect: Connection refused (errno 111)",
         "redis-cli"},
        {Code::Timeout, "redis://10.0.0.9:6379: not connected yet", "is Redis up"},
        {Code::ConnectionLost, "redis 127.0.0.1:6379: the server closed the connection", "is Redis up"},
        {Code::NotFound, "redis nosuchhost:6379: the name 'nosuchhost' does not resolve", "address in --metadata"},
        {Code::NotFound, "cannot open segment 'x': no segment 'x' in redis://h:6379 (key 'mooncake/ram/x')",
         "troupe segments"},
        {Code::AccessDenied,
         "redis 127.0.0.1:6379: the server asks for a password; give it in the URI or as redis.password ('NOAUTH ...')",
         "user and password"},
        {Code::PeerDown, "redis 127.0.0.1:6379: this server is a read-only replica; ... ('READONLY ...')",
         "docs/redis.md"},
        {Code::ResourceExhausted, "redis 127.0.0.1:6379: the server cannot save to its disk ... ('MISCONF ...')",
         "log and the memory"},
        {Code::Unsupported, "redis 127.0.0.1:6379: this is a node of a Redis Cluster", "no cluster"},
        {Code::NotFound, "sentinel 10.0.0.1:26379: it knows no master 'm'", "address in --metadata"},
    };
    for (const auto& one : cases) {
        const std::string remedy = remedyFor(Status(one.code, one.message));
        EXPECT_THAT(remedy, HasSubstr(one.remedy)) << one.message;
        EXPECT_THAT(remedy, Not(HasSubstr("troupe serve"))) << one.message;
        EXPECT_THAT(remedy, Not(HasSubstr("peer"))) << one.message;
    }
}

TEST(Remedy, OfAnErrorOfAPeerIsAboutThePeer) {
    EXPECT_THAT(remedyFor(Status(Code::ConnectionRefused, "cannot open segment 'redis1:4': peer 10.0.0.1:4: connect")),
                HasSubstr("troupe serve"));
    EXPECT_THAT(remedyFor(Status(Code::Timeout, "peer 10.0.0.1:4")), HasSubstr("peer alive"));
    EXPECT_THAT(remedyFor(Status(Code::TransportMissing, "no installed transport")), HasSubstr("--transport"));
    EXPECT_THAT(remedyFor(Status(Code::AccessDenied, "is not remotely accessible")), HasSubstr("owner"));
    EXPECT_THAT(remedyFor(Status(Code::ProtocolError, "control frame")), HasSubstr("troupe serve"));
}

TEST(Remedy, OfASocketOfTheStoreAsksThatSocket) {
    const std::string missing = remedyFor(Status(
        Code::ConnectionRefused, "redis /run/r.sock: connect unix:/run/r.sock: No such file or directory (errno 2)"));
    EXPECT_THAT(missing, HasSubstr("no such file"));
    EXPECT_THAT(missing, HasSubstr("redis-cli -s /run/r.sock ping"));
    const std::string refused = remedyFor(
        Status(Code::ConnectionRefused, "redis /run/r.sock: connect unix:/run/r.sock: Connection refused (errno 111)"));
    EXPECT_THAT(refused, HasSubstr("redis-cli -s /run/r.sock ping"));
    EXPECT_THAT(refused, Not(HasSubstr("no such file")));
}

TEST(Remedy, OfWhatIsTakenOrDoesNotFitSaysWhatElseToTake) {
    EXPECT_THAT(remedyFor(Status(Code::AlreadyExists, "control port: bind 127.0.0.1:80: Address already in use")),
                HasSubstr("--port"));
    EXPECT_THAT(remedyFor(Status(Code::Timeout, "the deadline passed; 0 B of 4 MiB had moved")), HasSubstr("firewall"));
    // Not of --port, which is the control port's.
    EXPECT_THAT(remedyFor(Status(Code::AlreadyExists, "tcp.port 7001, data loop 0: bind 127.0.0.1:7001: in use")),
                HasSubstr("another tcp.port"));
    EXPECT_THAT(remedyFor(Status(Code::AlreadyExists, "rdma_listen on rdma.port 18515: Address already in use")),
                HasSubstr("another rdma.port"));
    EXPECT_THAT(remedyFor(Status(Code::AlreadyExists, "segment 'a' is held by 00ff at 10.0.0.1:4")),
                HasSubstr("--name"));
    EXPECT_THAT(remedyFor(Status(Code::InvalidArgument, "trace 'x': line 2: 'hash_ids[0]' must be a whole number")),
                HasSubstr("trace-gen"));
    EXPECT_THAT(remedyFor(Status(Code::InvalidArgument,
                                 "blocks of 1 MiB x batch 16 x 2 in flight do not fit the 4 KiB of remote memory")),
                HasSubstr("--block_size"));
    EXPECT_THAT(remedyFor(Status(Code::InvalidArgument,
                                 "redis 127.0.0.1:6379: the server has no such database; look at the end of the URI")),
                HasSubstr("0 to 15"));
}

TEST(Remedy, OfTheLibraryIsSaidInWordsOfTheCommandLine) {
    EXPECT_EQ(
        inWordsOfTheCommandLine("no transport; not host: x; a transport that both ends install (installTransport) "
                                "would"),
        "no transport; not host: x");
    EXPECT_EQ(inWordsOfTheCommandLine("'x' is no address; give ip_or_host (--host), or an empty name"),
              "'x' is no address; give --host, or leave --name out");
    EXPECT_EQ(inWordsOfTheCommandLine("'eth0' is an interface; give it as ip_or_host (--host eth0)"),
              "'eth0' is an interface; use it as an address to listen on (--host eth0)");
    EXPECT_EQ(inWordsOfTheCommandLine("anything else"), "anything else");
}

TEST(Remedy, OfASettingIsTheListOfThem) {
    for (const char* message : {"--set: tcp.lanes: '0' is not in 1..64", "--set tcp.lanes: expected KEY=VALUE",
                                "environment: TROUPE_TCP_LANES: '0' is not in 1..64"})
        EXPECT_THAT(remedyFor(Status(Code::InvalidArgument, message)), HasSubstr("`troupe config`")) << message;
}

TEST(Remedy, OfSettingsThatHinderEachOtherIsTheListOfThem) {
    EXPECT_THAT(remedyFor(Status(Code::InvalidArgument,
                                 "settings: peer.tcp_bytes 1MiB is less than tcp.window_bytes 8MiB: ...; raise ...")),
                HasSubstr("`troupe config`"));
}

// As verbs_backend/device.cpp says them; RdmaDevices.* has these messages.
TEST(Remedy, OfNoUsableDeviceIsOneForEachCause) {
    const struct {
        const char* cause;
        const char* remedy;
    } cases[] = {
        {": the kernel's support for them is not there (module ib_uverbs is not loaded)", "modprobe -a ib_uverbs"},
        {": this machine has none", "Soft-RoCE"},
        {"; mlx5_0: open: no access to its /dev/infiniband/uverbs file: Permission denied (errno 13)",
         "--device=/dev/infiniband"},
        {"; mlx5_0 port 1: the port is down", "ip link set"},
        {"; ib0 port 1: the port is initialising: is there a subnet manager?", "opensm"},
        {"; ib0 port 1: the port is armed", "subnet manager has made the port active"},
        {"; mlx5_0 port 1: it has no GID of index 7 (gid_index)", "leave rdma.gid_index"},
        {"; mlx5_0 port 1: no GID with an address that peers can connect to: give its network interface an IP address",
         "ip addr add"},
        {"; mlx5_0: rdma.exclude names it", "--set rdma.exclude="},
        {"; mlx5_0: rdma.devices does not name it", "--set rdma.devices="},
        {"; mlx5_9: rdma.devices names it, but there is none", "is the name in rdma.devices right?"},
    };
    for (const auto& one : cases) {
        const std::string remedy = remedyFor(Status(
            Code::TransportMissing, std::string("cannot install transport 'rdma': no usable RDMA device") + one.cause));
        EXPECT_THAT(remedy, HasSubstr(one.remedy)) << one.cause;
        EXPECT_THAT(remedy, HasSubstr("leave --transport out")) << one.cause;
        std::size_t others = 0;
        for (const auto& other : cases) others += remedy.find(other.remedy) != std::string::npos;
        EXPECT_EQ(others, 1u) << remedy;
    }
    EXPECT_THAT(remedyFor(Status(Code::TransportMissing,
                                 "no usable RDMA device; a port 1: the port is down; b port 1: the port is down; "
                                 "c: rdma.exclude names it")),
                testing::AllOf(HasSubstr("ip link set"), HasSubstr("--set rdma.exclude=")));
}

TEST(Remedy, OfSilenceNamesTheSettingThatBoundsIt) {
    const std::string silent =
        remedyFor(Status(Code::PeerDown,
                         "peer 10.0.0.1:4: silent for longer than keepalive_timeout; last heard of 3001 ms before; "
                         "it went by tcp0; its owner is up, last heard of 10 ms ago"));
    EXPECT_THAT(silent, HasSubstr("--set keepalive_timeout="));
    EXPECT_THAT(silent, Not(HasSubstr("the peer ended")));
    // Whatever broke: it is there again.
    EXPECT_THAT(
        remedyFor(Status(Code::ConnectionLost, "the connection broke; its owner is up, last heard of 1 ms ago")),
        Not(HasSubstr("the peer ended")));
    EXPECT_THAT(remedyFor(Status(Code::PeerDown, "peer 10.0.0.1:4: said goodbye; its owner is down")),
                HasSubstr("the peer ended"));
}

TEST(Remedy, OfAFileThatASettingNamesSaysWhatItIsToHold) {
    const struct {
        const char* message;
        const char* remedy;
    } cases[] = {
        {"auth.key_file: '/k': No such file or directory", "--set auth.key_file=FILE"},
        {"auth.accept_key_file: '/k': its first line is empty", "--set auth.accept_key_file=FILE"},
        {"auth.key_file: '/k': others may read or write it; chmod 600 it, and take another key if they may have read "
         "this one",
         "`stat FILE`"},
        {"auth.key has 3 bytes, 32 to 1024 are due; `openssl rand -hex 32` makes one", "openssl rand"},
        {"redis.password_file '/p': it is a directory", "TROUPE_REDIS_PASSWORD"},
        {"topology.matrix '/m': it is empty", "troupe topo --json"},
        {"cannot start the engine: topology.matrix '/m': it is empty", "troupe topo --json"},
        {"file /c: No such file or directory", "--config takes"},
        {"file /c: tcp.lanes: '0' is not in 1..64", "`troupe config`"},
    };
    for (const auto& one : cases)
        EXPECT_THAT(remedyFor(Status(Code::InvalidArgument, one.message)), HasSubstr(one.remedy)) << one.message;
}

TEST(Remedy, OfAFileIsNotAboutAPeer) {
    for (const char* message :
         {"scenario file nofile: No such file or directory", "file x.json: No such file or directory",
          "cannot start /usr/bin/dot: No such file or directory"})
        EXPECT_THAT(remedyFor(Status(Code::NotFound, message)), Not(HasSubstr("troupe serve"))) << message;
    EXPECT_THAT(remedyFor(Status(Code::NotFound, "scenario file nofile: No such file or directory")),
                HasSubstr("docs/apps.md"));
    EXPECT_THAT(remedyFor(Status(Code::NotFound, "file x.json: No such file or directory")), HasSubstr("--config"));
}

TEST(Remedy, OfAnOwnerThatWasThereIsNotTheName) {
    std::string message = "peer 10.0.0.1:4: connect";
    message += kOwnerEnded;
    const std::string remedy = remedyFor(Status(Code::ConnectionRefused, message));
    EXPECT_THAT(remedy, HasSubstr("the peer ended"));
    EXPECT_THAT(remedy, Not(HasSubstr("name")));
}

TEST(Remedy, AnOwnerThatWasReachedAndIsNotAnyMoreHasEnded) {
    const Status missing(Code::TransportMissing, "no installed transport reaches segment 'a'");
    EXPECT_TRUE(tellsThatOwnerEnded(missing, true));
    EXPECT_FALSE(tellsThatOwnerEnded(missing, false));
    const Status refused(Code::ConnectionRefused, "peer 10.0.0.1:4: connect");
    EXPECT_TRUE(tellsThatOwnerEnded(refused, true));
    EXPECT_TRUE(tellsThatOwnerEnded(refused, false));
    EXPECT_FALSE(tellsThatOwnerEnded({Code::ConnectionLost, "its host transport is about to end"}, true));
    EXPECT_THAT(remedyFor({Code::ConnectionLost, "device rxe_0a port 1 (GID 1: 10.1.0.1) went down"}),
                HasSubstr("link"));
    const std::string rejected = "device s1 at 10.0.0.1:4: the connection was rejected, reason ";
    EXPECT_TRUE(tellsThatOwnerEnded({Code::ConnectionRefused, rejected + "8 (nobody listens there)"}, true));
    const Status by_kernel(Code::ConnectionRefused, rejected + "28 (by the peer's kernel: ...)");
    EXPECT_FALSE(tellsThatOwnerEnded(by_kernel, true));
    EXPECT_THAT(remedyFor(by_kernel), HasSubstr("route"));
}

TEST(Remedy, OfARecordIsNotAboutTheServer) {
    const std::string remedy =
        remedyFor(Status(Code::ProtocolError, "redis 127.0.0.1:6379: segment descriptor: not JSON at byte 3"));
    EXPECT_THAT(remedy, HasSubstr("record"));
    EXPECT_THAT(remedy, Not(HasSubstr("is that a Redis")));
}

TEST(Remedy, OfADeadlineNamesTheSetting) {
    EXPECT_THAT(
        remedyFor(Status(Code::Timeout, "the deadline passed (transfer_timeout, 30s); 1 MiB of 4 MiB had moved")),
        HasSubstr("transfer_timeout"));
}

TEST(Remedy, OfMemoryThatIsNotThereIsLessOfIt) {
    EXPECT_THAT(remedyFor(Status(Code::ResourceExhausted, "there is no memory for 100 TiB: 20 GiB can be had")),
                HasSubstr("--size"));
    EXPECT_THAT(remedyFor(Status(Code::InvalidArgument, "--footprint 1 GiB does not fit the target")),
                HasSubstr("--footprint"));
}

TEST(Remedy, TheLogNamesTheOptionThatTookHostOff) {
    const std::string line =
        "segment 'a' goes by tcp by tcp0; not host: 'a' is another process, and host.peers is off here";
    EXPECT_EQ(inWordsOfTransportOption(line, "tcp"), "segment 'a' goes by tcp by tcp0; not host: --transport tcp");
    EXPECT_EQ(inWordsOfTransportOption("anything else", "tcp"), "anything else");
    EXPECT_EQ(inWordsOfTransportOption("host.peers is off here; not host: x", "tcp"),
              "host.peers is off here; not host: x");
}

TEST(Remedy, IsLeftOutWhereTheMessageSaysItAll) {
    EXPECT_EQ(
        remedyFor(Status(Code::AccessDenied, "control port: bind 127.0.0.1:80: ...; ports below 1024 are for root")),
        "");
    EXPECT_EQ(remedyFor(Status(Code::InvalidArgument, "--size 1 B is too little")), "");
}

}  // namespace
}  // namespace troupe::apps
