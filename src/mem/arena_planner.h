// Places buffers of known lifetimes into one arena: best fit into the gaps between those that live
// at the same time, over the op list instead of at run time, so that the same numbers serve
// `tael plan` and the allocation. Knowing all lifetimes it need not place them in the order in
// which a run asks for them, as an allocator has to; that is what keeps fragmentation low.
//
// A buffer lives from the op that writes it first to its last consumer (seed 2's
// `last_consumer_op`); a persistent one lives for the whole pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tael::mem {

struct BufferLifetime {
  uint64_t bytes = 0;
  uint32_t first_op = 0;
  uint32_t last_op = 0;  // inclusive; >= first_op
};

struct ArenaPlan {
  std::vector<uint64_t> offsets;  // by buffer, multiples of the alignment
  uint64_t total_bytes = 0;       // size of the arena
  uint64_t peak_live_bytes = 0;   // largest sum of live buffers: no plan can be smaller
  uint64_t sum_bytes = 0;         // what holding everything would take
};

// Requires: alignment is a power of two.
ArenaPlan PlanArena(std::span<const BufferLifetime> buffers, uint64_t alignment = 64);

}  // namespace tael::mem
