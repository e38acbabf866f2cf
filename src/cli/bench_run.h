// One run of `tael bench`: a prompt of fixed pseudo-random ids and a greedy answer to it, for each
// of some sessions that decode together; and whether what came out can be right.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"

namespace tael::cli {

struct BenchLoad {
  std::vector<std::vector<TokenId>> prompts;  // one per session, all of the same length
  uint32_t max_tokens = 0;                    // of each answer
};

// Ordinary tokens, the same on every machine, other ones for each session.
BenchLoad MakeLoad(const engine::Engine& engine, uint32_t sessions, uint32_t prompt_tokens,
                   uint32_t max_tokens);

struct RunMeasure {
  std::vector<std::vector<TokenId>> answers;  // by session
  bool finite = true;                         // all logits that were looked at
  double prefill_ms = 0;                      // of all prompts, one after the other
  double ttft_ms = 0;    // from the start to a session's first token, the mean over sessions
  double decode_ms = 0;  // of all tokens after the first ones
};

Result<RunMeasure> RunOnce(engine::Engine& engine, const BenchLoad& load);

// kInternal if two runs of one load differ, or met logits that are no numbers.
Status CheckSame(const RunMeasure& first, const RunMeasure& other);

// kInternal if a session's answer among others is not what the model says when that session is
// alone. Sums are rounded in another order there, so that of two tokens which are nearly as likely
// either is right.
Status CheckAlone(engine::Engine& engine, const BenchLoad& load, const RunMeasure& together);

}  // namespace tael::cli
