#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace troupe {

/// The first line of a password file. InvalidArgument names the file and what is wrong with it. It blocks.
Result<std::string> readPasswordFile(const std::string& path);

/// A password that stands in a file, and may change there while engines run: after a refusal the file is read again.
///
/// Used on one thread, which waits for no disk: a thread of its own reads, and what it found is there for one of the
/// next attempts to connect.
class RedisPasswordFile {
  public:
    RedisPasswordFile(std::string path, std::string password);
    /// A reading that a file system holds up is left behind.
    ~RedisPasswordFile();
    RedisPasswordFile(const RedisPasswordFile&) = delete;
    RedisPasswordFile& operator=(const RedisPasswordFile&) = delete;

    /// The latest that could be read.
    const std::string& password();
    /// The server does not take it.
    void refused();

  private:
    struct Reading;
    const std::string path_;
    std::string password_;
    std::shared_ptr<Reading> reading_;  ///< Null when there is none under way.

    void takeOver();
};

}  // namespace troupe
