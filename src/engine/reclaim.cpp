#include "engine/reclaim.h"

namespace tael::engine {

uint64_t Reclaim(Reclaimable& memory, uint64_t bytes, ReclaimStep last) {
  uint64_t freed = 0;
  const auto take = [&](ReclaimStep step, uint64_t (Reclaimable::*give)(uint64_t)) {
    if (step <= last && freed < bytes) freed += (memory.*give)(bytes - freed);
  };
  while (true) {
    take(ReclaimStep::kIdlePrefixRows, &Reclaimable::EvictIdleRows);
    take(ReclaimStep::kWindows, &Reclaimable::ShrinkWindows);
    if (freed >= bytes || last < ReclaimStep::kPreempt) return freed;
    uint64_t more = 0;
    if (!memory.PreemptLast(more)) return freed;
    freed += more;
  }
}

}  // namespace tael::engine
