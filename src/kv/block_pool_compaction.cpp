// Under pressure: live blocks move together, so that slabs become empty.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kv/block_pool.h"

namespace tael::kv {
namespace {

uint32_t ToUint(BlockId id) { return static_cast<uint32_t>(id); }

}  // namespace

std::vector<BlockPool::Move> BlockPool::Compact() {
  std::vector<Move> moves;
  if (num_standstills_.load() > 0) return moves;
  for (uint32_t bin = 0; bin < bins_.size(); ++bin) CompactBin(bin, moves);
  std::ranges::sort(moves, {}, &Move::from);
  return moves;
}

BlockId BlockPool::After(std::span<const Move> moves, BlockId id) {
  const auto move = std::ranges::lower_bound(moves, id, {}, &Move::from);
  return move != moves.end() && move->from == id ? move->to : id;
}

// From the emptiest slab into the fullest that has a hole, until the two meet. A slab is touched
// only if all of it can go: half a move would cost and give nothing.
void BlockPool::CompactBin(uint32_t bin, std::vector<Move>& moves) {
  struct Filled {
    uint32_t slab, used;
  };
  std::vector<Filled> slabs;
  uint32_t holes = 0;
  const uint32_t num_slots = bins_[bin].num_slots;
  for (uint32_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i].bin.load(std::memory_order_relaxed) != bin) continue;
    const uint64_t free = slabs_[i].free_bits.load(std::memory_order_relaxed);
    slabs.push_back({i, num_slots - static_cast<uint32_t>(std::popcount(free))});
    holes += static_cast<uint32_t>(std::popcount(free));
  }
  std::ranges::sort(slabs, std::ranges::greater{}, &Filled::used);
  for (size_t into = 0; !slabs.empty(); slabs.pop_back()) {
    const Filled source = slabs.back();
    holes -= num_slots - source.used;  // its own
    if (source.used > holes) return;
    for (uint32_t slot = 0; slot < num_slots; ++slot) {
      const BlockId from{source.slab * kSlotsPerSlab + slot};
      if (refs_[ToUint(from)].load(std::memory_order_relaxed) == 0) continue;
      while (slabs[into].used == num_slots) ++into;
      moves.push_back({from, MoveTo(slabs[into].slab, from)});
      ++slabs[into].used;
      --holes;
    }
  }
}

// Requires: the slab has a hole.
BlockId BlockPool::MoveTo(uint32_t slab_index, BlockId from) {
  Slab& slab = slabs_[slab_index];
  const uint64_t free = slab.free_bits.load(std::memory_order_relaxed);
  const auto slot = static_cast<uint32_t>(std::countr_zero(free));
  slab.free_bits.store(free & (free - 1), std::memory_order_relaxed);
  const BlockId to{slab_index * kSlotsPerSlab + slot};
  Publish({&to, 1});
  std::memcpy(data(to), data(from), slab.block_bytes);
  refs_[ToUint(to)].store(refs_[ToUint(from)].exchange(0));
  if (poison_freed_) std::memset(data(from), 0xff, slab.block_bytes);
  PutBack(from);
  return to;
}

}  // namespace tael::kv
