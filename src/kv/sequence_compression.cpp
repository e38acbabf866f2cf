// The part of a sequence that lets go of a prompt's blocks once it has been read.
#include <algorithm>
#include <utility>

#include "base/checked.h"
#include "kv/sequence.h"

namespace tael::kv {
namespace {

constexpr uint32_t kTokens = kernels::kBlockTokens;

}  // namespace

void Sequence::CompressAt(const Compression& plan) {
  ForgetCompression();
  if (plan.at <= length_ || limits_.window != 0) return;
  limits_.compression = plan;
  limits_.compression.observe_from = std::max(plan.observe_from, length_);
}

void Sequence::ForgetCompression() {
  limits_.compression = {};
  for (GroupTable& table : tables_) table.prompt.Forget();
}

// A pass up to `end` begins: whatever one before it has given, and nobody committed, is gone.
void Sequence::BeginObserving(uint32_t end) {
  const Compression& plan = limits_.compression;
  if (plan.at == 0) return;
  for (size_t i = 0; i < tables_.size(); ++i) {
    GroupTable& table = tables_[i];
    if (geometry_->groups[i].shape.window != 0) continue;
    if (table.prompt.empty() && end > plan.observe_from) {
      const uint32_t dropped = (table.gap_end - table.gap_begin) * kTokens;
      table.prompt.Begin(RoundUp(plan.at, kTokens) - dropped);
    }
    table.prompt.BeginPass();
  }
}

std::span<int64_t> Sequence::Observed(GroupId group) {
  return tables_[static_cast<size_t>(group)].prompt.masses();
}

void Sequence::Compress() {
  if (!is_due()) return;
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].prompt.empty()) continue;
    CompressGroup(tables_[i], limits_.compression);
  }
  ForgetCompression();
}

void Sequence::CompressGroup(GroupTable& table, const Compression& plan) {
  const uint32_t recent = std::max(plan.recent_from / kTokens, table.gap_end);
  std::vector<uint32_t> live;
  for (uint32_t b = 0; b < recent; ++b) {
    if (table.bases[b] != nullptr) live.push_back(b);
  }
  const uint32_t rest = length_ - recent * kTokens;
  const uint32_t most = std::max(1u, (plan.budget - std::min(plan.budget, rest)) / kTokens);
  if (live.size() <= most) return;
  const std::vector<uint32_t> best = table.prompt.BestBlocks(live.size(), most);
  for (size_t i = live.size(); i-- > 0;) {
    if (!std::ranges::binary_search(best, static_cast<uint32_t>(i))) {
      pool_->Release(table.blocks[live[i]]);
    }
  }
  uint32_t in_place = 0;
  for (uint32_t to = 0; to < most; ++to) {
    const uint32_t from = live[best[to]];
    if (from == to && in_place == to) ++in_place;
    table.blocks[to] = table.blocks[from];
    table.bases[to] = table.bases[from];
  }
  for (uint32_t b = most; b < recent; ++b) {
    table.blocks[b] = kNullBlock;
    table.bases[b] = nullptr;
  }
  table.in_place = table.kept != 0 ? std::min(table.in_place, in_place) : in_place;
  table.kept = table.gap_begin = most;
  table.gap_end = recent;
  table.horizon = recent * kTokens;
  limits_.compressed_at = length_;
  limits_.intact = std::min(limits_.intact, table.in_place * kTokens);
}

uint32_t Sequence::compressed_tokens() const {
  uint32_t most = 0;
  for (const GroupTable& table : tables_) {
    if (table.kept != 0) most = std::max(most, table.gap_end - table.gap_begin);
  }
  return most * kTokens;
}

}  // namespace tael::kv
