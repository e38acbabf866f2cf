#include "base/fault.h"

#include <array>
#include <charconv>
#include <cstdlib>

namespace tael {
namespace {

constexpr std::array<std::string_view, kNumFaultKinds> kNames = {"reserve", "map", "read",
                                                                 "thread"};

// Occurrences until the one that fails; 0: it has been, or there is none.
std::array<std::atomic<uint64_t>, kNumFaultKinds> remaining{};

std::atomic<uint64_t>& RemainingOf(FaultKind kind) { return remaining[static_cast<size_t>(kind)]; }

void Arm(FaultKind kind, uint64_t n) {
  RemainingOf(kind).store(n, std::memory_order_relaxed);
  fault_internal::armed.store(true, std::memory_order_relaxed);
}

// A word that is not understood arms nothing: the tests that set it would see no error.
[[maybe_unused]] const bool armed_by_environment = [] {
  const char* const text = std::getenv("TAEL_FAULT");
  return text != nullptr && ArmFault(text);
}();

}  // namespace

namespace fault_internal {

// Constant-initialised, so it is there before any dynamic initialiser sets it.
constinit std::atomic<bool> armed{false};

bool CountDown(FaultKind kind) {
  std::atomic<uint64_t>& left = RemainingOf(kind);
  uint64_t seen = left.load(std::memory_order_relaxed);
  while (seen != 0 && !left.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed)) {
  }
  return seen == 1;
}

}  // namespace fault_internal

std::string_view ToString(FaultKind kind) { return kNames[static_cast<size_t>(kind)]; }

FaultInjection::FaultInjection(FaultKind kind, uint64_t n) : kind_(kind) { Arm(kind, n); }

FaultInjection::~FaultInjection() {
  RemainingOf(kind_).store(0, std::memory_order_relaxed);
  fault_internal::armed.store(false, std::memory_order_relaxed);
}

bool FaultInjection::fired() const {
  return RemainingOf(kind_).load(std::memory_order_relaxed) == 0;
}

bool ArmFault(std::string_view text) {
  for (size_t i = 0; i < kNumFaultKinds; ++i) {
    if (!text.starts_with(kNames[i]) || text.substr(kNames[i].size()).substr(0, 1) != ":") continue;
    text.remove_prefix(kNames[i].size() + 1);
    uint64_t n = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (ec != std::errc{} || end != text.data() + text.size() || n == 0) return false;
    Arm(static_cast<FaultKind>(i), n);
    return true;
  }
  return false;
}

}  // namespace tael
