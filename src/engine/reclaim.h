// In which order memory is taken back, when a pass finds no blocks or somebody asks for a trim:
//
//   1  idle prefix rows, least recently used first          nobody notices
//   2  windows of running sequences, down to their floor    answers get worse
//   3  preempt the sequence that is due last                it is computed again later
//   -  nothing is left: the caller refuses
#pragma once

#include <cstdint>

namespace tael::engine {

enum class ReclaimStep : uint8_t { kIdlePrefixRows, kWindows, kPreempt };

// What the order works on. Each gives back about `bytes`, if it has so many, and returns how many
// it gave.
class Reclaimable {
 public:
  virtual uint64_t EvictIdleRows(uint64_t bytes) = 0;
  virtual uint64_t ShrinkWindows(uint64_t bytes) = 0;
  // One sequence; false when only one is left. What it held may become idle rows first.
  virtual bool PreemptLast(uint64_t& freed_bytes) = 0;

 protected:
  ~Reclaimable() = default;
};

// Goes through the steps up to `last`, and again after each preemption, until `bytes` have been
// given back or nothing is left. Returns how many.
uint64_t Reclaim(Reclaimable& memory, uint64_t bytes, ReclaimStep last);

}  // namespace tael::engine
