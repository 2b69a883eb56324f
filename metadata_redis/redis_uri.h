#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/endpoint.h"
#include "base/status.h"
#include "metadata_redis/redis_password.h"

namespace troupe {

/// Where Redis is and who we are there:
///
///     redis://[credentials@]host:port[/db]        one server; "[v6]:port" for IPv6, port 6379 if none
///     redis+unix://[credentials@]/path[?db=N]     one server on a socket of this machine
///     redis+sentinel://[credentials@]host[:port],host[:port].../name[/db]
///                                                 whichever server these sentinels call master of `name`;
///                                                 port 26379 if none
///
/// The credentials are "user:password"; ":password", without user (the server's `requirepass`, or the user "default");
/// or "user", whose password comes from the settings. They are percent-decoded, so is the path.
struct RedisUri {
    enum class Kind { Server, Unix, Sentinel };
    Kind kind = Kind::Server;
    std::vector<Endpoint> hosts;  ///< One server, or the sentinels. Hosts may be names. Empty for Unix.
    std::string path;             ///< Unix.
    std::string master_name;      ///< Sentinel.
    std::string user;             ///< Empty: none.
    std::string password;
    /// Where the password comes from, if from a file; shared by copies, and used on the reactor's turn.
    std::shared_ptr<RedisPasswordFile> password_file;
    unsigned database = 0;

    /// As of now.
    const std::string& currentPassword() const { return password_file ? password_file->password() : password; }

    /// InvalidArgument says which part of the text is wrong and what is expected, and never repeats user or password.
    static Result<RedisUri> parse(std::string_view text);
    /// True when `text` has one of the schemes above.
    static bool isRedis(std::string_view text);
    /// Without user and password: "redis://10.0.0.1:6379/0".
    std::string toString() const;
};

/// Fills in the password that the URI leaves out: redis.password, or the first line of redis.password_file.
/// InvalidArgument when that file cannot be read, or when a user is named and no password to be had.
Status addConfiguredPassword(RedisUri& uri, const Config& settings);

/// Any text that was meant to be a URI, without what stands before its last '@': for messages about ones that do not
/// parse.
std::string withoutCredentials(std::string_view text);

}  // namespace troupe
