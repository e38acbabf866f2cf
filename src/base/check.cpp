#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace tael {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "tael: bug: %s is false at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace tael
