#include "kv/tail_scores.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace tael::kv {
namespace {

constexpr uint32_t kTokens = kernels::kBlockTokens;
constexpr float kGone = -1;  // below any score

}  // namespace

void TailScores::BeginPass() { std::ranges::fill(masses_, 0); }

void TailScores::EndPass(uint32_t num_tokens) {
  const auto fade = static_cast<float>(std::pow(kDecay, num_tokens));
  constexpr auto kScale = static_cast<float>(1 / kUnit);
  for (size_t i = 0; i < scores_.size(); ++i) {
    scores_[i] = scores_[i] * fade + static_cast<float>(masses_[i]) * kScale;
  }
}

void TailScores::BeginTail(Tail tail, uint32_t first_position) {
  const auto slots = std::span(positions_).subspan(tail.begin, tail.end - tail.begin);
  std::iota(slots.begin(), slots.end(), first_position);
}

std::span<const TailScores::Move> TailScores::Choose(Tail tail, uint32_t leaving, uint32_t oldest) {
  TAEL_CHECK(tail.end + kTokens <= scores_.size());
  size_t num_moves = 0;
  for (uint32_t slot = tail.begin; slot < tail.end; ++slot) {
    if (positions_[slot] < oldest) scores_[slot] = kGone;
  }
  const auto begin = scores_.begin() + tail.begin;
  const auto end = scores_.begin() + tail.end;
  for (uint32_t i = 0; i < kTokens; ++i) {
    const auto least = std::min_element(begin, end);
    const uint32_t from = tail.end + i;
    if (scores_[from] <= *least) continue;
    const auto to = static_cast<uint32_t>(least - scores_.begin());
    scores_[to] = scores_[from];
    positions_[to] = leaving + i;
    moves_[num_moves++] = {from, to};
  }
  std::shift_left(end, scores_.end(), kTokens);
  std::fill(scores_.end() - kTokens, scores_.end(), 0.0f);
  return std::span(moves_).first(num_moves);
}

void TailScores::Forget() { std::ranges::fill(scores_, 0.0f); }

}  // namespace tael::kv
