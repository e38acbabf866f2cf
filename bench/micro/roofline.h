// What this machine can do at most: bytes read per second, and int8 multiply-accumulates per
// second. Every speed of bench/ is given beside one of the two. Both are measured, since neither is
// a constant: clocks and neighbours on the host change them by a third within minutes.
#pragma once

#include <cstddef>

#include "pinned_team.h"

namespace tael::bench {

// More than any cache holds, so that every pass comes from memory.
inline constexpr size_t kReadBytes = size_t{512} << 20;

// Bytes per second of `team` reading anonymous memory in order, in pages of 4 KiB as a mapped file
// has them: the median of some passes. Takes about 0.4 s, the first page faults included.
double ReadBandwidth(PinnedTeam& team);

// Multiply-accumulates per second of the widest int8 dot product, accumulators in registers and no
// loads: the best of some passes of 2 ms. 0 where no such loop is written for the CPU.
double Int8Peak(PinnedTeam& team);

// The instruction behind Int8Peak: "vpdpbusd zmm" ...; "none".
const char* Int8Instruction();

}  // namespace tael::bench
