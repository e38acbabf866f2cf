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
  std::ranges::fill(biases_, 0.0f);
  std::ranges::fill(fractions_, 0.0f);
}

TailScores::Choice TailScores::Choose(Tail tail, uint32_t leaving, uint32_t oldest) {
  TAEL_CHECK(tail.end + kTokens <= scores_.size());
  num_moves_ = num_losers_ = 0;
  for (uint32_t slot = tail.begin; slot < tail.end; ++slot) {
    if (positions_[slot] < oldest) scores_[slot] = kGone;
  }
  for (uint32_t i = 0; i < kTokens; ++i) {
    const uint32_t from = tail.end + i, to = Least(tail);
    if (scores_[from] <= scores_[to]) {
      losers_[num_losers_++] = {from, scores_[from], 0, static_cast<double>(leaving + i)};
      continue;
    }
    LoseFrom(to);
    Put(to, scores_[from], leaving + i);
    moves_[num_moves_++] = {from, to};
  }
  const Merge merge = merges() ? MergeLosers(tail) : Merge{};
  const auto end = scores_.begin() + tail.end;
  std::shift_left(end, scores_.end(), kTokens);
  std::fill(scores_.end() - kTokens, scores_.end(), 0.0f);
  return {merge, std::span(moves_).first(num_moves_)};
}

uint32_t TailScores::Least(Tail tail) const {
  const auto first = scores_.begin();
  return static_cast<uint32_t>(std::min_element(first + tail.begin, first + tail.end) - first);
}

// What is in this slot of the tail, for the time being, does not stay.
void TailScores::LoseFrom(uint32_t slot) {
  uint32_t lies_at = slot;  // one that has won a place and loses it again has not moved yet
  for (size_t i = 0; i < num_moves_; ++i) {
    if (moves_[i].to == slot) lies_at = moves_[i].from;
  }
  Loser& loser =
      losers_[num_losers_++] = {lies_at, scores_[slot], 0, static_cast<double>(positions_[slot])};
  if (!merges()) return;
  loser.bias = biases_[slot];
  loser.position += static_cast<double>(fractions_[slot]);
}

void TailScores::Put(uint32_t slot, float score, uint32_t position) {
  scores_[slot] = score;
  positions_[slot] = position;
  if (merges()) biases_[slot] = fractions_[slot] = 0;
}

// The losers, and what has the least score of the tail, take one slot together.
TailScores::Merge TailScores::MergeLosers(Tail tail) {
  const uint32_t to = Least(tail);
  LoseFrom(to);
  double total = 0, position = 0, bias = 0;
  for (const Loser& loser : std::span(losers_).first(num_losers_)) {
    total += std::max(0.0, static_cast<double>(loser.score));
  }
  if (total == 0) return {};
  size_t num_parts = 0;
  for (const Loser& loser : std::span(losers_).first(num_losers_)) {
    if (loser.score <= 0) continue;
    const double weight = static_cast<double>(loser.score) / total;
    position += weight * loser.position;
    bias += weight * (static_cast<double>(loser.bias) - std::log(weight));
    parts_[num_parts++] = {loser.slot, static_cast<float>(weight), -loser.position};
  }
  for (Part& part : std::span(parts_).first(num_parts)) part.shift += position;
  const auto whole = static_cast<uint32_t>(position);
  Put(to, static_cast<float>(total), whole);
  biases_[to] = static_cast<float>(bias);
  fractions_[to] = static_cast<float>(position - whole);
  const auto moves = std::remove_if(moves_.begin(), moves_.begin() + num_moves_,
                                    [&](const Move& move) { return move.to == to; });
  num_moves_ = static_cast<size_t>(moves - moves_.begin());
  return {std::span(parts_).first(num_parts), to};
}

void TailScores::Forget() { std::ranges::fill(scores_, 0.0f); }

}  // namespace tael::kv
