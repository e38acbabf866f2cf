#include "kv/prompt_compression.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/checked.h"

namespace tael::kv {
namespace {

constexpr uint32_t kTokens = kernels::kBlockTokens;

}  // namespace

uint32_t CompressPolicy::Budget(uint32_t prompt_tokens) const {
  if (!on() || prompt_tokens <= longer_than) return prompt_tokens;
  uint32_t budget = tokens;
  if (percent != 0) budget = static_cast<uint32_t>(uint64_t{prompt_tokens} * percent / 100);
  return std::min(prompt_tokens, std::max(budget, kLeastTokens));
}

Compression PlanCompression(const CompressPolicy& policy, uint32_t prompt_tokens) {
  const uint32_t budget = policy.Budget(prompt_tokens);
  if (budget >= prompt_tokens) return {};
  const uint32_t observed = std::min(Compression::kMostObserved, prompt_tokens / 4);
  return {.at = prompt_tokens,
          .observe_from = prompt_tokens - observed,
          .recent_from = (prompt_tokens - observed) / kTokens * kTokens,
          .budget = budget};
}

void PromptScores::Begin(size_t num_slots) {
  sums_.assign(num_slots, 0);
  masses_.assign(num_slots, 0);
}

void PromptScores::BeginPass() { std::ranges::fill(masses_, 0); }

void PromptScores::EndPass() {
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += masses_[i];
}

std::vector<uint32_t> PromptScores::BestBlocks(size_t num_blocks, size_t most) const {
  TAEL_CHECK(most > 0 && most <= num_blocks && num_blocks * kTokens <= sums_.size());
  std::vector<int64_t> best(num_blocks);
  for (size_t b = 0; b < num_blocks; ++b) {
    best[b] = std::ranges::max(std::span(sums_).subspan(b * kTokens, kTokens));
  }
  best[0] = INT64_MAX;
  std::vector<uint32_t> order(num_blocks);
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return best[a] > best[b]; });
  order.resize(most);
  std::ranges::sort(order);
  return order;
}

uint64_t PromptScoreBytes(const Geometry& geometry, uint32_t tokens) {
  uint64_t bytes = 0;
  for (const LayerGroup& group : geometry.groups) {
    if (group.shape.window == 0) bytes += PromptScores::BytesFor(RoundUp(tokens, kTokens));
  }
  return bytes;
}

}  // namespace tael::kv
