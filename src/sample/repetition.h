// How much a text repeats itself: what a damaged cache shows long before its perplexity does.
#pragma once

#include <span>

#include "base/ids.h"

namespace tael::sample {

// Share of the runs of four tokens that stood in the same order among the 256 tokens before their
// end. 0 for a text of fewer than four.
double Repetition(std::span<const TokenId> tokens);

}  // namespace tael::sample
