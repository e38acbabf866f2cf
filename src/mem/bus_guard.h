// A mapped file that somebody truncates raises SIGBUS at the first read behind its new end. For
// registered ranges the signal is turned into a flag: zero pages take the place of the lost ones,
// the read goes on, and whoever uses the range looks at the flag afterwards and reports an error.
//
// The handler is installed once, with the first registration, and passes every other SIGBUS on to
// the handler that was there before.
#pragma once

#include <cstddef>

#include "base/result.h"

namespace tael::mem {

// RAII registration of [begin, begin + size). Move-only.
class [[nodiscard]] BusGuard {
 public:
  static constexpr size_t kMaxGuards = 64;

  // Fails: kIo when the handler cannot be installed or kMaxGuards ranges are registered already.
  static Result<BusGuard> Create(const std::byte* begin, size_t size);

  BusGuard() = default;
  BusGuard(BusGuard&& other) noexcept;
  BusGuard& operator=(BusGuard&& other) noexcept;
  ~BusGuard() { Reset(); }

  // True once a page of the range could not be read. Any thread.
  bool damaged() const;

 private:
  explicit BusGuard(int slot) : slot_(slot) {}
  void Reset();
  int slot_ = -1;
};

}  // namespace tael::mem
