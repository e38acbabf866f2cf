// Errors as values. A function that the caller or the world can make fail returns Result<T> or
// Status; our own bugs go to TAEL_CHECK (check.h) and never come through here.
//
// The member names are those of std::expected, so that this can become an alias one day. An error
// is a code, a static string and an optional detail: reporting "out of memory" allocates nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"

namespace tael {

// Few codes, each because a caller acts on it differently (the CLI's exit code, the server's
// status, retry or not).
enum class ErrorCode : uint8_t {
  kInvalidArgument,  // the caller asked for something that cannot be
  kContextExceeded,  // prompt plus answer does not fit the context
  kNotFound,         // no such file
  kIo,               // the world failed: read, map, write
  kMalformed,        // bytes that are not what they claim to be
  kUnsupported,      // well-formed, but not something this build can do
  kOutOfBudget,      // the memory budget says no
  kNoFreeBlocks,     // the KV pool is full; the scheduler may reclaim and retry
  kBusy,             // too much waits already; the caller may come back later
  kCancelled,        // somebody asked to stop
  kInternal,         // a bug that was caught before it did harm
};

// Stable lower-case name ("out_of_budget"), used as `error.code` in JSON.
std::string_view ToString(ErrorCode code);

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  const char* what = "";  // static string
  std::string detail;     // names the thing, the limit and the way out; may be empty

  // "what: detail", or just one of them.
  std::string Message() const;
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : value_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: like expected
  Result(Error error) : value_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool has_value() const { return value_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  // Requires: has_value().
  T& value() & {
    TAEL_CHECK(has_value());
    return *std::get_if<0>(&value_);
  }
  const T& value() const& {
    TAEL_CHECK(has_value());
    return *std::get_if<0>(&value_);
  }
  T&& value() && {
    TAEL_CHECK(has_value());
    return std::move(*std::get_if<0>(&value_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Requires: !has_value().
  const Error& error() const& {
    TAEL_CHECK(!has_value());
    return *std::get_if<1>(&value_);
  }
  Error&& error() && {
    TAEL_CHECK(!has_value());
    return std::move(*std::get_if<1>(&value_));
  }

 private:
  std::variant<T, Error> value_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}  // NOLINT: like expected

  bool has_value() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const& {
    TAEL_CHECK(!ok_);
    return error_;
  }
  Error&& error() && {
    TAEL_CHECK(!ok_);
    return std::move(error_);
  }

 private:
  Error error_;
  bool ok_ = true;
};

using Status = Result<void>;

}  // namespace tael

#define TAEL_CONCAT_INNER(a, b) a##b
#define TAEL_CONCAT(a, b) TAEL_CONCAT_INNER(a, b)

// Returns the error of a Status or Result expression to the caller.
#define TAEL_RETURN_IF_ERROR(expr)                           \
  do {                                                       \
    auto tael_status = (expr);                               \
    if (!tael_status) return std::move(tael_status).error(); \
  } while (false)

// `TAEL_ASSIGN_OR_RETURN(auto x, Make());` declares x, or returns Make()'s error.
#define TAEL_ASSIGN_OR_RETURN(lhs, expr) \
  TAEL_ASSIGN_OR_RETURN_IMPL(TAEL_CONCAT(tael_result_, __LINE__), lhs, expr)
#define TAEL_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                               \
  if (!tmp) return std::move(tmp).error();         \
  lhs = *std::move(tmp)
