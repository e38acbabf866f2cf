// Points at which the world may say no, and a way to make it say so: "the n-th one fails". For the
// tests that prove that every refusal is an error with a message, and leaves nothing behind.
//
//   kReserve   MemoryBudget::Reserve
//   kMap       an address range: a file's or anonymous
//   kRead      opening or reading a file
//   kThread    starting a thread
//
// Off unless something arms it: FaultInjection in a test, or the environment of the whole program,
// TAEL_FAULT=KIND:N (reserve, map, read or thread). Compiled in always, so that what is tested is
// what is shipped; while off it costs one relaxed load at a place that makes a system call anyway.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tael {

enum class FaultKind : uint8_t { kReserve, kMap, kRead, kThread };
inline constexpr size_t kNumFaultKinds = 4;
std::string_view ToString(FaultKind kind);

namespace fault_internal {
extern std::atomic<bool> armed;
bool CountDown(FaultKind kind);
}  // namespace fault_internal

// True when this occurrence has to fail. Any thread.
inline bool FaultHere(FaultKind kind) {
  return fault_internal::armed.load(std::memory_order_relaxed) && fault_internal::CountDown(kind);
}

// The n-th occurrence of `kind` from now on fails, once, on whatever thread; n is 1 or more.
// One at a time.
class [[nodiscard]] FaultInjection {
 public:
  FaultInjection(FaultKind kind, uint64_t n);
  ~FaultInjection();
  FaultInjection(const FaultInjection&) = delete;
  FaultInjection& operator=(const FaultInjection&) = delete;

  // False while there have been fewer than n.
  bool fired() const;

 private:
  FaultKind kind_;
};

// Arms what "KIND:N" says; false, arming nothing, for anything else.
bool ArmFault(std::string_view text);

}  // namespace tael
