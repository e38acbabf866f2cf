// Starting a thread, which the system may refuse.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/fault.h"
#include "base/result.h"

namespace tael {

// Fails: kIo, with `what` (a static string) as its text.
template <class Body>
Result<std::thread> StartThread(const char* what, Body body) {
  if (!FaultHere(FaultKind::kThread)) {
    try {
      return std::thread(std::move(body));
    } catch (const std::system_error&) {
      // Said below.
    }
  }
  return Error{ErrorCode::kIo, what,
               "the system has no room for another thread; raise its limit (ulimit -u)"};
}

}  // namespace tael
