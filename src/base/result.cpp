#include "base/result.h"

namespace tael {

std::string_view ToString(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kContextExceeded:
      return "context_length_exceeded";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "io_error";
    case ErrorCode::kMalformed:
      return "malformed";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kOutOfBudget:
      return "out_of_budget";
    case ErrorCode::kNoFreeBlocks:
      return "no_free_blocks";
    case ErrorCode::kBusy:
      return "busy";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kInternal:
      break;
  }
  return "internal";
}

std::string Error::Message() const {
  if (detail.empty()) return what;
  if (*what == '\0') return detail;
  return std::string(what) + ": " + detail;
}

}  // namespace tael
