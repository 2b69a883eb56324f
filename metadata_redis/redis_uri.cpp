#include "metadata_redis/redis_uri.h"

#include <sys/un.h>

#include <charconv>
#include <optional>
#include <system_error>
#include <utility>

namespace troupe {

namespace {

constexpr std::string_view kServerScheme = "redis://";
constexpr std::string_view kUnixScheme = "redis+unix://";
constexpr std::string_view kSentinelScheme = "redis+sentinel://";

// What the servers listen on by themselves (redis.conf, sentinel.conf).
constexpr std::uint16_t kServerPort = 6379;
constexpr std::uint16_t kSentinelPort = 26379;

constexpr std::size_t kMaxSentinels = 64;
/// A server's `databases` is 16 by default; more than this nobody has.
constexpr unsigned kMaxDatabase = 1u << 20;

bool startsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

int hexDigit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/// None when a '%' is not followed by two hexadecimal digits, or stands for a NUL.
std::optional<std::string> percentDecoded(std::string_view text) {
    std::string result;
    result.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            result.push_back(text[i]);
            continue;
        }
        const int high = i + 2 < text.size() ? hexDigit(text[i + 1]) : -1;
        const int low = i + 2 < text.size() ? hexDigit(text[i + 2]) : -1;
        if (high < 0 || low < 0 || high * 16 + low == 0) return std::nullopt;
        result.push_back(static_cast<char>(high * 16 + low));
        i += 2;
    }
    return result;
}

/// Errors of one URI, with its text and without its secrets.
class Parser {
  public:
    explicit Parser(std::string_view text) : whole_(text) {}

    Result<RedisUri> parse() {
        std::string_view rest = whole_;
        if (startsWith(rest, kServerScheme)) {
            uri_.kind = RedisUri::Kind::Server;
            rest.remove_prefix(kServerScheme.size());
        } else if (startsWith(rest, kUnixScheme)) {
            uri_.kind = RedisUri::Kind::Unix;
            rest.remove_prefix(kUnixScheme.size());
        } else if (startsWith(rest, kSentinelScheme)) {
            uri_.kind = RedisUri::Kind::Sentinel;
            rest.remove_prefix(kSentinelScheme.size());
        } else {
            return bad("the scheme is none of redis://, redis+unix:// and redis+sentinel://");
        }
        // The authority ends at the first slash; a password with one must have it as %2F.
        const std::size_t slash = rest.find('/');
        std::string_view authority = rest.substr(0, slash);
        const std::string_view path = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
        if (const std::size_t at = authority.rfind('@'); at != std::string_view::npos) {
            if (Status status = parseCredentials(authority.substr(0, at)); !status) return status;
            authority.remove_prefix(at + 1);
        } else if (path.find('@') != std::string_view::npos && uri_.kind != RedisUri::Kind::Unix) {
            return bad("a '/' in user or password must be written as %2F");
        }
        Status status = uri_.kind == RedisUri::Kind::Server ? parseServer(authority, path)
                        : uri_.kind == RedisUri::Kind::Unix ? parseUnix(authority, path)
                                                            : parseSentinel(authority, path);
        if (!status) return status;
        return std::move(uri_);
    }

  private:
    Status bad(const std::string& why) const {
        return {Code::InvalidArgument, "'" + withoutCredentials(whole_) + "': " + why};
    }

    Status parseCredentials(std::string_view text) {
        const std::size_t colon = text.find(':');
        const bool has_password = colon != std::string_view::npos;
        auto user = percentDecoded(text.substr(0, colon));
        auto password = percentDecoded(has_password ? text.substr(colon + 1) : std::string_view());
        if (!user || !password) return bad("user or password has a '%' that two hexadecimal digits do not follow");
        if (has_password && password->empty()) return bad("the password before the '@' is empty");
        if (!has_password && user->empty()) return bad("there is neither user nor password before the '@'");
        uri_.user = std::move(*user);
        uri_.password = std::move(*password);
        return Status::ok();
    }

    Status parseHost(std::string_view text, std::uint16_t default_port) {
        auto endpoint = Endpoint::parse(text);
        if (!endpoint) return bad(endpoint.status().message());
        if (endpoint->host.find(':') != std::string::npos && text.front() != '[')
            return bad("the IPv6 address '" + std::string(text) + "' must stand in brackets");
        if (endpoint->port == 0) {
            if (text.back() == '0') return bad("port 0 of '" + std::string(text) + "' is none to connect to");
            endpoint->port = default_port;
        }
        uri_.hosts.push_back(std::move(*endpoint));
        return Status::ok();
    }

    Status parseDatabase(std::string_view text) {
        const char* const last = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), last, uri_.database);
        if (error != std::errc() || rest != last || uri_.database > kMaxDatabase)
            return bad("the database '" + std::string(text) + "' is not a number from 0 to " +
                       std::to_string(kMaxDatabase));
        return Status::ok();
    }

    Status parseServer(std::string_view authority, std::string_view path) {
        if (authority.empty()) return bad("the host is missing; expected redis://host:port");
        if (Status status = parseHost(authority, kServerPort); !status) return status;
        return path.empty() ? Status::ok() : parseDatabase(path);
    }

    Status parseUnix(std::string_view authority, std::string_view path) {
        if (!authority.empty()) return bad("the path must be absolute; expected redis+unix:///path");
        constexpr std::string_view kQuery = "?db=";
        if (const std::size_t query = path.find('?'); query != std::string_view::npos) {
            if (path.substr(query, kQuery.size()) != kQuery) return bad("after the path only ?db=N is known");
            if (Status status = parseDatabase(path.substr(query + kQuery.size())); !status) return status;
            path = path.substr(0, query);
        }
        auto decoded = percentDecoded(path);
        if (!decoded) return bad("the path has a '%' that two hexadecimal digits do not follow");
        if (decoded->empty()) return bad("the path is missing; expected redis+unix:///path");
        uri_.path = "/" + *decoded;
        if (uri_.path.size() >= sizeof(sockaddr_un::sun_path))
            return bad("the path has " + std::to_string(uri_.path.size()) + " bytes, a socket's at most " +
                       std::to_string(sizeof(sockaddr_un::sun_path) - 1));
        return Status::ok();
    }

    Status parseSentinel(std::string_view authority, std::string_view path) {
        while (true) {
            const std::size_t comma = authority.find(',');
            const std::string_view one = authority.substr(0, comma);
            if (one.empty()) return bad("a sentinel's host is missing; expected redis+sentinel://host:port,host/name");
            if (uri_.hosts.size() == kMaxSentinels) return bad("more than " + std::to_string(kMaxSentinels) + " hosts");
            if (Status status = parseHost(one, kSentinelPort); !status) return status;
            if (comma == std::string_view::npos) break;
            authority.remove_prefix(comma + 1);
        }
        const std::size_t slash = path.find('/');
        auto name = percentDecoded(path.substr(0, slash));
        if (!name || name->empty())
            return bad("the master's name is missing; expected redis+sentinel://host:port,host/name");
        uri_.master_name = std::move(*name);
        return slash == std::string_view::npos ? Status::ok() : parseDatabase(path.substr(slash + 1));
    }

    const std::string_view whole_;
    RedisUri uri_;
};

}  // namespace

Result<RedisUri> RedisUri::parse(std::string_view text) { return Parser(text).parse(); }

bool RedisUri::isRedis(std::string_view text) {
    return startsWith(text, kServerScheme) || startsWith(text, kUnixScheme) || startsWith(text, kSentinelScheme);
}

std::string RedisUri::toString() const {
    if (kind == Kind::Unix)
        return std::string(kUnixScheme) + path + (database == 0 ? "" : "?db=" + std::to_string(database));
    std::string text(kind == Kind::Server ? kServerScheme : kSentinelScheme);
    for (const Endpoint& host : hosts) text += (&host == &hosts.front() ? "" : ",") + host.toString();
    if (kind == Kind::Sentinel) text += "/" + master_name;
    return database == 0 ? text : text + "/" + std::to_string(database);
}

Status addConfiguredPassword(RedisUri& uri, const Config& settings) {
    if (!uri.password.empty()) return Status::ok();
    if (!settings.redis_password.empty()) {
        uri.password = settings.redis_password;
        return Status::ok();
    }
    const std::string& path = settings.redis_password_file;
    if (path.empty()) {
        if (uri.user.empty()) return Status::ok();
        // What stands there may be a password that lacks its colon, so it is not repeated.
        return {Code::InvalidArgument, "'" + uri.toString() +
                                           "' names a user and there is no password: give redis.password or "
                                           "redis.password_file, or write user:password@, or :password@"};
    }
    auto line = readPasswordFile(path);
    if (!line) return line.status();
    uri.password = std::move(*line);
    uri.password_file = std::make_shared<RedisPasswordFile>(path, uri.password);
    return Status::ok();
}

std::string withoutCredentials(std::string_view text) {
    // The last '@' of all: better a path cut off than a password shown.
    const std::size_t at = text.rfind('@');
    if (at == std::string_view::npos) return std::string(text);
    const std::size_t scheme = text.find("://");
    const std::string_view before =
        scheme == std::string_view::npos || scheme > at ? std::string_view() : text.substr(0, scheme + 3);
    return std::string(before) + "***" + std::string(text.substr(at));
}

}  // namespace troupe
