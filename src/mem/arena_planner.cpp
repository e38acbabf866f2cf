#include "mem/arena_planner.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/checked.h"

namespace tael::mem {
namespace {

struct Extent {
  uint64_t begin;
  uint64_t end;
};

bool LiveTogether(const BufferLifetime& a, const BufferLifetime& b) {
  return a.first_op <= b.last_op && b.first_op <= a.last_op;
}

// Where `bytes` go between extents in the order of their begins, which may overlap: into the
// smallest gap that holds them, or behind the last one.
uint64_t BestFit(std::span<const Extent> taken, uint64_t bytes) {
  uint64_t end = 0, best = 0, best_size = UINT64_MAX;
  for (const Extent& extent : taken) {
    const uint64_t size = extent.begin > end ? extent.begin - end : 0;
    if (size >= bytes && size < best_size) {
      best = end;
      best_size = size;
    }
    end = std::max(end, extent.end);
  }
  return best_size != UINT64_MAX ? best : end;
}

class Placing {
 public:
  Placing(std::span<const BufferLifetime> buffers, uint64_t alignment)
      : buffers_(buffers), alignment_(alignment) {}

  // Places one after the other, each where it fits best among those before it.
  ArenaPlan InOrder(std::span<const size_t> order) const {
    ArenaPlan plan;
    plan.offsets.resize(buffers_.size());
    std::vector<Extent> taken;
    for (size_t i = 0; i < order.size(); ++i) {
      taken.clear();
      for (const size_t other : order.first(i)) {
        if (!LiveTogether(buffers_[order[i]], buffers_[other])) continue;
        taken.push_back({plan.offsets[other], plan.offsets[other] + SizeOf(other)});
      }
      std::ranges::sort(taken, {}, &Extent::begin);
      plan.offsets[order[i]] = BestFit(taken, SizeOf(order[i]));
      plan.total_bytes = std::max(plan.total_bytes, plan.offsets[order[i]] + SizeOf(order[i]));
    }
    return plan;
  }

  uint64_t SizeOf(size_t buffer) const { return RoundUp(buffers_[buffer].bytes, alignment_); }

 private:
  std::span<const BufferLifetime> buffers_;
  uint64_t alignment_;
};

uint64_t PeakLiveBytes(std::span<const BufferLifetime> buffers, const Placing& placing) {
  uint64_t peak = 0;
  for (const BufferLifetime& at : buffers) {  // the sum only grows where one begins
    uint64_t live = 0;
    for (size_t i = 0; i < buffers.size(); ++i) {
      const bool lives = buffers[i].first_op <= at.first_op && at.first_op <= buffers[i].last_op;
      if (lives) live += placing.SizeOf(i);
    }
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

// No order is the best one for every op list, and trying a few costs microseconds: as a run would
// ask for them, the large ones first, and those first that are large for long.
ArenaPlan PlanArena(std::span<const BufferLifetime> buffers, uint64_t alignment) {
  const Placing placing(buffers, alignment);
  std::vector<size_t> order(buffers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t i) { return buffers[i].bytes == 0; });
  const auto bytes = [&](size_t i) { return buffers[i].bytes; };
  const auto area = [&](size_t i) {
    return buffers[i].bytes * (uint64_t{buffers[i].last_op} - buffers[i].first_op + 1);
  };

  std::ranges::stable_sort(order, std::greater{}, bytes);
  ArenaPlan best = placing.InOrder(order);
  const auto improve = [&] {
    ArenaPlan plan = placing.InOrder(order);
    if (plan.total_bytes < best.total_bytes) best = std::move(plan);
  };
  std::ranges::stable_sort(order, {}, [&](size_t i) { return buffers[i].first_op; });
  improve();
  std::ranges::stable_sort(order, std::greater{}, area);
  improve();

  best.peak_live_bytes = PeakLiveBytes(buffers, placing);
  for (const size_t i : order) best.sum_bytes += placing.SizeOf(i);
  return best;
}

}  // namespace tael::mem
