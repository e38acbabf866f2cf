// What perplexity does not show: whether a fact far back is still found, and whether an answer
// that goes on for long begins to repeat itself.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"

namespace tael::cli {

// Five digits, if they are one token each, and a little.
inline constexpr uint32_t kNeedleAnswerTokens = 8;

// Pass keys: five digits somewhere in prose, and a question at the end.
struct NeedleOptions {
  std::string_view text;       // prose, which outlives this
  uint32_t prompts = 1;        // at each depth
  uint32_t prompt_tokens = 0;  // of each prompt at most
  uint64_t seed = 0;
};
// Depth in percent of the prose -> share of the prompts whose key was named, all digits of it,
// greedily. Fails: kInvalidArgument for prose too short; and as Generate() does.
Result<std::map<uint32_t, double>> FindNeedles(engine::Engine& engine,
                                               const NeedleOptions& options);

// Of `num_tokens` that follow `prompt`, sampled at temperature 0.8: the share whose last four stood
// in the same order among the 256 before.
Result<double> MeasureRepetition(engine::Engine& engine, std::span<const TokenId> prompt,
                                 uint32_t num_tokens, uint64_t seed);

}  // namespace tael::cli
