// How far a next-token distribution is from the one that it stands for: what a window, an eviction
// or a KV type costs, token by token.
#pragma once

#include <span>

namespace tael::sample {

struct Divergence {
  double kl = 0;          // KL(reference || other) of the softmaxes, in nats; never below 0
  bool same_top = false;  // both have the same likeliest token (the first of equals)
};

// Of two rows of raw logits. Not a number where a logit is none. Requires: equal sizes, not empty.
Divergence Diverge(std::span<const float> reference, std::span<const float> other);

}  // namespace tael::sample
