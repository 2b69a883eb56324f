#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {

/// What went wrong, as a program can act on it. The numbers are stable: they cross the wire.
enum class Code : int {
    Ok = 0,
    InvalidArgument = 1,       ///< The call can never work as given; nothing was changed.
    NotInitialised = 2,        ///< init() has not succeeded, or freeEngine() was called.
    AddressOverlapped = 3,     ///< The range shares bytes with a registered or in-flight registration.
    AddressNotRegistered = 4,  ///< No registered region starts there, or covers the whole range.
    /// Not allowed: memory that is local-only, read-only, or lost its rights; a cluster key that is missing or differs;
    /// a store that refuses this user; a port or a device that this user may not have; faults() without the setting.
    AccessDenied = 5,
    NotFound = 6,            ///< No such segment, transport or key.
    StaleHandle = 7,         ///< A segment or batch id that was closed, freed or never given out.
    BatchBusy = 8,           ///< Work is still running on the batch or region.
    CapacityExceeded = 9,    ///< A stated bound (batch capacity, queue, frame length) would be passed.
    TransportMissing = 10,   ///< No installed transport reaches the target.
    ConnectionRefused = 11,  ///< The peer's host answered: nobody listens there.
    ConnectionLost = 12,     ///< An established connection ended while work was on it.
    Timeout = 13,            ///< The deadline passed first.
    Canceled = 14,           ///< The caller asked for the end, of the task, its segment or the whole engine.
    /// The peer was declared dead. Of a store: it answers, but cannot be used now (Redis loads, is busy or read-only).
    PeerDown = 15,
    StaleIncarnation = 16,   ///< Another process (or a restarted one) answers at that address.
    ProtocolError = 17,      ///< The peer sent bytes that the protocol does not allow.
    ChecksumMismatch = 18,   ///< CRC32C of the payload differs: bytes were damaged on the way.
    ResourceExhausted = 19,  ///< The system refused memory, descriptors, threads or ports.
    Unsupported = 20,        ///< This build or platform cannot do it.
    AlreadyExists = 21,      ///< The name or transport is taken.
    Internal = 22,           ///< A defect of Troupe itself; please report it.
    PathReset = 23,          ///< A path was ended for another task's sake. Never crosses the wire.
    DeviceLost = 24,         ///< A GPU's context broke: nothing of this process can use that GPU any more.
};

/// The name of a code, e.g. "AddressOverlapped".
std::string_view codeName(Code code);

/// The outcome of an operation: Ok, or a code with a message that names the offending value and the remedy.
///
/// Ok costs one null pointer and no allocation. Thread-safe to read, not to assign.
class [[nodiscard]] Status {
  public:
    Status() = default;
    Status(Code code, std::string message);

    static Status ok() { return {}; }

    bool isOk() const { return !state_; }
    explicit operator bool() const { return isOk(); }
    Code code() const { return state_ ? state_->code : Code::Ok; }
    /// The message without the code's name; empty for Ok.
    const std::string& message() const;
    /// "AddressOverlapped: [0x1000, 0x2000) overlaps ..."; "Ok" for Ok.
    std::string toString() const;
    /// The same status with `context` and ": " before its message; Ok stays Ok.
    Status withContext(std::string_view context) const;
    /// The same said with another code: its own code's name comes before the message, unless it is that code already.
    /// Ok stays Ok.
    Status withCode(Code code) const;

  private:
    struct State {
        Code code;
        std::string message;
    };
    std::shared_ptr<const State> state_;
};

/// Ends the program (abort) after a line on standard error that says `status`.
[[noreturn]] void abortForLackOfValue(const Status& status);

/// A value, or the Status that says why there is none.
///
/// Look whether it is Ok before the value is used. Without one `value()` ends the program with the status on standard
/// error, in every build; `*` and `->` are checked by assert alone, so not with NDEBUG.
template <class T>
class [[nodiscard]] Result {
  public:
    // Implicit, so that a function returns a value or a Status as it is.
    Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
    Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
    Result(Code code, std::string message) : status_(code, std::move(message)) {}

    bool isOk() const { return value_.has_value(); }
    explicit operator bool() const { return isOk(); }
    const Status& status() const { return status_; }

    T& value() & {
        if (!value_) abortForLackOfValue(status_);
        return *value_;
    }
    const T& value() const& {
        if (!value_) abortForLackOfValue(status_);
        return *value_;
    }
    T&& value() && {
        if (!value_) abortForLackOfValue(status_);
        return std::move(*value_);
    }
    T& operator*() { return held(); }
    const T& operator*() const { return held(); }
    T* operator->() { return &held(); }
    const T* operator->() const { return &held(); }

  private:
    T& held() {
        assert(value_ && "a Result without a value was used; status() says why there is none");
        return *value_;
    }
    const T& held() const {
        assert(value_ && "a Result without a value was used; status() says why there is none");
        return *value_;
    }

    std::optional<T> value_;
    Status status_;
};

}  // namespace troupe
