// One ledger over every byte: a hard cap, reserved before memory is touched.
//
//   limit      what the user gave (0 = none: account only)
//   reserved   promised to somebody; sum over tags <= limit at every moment
//   used       the part of it that has been touched
//   high water the largest `reserved` so far
//
// Linux overcommits, so running out of memory is never an allocation that fails: it is a Reserve()
// that says no, before anything happened. Thread-safe; Reserve never blocks and never allocates.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace tael::mem {

// The parts of the ledger, in the order in which they are shown.
enum class MemoryTag : uint8_t {
  kWeights,      // the mapped model file
  kKv,           // KV blocks
  kActivations,  // arena, packed activations, kernel scratch, logits
  kTokenizer,    // vocabulary tables
  kPrefix,       // idle prefix blocks
  kSnapshot,     // buffers of snapshots in flight
  kServer,       // connections, requests
  kKernel,       // page tables, sockets: charged by a cgroup, not shown in PSS
  kRuntime,      // code, libc, small heap: measured at start
};
inline constexpr size_t kNumMemoryTags = 9;
std::string_view ToString(MemoryTag tag);

class MemoryBudget;

// RAII handle on reserved bytes; gives them back when it dies. Move-only.
class [[nodiscard]] Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Reset(); }

  uint64_t bytes() const { return bytes_; }
  uint64_t used_bytes() const { return used_; }

  // Sets how many of the reserved bytes have been touched. Requires: used <= bytes().
  void SetUsed(uint64_t used);
  void Reset();

 private:
  friend class MemoryBudget;
  Reservation(MemoryBudget* budget, MemoryTag tag, uint64_t bytes)
      : budget_(budget), bytes_(bytes), tag_(tag) {}

  MemoryBudget* budget_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t used_ = 0;
  MemoryTag tag_ = MemoryTag::kRuntime;
};

struct LedgerPart {
  uint64_t reserved_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t high_water_bytes = 0;
};

struct LedgerSnapshot {
  uint64_t limit_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t high_water_bytes = 0;
  std::array<LedgerPart, kNumMemoryTags> parts;
};

class MemoryBudget {
 public:
  // limit_bytes 0: no cap, everything is still counted.
  explicit MemoryBudget(uint64_t limit_bytes) : limit_(limit_bytes) {}
  ~MemoryBudget();  // Requires: no reservation is alive.
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Fails: kOutOfBudget; then nothing has changed.
  Result<Reservation> Reserve(MemoryTag tag, uint64_t bytes);
  // For heap that is used at once. What is small is measured as a whole (part `runtime`): then the
  // reservation is empty. Fails: kOutOfBudget.
  Result<Reservation> ReserveHeap(MemoryTag tag, uint64_t bytes);

  uint64_t limit_bytes() const { return limit_; }
  uint64_t reserved_bytes() const { return reserved_.load(std::memory_order_relaxed); }
  // Bytes that Reserve() would still grant; UINT64_MAX without a cap.
  uint64_t free_bytes() const;
  LedgerSnapshot Snapshot() const;

 private:
  friend class Reservation;
  struct Counter {
    std::atomic<uint64_t> reserved{0};
    std::atomic<uint64_t> used{0};
    std::atomic<uint64_t> high_water{0};
  };
  void Release(MemoryTag tag, uint64_t bytes, uint64_t used);
  void AdjustUsed(MemoryTag tag, uint64_t before, uint64_t after);

  const uint64_t limit_;
  std::atomic<uint64_t> reserved_{0};
  std::atomic<uint64_t> high_water_{0};
  std::array<Counter, kNumMemoryTags> counters_;
};

}  // namespace tael::mem
