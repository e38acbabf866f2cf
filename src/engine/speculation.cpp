#include "engine/speculation.h"

#include <algorithm>

#include "base/check.h"

namespace tael::engine {
namespace {

// Before anything is known. Chance decides about short matches, quotations are long.
constexpr double kShortestPrior = 0.4, kLongestPrior = 0.9;
// What a guess changes of what is known about matches of its length, and of lengths beside it.
constexpr double kLearningRate = 0.12, kNeighbourRate = 0.04;
// A token more in a pass, in passes of one, before it has been measured.
constexpr double kCostPrior = 0.2;
constexpr double kCostRate = 0.2;
// A pass that somebody else's work made slow counts as at most this many of the usual ones.
constexpr double kMostSurprise = 1.5;
// The gain must be worth the noise of its estimates.
constexpr double kLeastGain = 1.08;

double PriorCost(size_t num_tokens) { return 1 + kCostPrior * static_cast<double>(num_tokens - 1); }

}  // namespace

Speculation::Speculation(Speculate when, size_t max_tokens, size_t max_draft)
    : when_(when), max_draft_(max_draft), lookup_(max_tokens) {
  TAEL_CHECK(max_draft <= kMostDraft);
  constexpr size_t kShortest = PromptLookup::kShortest, kLongest = PromptLookup::kLongest;
  for (size_t l = kShortest; l <= kLongest; ++l) {
    const double share = static_cast<double>(l - kShortest) / (kLongest - kShortest);
    probability_[l] = kShortestPrior + (kLongestPrior - kShortestPrior) * share;
  }
}

void Speculation::Update(std::span<const TokenId> text) {
  for (; num_seen_ < text.size() && match_.length > 0; ++num_seen_) {
    const bool hit = text[match_.next] == text[num_seen_];
    Learn(hit);
    match_ = hit ? PromptLookup::Match{match_.next + 1,
                                       std::min(match_.length + 1, PromptLookup::kLongest)}
                 : PromptLookup::Match{};
  }
  num_seen_ = text.size();
  lookup_.Update(text);
  match_ = lookup_.Find(text);
}

std::span<const TokenId> Speculation::Draft(std::span<const TokenId> text, size_t most) {
  most = std::min(most, max_draft_);
  if (match_.length == 0 || most == 0) return {};
  const size_t count = when_ == Speculate::kAlways ? most : BestLength(match_.length, most);
  for (size_t i = 0; i < count; ++i) {
    const size_t at = match_.next + i;  // a text that repeats itself runs into its own draft
    draft_[i] = at < text.size() ? text[at] : draft_[at - text.size()];
  }
  return std::span(draft_).first(count);
}

void Speculation::Learn(bool hit) {
  const double seen = hit ? 1 : 0;
  for (size_t l = match_.length - 1; l <= match_.length + 1; ++l) {
    if (l < PromptLookup::kShortest || l > PromptLookup::kLongest) continue;
    const double rate = l == match_.length ? kLearningRate : kNeighbourRate;
    probability_[l] += rate * (seen - probability_[l]);
  }
}

double Speculation::Probability(size_t length) const {
  return probability_[std::min(length, PromptLookup::kLongest)];
}

void Speculation::Measured(size_t num_tokens, double milliseconds) {
  if (num_tokens >= pass_ms_.size()) return;
  double& ms = pass_ms_[num_tokens];
  const double usual = ms != 0 ? ms : pass_ms_[1] * PriorCost(num_tokens);
  if (usual != 0) milliseconds = std::min(milliseconds, kMostSurprise * usual);
  ms = ms == 0 ? milliseconds : ms + kCostRate * (milliseconds - ms);
}

// In passes of one token.
double Speculation::Cost(size_t num_tokens) const {
  const double one = pass_ms_[1], ms = pass_ms_[num_tokens];
  return one == 0 || ms == 0 ? PriorCost(num_tokens) : std::max(1.0, ms / one);
}

size_t Speculation::BestLength(size_t match_length, size_t most) const {
  double tokens = 1, all_right = 1, best_gain = kLeastGain;
  size_t best = 0;
  for (size_t k = 1; k <= most; ++k) {
    all_right *= Probability(match_length + k - 1);
    tokens += all_right;
    const double gain = tokens / Cost(k + 1);
    if (gain > best_gain) {
      best_gain = gain;
      best = k;
    }
  }
  return best;
}

}  // namespace tael::engine
