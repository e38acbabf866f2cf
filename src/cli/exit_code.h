// Exit codes: scripts depend on them.
#pragma once

#include "base/result.h"

namespace tael::cli {

inline constexpr int kExitOk = 0;
inline constexpr int kExitRuntime = 1;
inline constexpr int kExitUsage = 2;   // flag, value, no prompt tokens, prompt too long
inline constexpr int kExitBudget = 3;  // does not fit the memory budget
inline constexpr int kExitModel = 4;   // missing, unreadable, unsupported, malformed
inline constexpr int kExitInterrupted = 130;

// Files other than the model report their faults as kInvalidArgument: they came from a flag.
constexpr int ExitCodeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kContextExceeded:
      return kExitUsage;
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
    case ErrorCode::kMalformed:
    case ErrorCode::kUnsupported:
      return kExitModel;
    case ErrorCode::kOutOfBudget:
      return kExitBudget;
    case ErrorCode::kCancelled:
      return kExitInterrupted;
    case ErrorCode::kNoFreeBlocks:
    case ErrorCode::kBusy:
    case ErrorCode::kInternal:
      return kExitRuntime;
  }
  return kExitRuntime;
}

}  // namespace tael::cli
