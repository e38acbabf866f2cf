#include "engine/kv_account.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/checked.h"
#include "kernels/kernels.h"
#include "kv/window_policy.h"

namespace tael::engine {
namespace {

constexpr uint64_t kRow = kernels::kBlockTokens;

}  // namespace

KvAccount::KvAccount(const Engine& engine) : engine_(engine) {
  const kv::PoolStats pool = engine.pool().Stats();
  const kv::Geometry& geometry = engine.plan().geometry;
  num_slabs_ = pool.num_slabs;
  row_bytes_ = geometry.RowBytes();
  std::vector<size_t> bytes;
  for (size_t i = 0; i < geometry.groups.size(); ++i) {
    const kv::LayerGroup& group = geometry.groups[i];
    const auto at = std::ranges::find(bytes, group.block_bytes) - bytes.begin();
    const auto size = static_cast<size_t>(at);
    if (size == bytes.size()) {
      bytes.push_back(group.block_bytes);
      sizes_.push_back(
          {.slots_per_slab = kv::BlockPool::SlotsIn(pool.slab_bytes, group.block_bytes),
           .size_class = kv::SizeClass{static_cast<uint32_t>(i)}});
    }
    ++sizes_[size].blocks_per_row;
    // What every session may count on; where windows grow, more is nobody's.
    const uint32_t start = engine.plan().window.start;
    const kv::LayerShape shape = start != 0 ? kv::Narrowed(group.shape, start) : group.shape;
    groups_.push_back({.size = size,
                       .most_rows = group.shape.window == 0
                                        ? std::numeric_limits<uint64_t>::max()
                                        : kv::MostRows(shape, engine.max_batch_tokens())});
  }
}

KvAccount::Blocks KvAccount::For(uint32_t tokens, uint32_t shared) const {
  Blocks blocks = None();
  const uint64_t rows = CeilDiv<uint64_t>(tokens, kRow);
  const uint64_t own = rows - std::min(rows, shared / kRow);
  for (const Group& group : groups_) blocks[group.size] += std::min(own, group.most_rows);
  return blocks;
}

KvAccount::Blocks KvAccount::Growth(const kv::Sequence& sequence, uint32_t tokens,
                                    uint32_t shared) const {
  Blocks blocks = None();
  const uint64_t rows = CeilDiv<uint64_t>(tokens, kRow);
  for (size_t i = 0; i < groups_.size(); ++i) {
    const kv::GroupId id{static_cast<uint32_t>(i)};
    const uint64_t placed = std::max<uint64_t>(sequence.table(id).size(), shared / kRow);
    const kv::Sequence::View view = sequence.Blocks(id);
    const uint64_t kept = view.first_token != 0 ? view.sinks.size() + view.tail.size() : 0;
    const uint64_t live = view.blocks.size() + kept;
    const uint64_t left = rows - std::min(rows, placed);
    const uint64_t below_most = groups_[i].most_rows - std::min(groups_[i].most_rows, live);
    blocks[groups_[i].size] += std::min(left, below_most) + (sequence.SharesLastBlock(id) ? 1 : 0);
  }
  return blocks;
}

KvAccount::Blocks KvAccount::InUse(uint64_t idle_bytes) const {
  Blocks blocks = None();
  const uint64_t idle_rows = idle_bytes / row_bytes_;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const uint64_t in_use = engine_.pool().NumInUse(sizes_[i].size_class);
    blocks[i] = in_use - std::min(in_use, idle_rows * sizes_[i].blocks_per_row);
  }
  return blocks;
}

bool KvAccount::Fit(const Blocks& blocks) const {
  uint64_t slabs = 0;
  for (size_t i = 0; i < sizes_.size(); ++i) slabs += CeilDiv(blocks[i], sizes_[i].slots_per_slab);
  return slabs <= num_slabs_;
}

void Add(KvAccount::Blocks& a, const KvAccount::Blocks& b) {
  TAEL_CHECK(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
}

}  // namespace tael::engine
