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
  for (size_t i = 0; i < scores_.size(); ++i) {
    scores_[i] = scores_[i] * fade + static_cast<float>(FromUnits(masses_[i]));
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
  Choice choice;
  std::array<Loser, kTokens + 1> losers;
  for (uint32_t slot = tail.begin; slot < tail.end; ++slot) {
    if (positions_[slot] < oldest) scores_[slot] = kGone;
  }
  for (uint32_t i = 0; i < kTokens; ++i) {
    const uint32_t from = tail.end + i, to = Least(tail);
    const bool stays = scores_[from] > scores_[to];
    if (merges()) {
      losers[i] = stays ? InTail(to, choice)
                        : Loser{from, scores_[from], 0, static_cast<double>(leaving + i)};
    }
    if (!stays) continue;
    Put(to, scores_[from], leaving + i);
    choice.moved[choice.num_moves++] = {from, to};
  }
  if (merges()) {  // what has the least score of the tail gives its slot, and is merged, too
    const uint32_t to = Least(tail);
    losers[kTokens] = InTail(to, choice);
    Merge(losers, to, choice);
  }
  const auto end = scores_.begin() + tail.end;
  std::shift_left(end, scores_.end(), kTokens);
  std::fill(scores_.end() - kTokens, scores_.end(), 0.0f);
  return choice;
}

uint32_t TailScores::Least(Tail tail) const {
  const auto first = scores_.begin();
  return static_cast<uint32_t>(std::min_element(first + tail.begin, first + tail.end) - first);
}

// What is in this slot of the tail. Requires: merges().
TailScores::Loser TailScores::InTail(uint32_t slot, const Choice& choice) const {
  uint32_t lies_at = slot;  // one that has won a place in this choice has not moved yet
  for (const Move& move : choice.moves()) {
    if (move.to == slot) lies_at = move.from;
  }
  return {lies_at, scores_[slot], biases_[slot],
          static_cast<double>(positions_[slot]) + static_cast<double>(fractions_[slot])};
}

void TailScores::Put(uint32_t slot, float score, uint32_t position) {
  scores_[slot] = score;
  positions_[slot] = position;
  if (merges()) biases_[slot] = fractions_[slot] = 0;
}

// The losers take the slot `to` together, if any of them got attention.
void TailScores::Merge(std::span<const Loser> losers, uint32_t to, Choice& choice) {
  double total = 0, position = 0, bias = 0;
  for (const Loser& loser : losers) total += std::max(0.0, static_cast<double>(loser.score));
  if (total == 0) return;
  for (const Loser& loser : losers) {
    if (loser.score <= 0) continue;
    const double weight = static_cast<double>(loser.score) / total;
    position += weight * loser.position;
    bias += weight * (static_cast<double>(loser.bias) - std::log(weight));
    choice.merged[choice.num_parts++] = {loser.slot, static_cast<float>(weight), -loser.position};
  }
  for (Part& part : std::span(choice.merged).first(choice.num_parts)) part.shift += position;
  const auto whole = static_cast<uint32_t>(position);
  Put(to, static_cast<float>(total), whole);
  biases_[to] = static_cast<float>(bias);
  fractions_[to] = static_cast<float>(position - whole);
  choice.to = to;
  const auto moves = std::span(choice.moved).first(choice.num_moves);
  choice.num_moves -= std::ranges::remove(moves, to, &Move::to).size();
}

void TailScores::Forget() { std::ranges::fill(scores_, 0.0f); }

}  // namespace tael::kv
