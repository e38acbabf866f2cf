// TAEL_CHECK: for our own bugs only. It is active in every build and ends the process with the
// place and the condition. No byte from a file, a socket or a caller may reach one: those get a
// Result (result.h).
#pragma once

namespace tael {

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace tael

#define TAEL_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::tael::CheckFailed(#condition, __FILE__, __LINE__))
