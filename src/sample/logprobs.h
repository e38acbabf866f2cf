// Log-probabilities as the user sees them: the natural log-softmax of the raw logits, before
// penalties, cuts and temperature.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/ids.h"

namespace tael::sample {

struct TokenLogProb {
  TokenId id{};
  float logprob = 0;
};

struct LogProbs {
  float logprob = 0;              // of the id asked for
  std::vector<TokenLogProb> top;  // the k likeliest, best first, lower ids first among equals
};

// -infinity for an id outside of the vocabulary or whose logit is no number; such logits take no
// part in the sum and are never among the top.
LogProbs LogSoftmaxTop(std::span<const float> logits, TokenId id, size_t k);

// The same for one id, without a list; allocates nothing.
float LogSoftmax(std::span<const float> logits, TokenId id);

}  // namespace tael::sample
