// What this machine can do at most: bytes read per second, and int8 multiply-accumulates per
// second. Every speed of bench/ is given beside one of the two. Both are measured, since neither is
// a constant: clocks and neighbours on the host change them by a third within minutes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pinned_team.h"

namespace tael::bench {

// Holds the memory that it reads: more than any cache does. Used by the thread that owns `team`.
class Roofline {
 public:
  explicit Roofline(PinnedTeam& team);  // ends the program if there is no memory for it
  Roofline(const Roofline&) = delete;
  Roofline& operator=(const Roofline&) = delete;
  ~Roofline();

  // Bytes per second of the team reading anonymous memory in order, in pages of 4 KiB as a mapped
  // file has them: the median of some passes, 0.2 s in all.
  double ReadBandwidth();

  // Multiply-accumulates per second of the widest int8 dot product, accumulators in registers and
  // no loads: the best of some passes of 2 ms. 0 where no such loop is written for the CPU.
  double Int8Peak();

 private:
  PinnedTeam& team_;
  uint64_t* words_ = nullptr;
};

// The instruction behind Int8Peak: "vpdpbusd zmm" ...; "none".
const char* Int8Instruction();

}  // namespace tael::bench
