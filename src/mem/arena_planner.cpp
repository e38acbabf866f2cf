#include "mem/arena_planner.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace tael::mem {
namespace {

// Free extents by offset; the last one is open-ended and grows the arena.
class FreeList {
 public:
  uint64_t Take(uint64_t bytes) {
    size_t best = extents_.size() - 1;
    for (size_t i = 0; i + 1 < extents_.size(); ++i) {
      if (extents_[i].size >= bytes &&
          (best + 1 == extents_.size() || extents_[i].size < extents_[best].size)) {
        best = i;
      }
    }
    const uint64_t offset = extents_[best].offset;
    extents_[best].offset += bytes;
    extents_[best].size -= bytes;
    if (extents_[best].size == 0) {
      extents_.erase(extents_.begin() + static_cast<std::ptrdiff_t>(best));
    }
    return offset;
  }

  void Give(uint64_t offset, uint64_t bytes) {
    auto next = std::lower_bound(extents_.begin(), extents_.end(), offset,
                                 [](const Extent& e, uint64_t o) { return e.offset < o; });
    next = extents_.insert(next, {offset, bytes});
    Coalesce(next);
    if (next != extents_.begin()) Coalesce(next - 1);
  }

 private:
  struct Extent {
    uint64_t offset;
    uint64_t size;
  };
  void Coalesce(std::vector<Extent>::iterator extent) {
    const auto next = extent + 1;
    if (next == extents_.end() || extent->offset + extent->size != next->offset) return;
    extent->size += next->size;
    extents_.erase(next);
  }

  std::vector<Extent> extents_ = {{0, uint64_t{1} << 62}};
};

}  // namespace

ArenaPlan PlanArena(std::span<const BufferLifetime> buffers, uint64_t alignment) {
  ArenaPlan plan;
  plan.offsets.resize(buffers.size());
  uint32_t last_op = 0;
  for (const BufferLifetime& buffer : buffers) last_op = std::max(last_op, buffer.last_op);

  // Large first where several start at one op: small ones fill the gaps.
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return buffers[a].bytes > buffers[b].bytes; });

  FreeList free_list;
  uint64_t live = 0;
  for (uint32_t op = 0; op <= last_op; ++op) {
    for (size_t i : order) {
      if (buffers[i].first_op != op || buffers[i].bytes == 0) continue;
      const uint64_t bytes = RoundUp(buffers[i].bytes, alignment);
      plan.offsets[i] = free_list.Take(bytes);
      plan.total_bytes = std::max(plan.total_bytes, plan.offsets[i] + bytes);
      plan.sum_bytes += bytes;
      live += bytes;
    }
    plan.peak_live_bytes = std::max(plan.peak_live_bytes, live);
    for (size_t i : order) {
      if (buffers[i].last_op != op || buffers[i].bytes == 0) continue;
      const uint64_t bytes = RoundUp(buffers[i].bytes, alignment);
      free_list.Give(plan.offsets[i], bytes);
      live -= bytes;
    }
  }
  return plan;
}

}  // namespace tael::mem
