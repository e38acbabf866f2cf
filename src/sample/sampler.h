// From logits to a token.
//
//   penalty     logit / p for positive and logit * p for negative logits of tokens seen lately
//   top-k       the k largest
//   top-p       the fewest of them whose probabilities reach p of what top-k left
//   min-p       those at least min_p times as likely as the likeliest
//   temperature p^(1/T) of what is left, and one draw
//
// The cuts are made at temperature 1, so that the temperature changes how often a candidate is
// drawn but never who is one. Temperature 0 is greedy: the largest logit after the penalty, the
// lowest id among equals.
// Refuses: to crash on logits that are no numbers. They are never drawn; where nothing else is
// there, the answer is token 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "sample/candidates.h"
#include "sample/random.h"

namespace tael::sample {

struct SamplerOptions {
  float temperature = 0.8f;     // 0: greedy
  int32_t top_k = 40;           // 0: off
  float top_p = 0.95f;          // 1: off
  float min_p = 0.05f;          // 0: off
  float repeat_penalty = 1.0f;  // 1: off
  int32_t repeat_last_n = 64;   // how far back the penalty looks, in tokens; 0: off
  uint64_t seed = 0;
};

// Fails: kInvalidArgument, naming the option, its value and its range.
Status Validate(const SamplerOptions& options);

// One per sequence, used by one thread at a time. Sample() allocates nothing.
class Sampler {
 public:
  // Bytes a sampler keeps: a few hundred, but the whole vocabulary takes part when top_k is 0.
  static size_t ScratchBytes(const SamplerOptions& options, size_t vocab_size);

  // Fails: as Validate().
  static Result<Sampler> Create(const SamplerOptions& options, size_t vocab_size);

  // `history` holds the tokens so far, prompt included; only the last repeat_last_n matter.
  // Requires: 1 <= logits.size() <= vocab_size.
  TokenId Sample(std::span<const float> logits, std::span<const TokenId> history);

  const SamplerOptions& options() const { return options_; }
  // Draws so far: with the seed, the whole state.
  uint64_t counter() const { return random_.counter(); }
  void set_counter(uint64_t counter) { random_.set_counter(counter); }

 private:
  Sampler(const SamplerOptions& options, size_t vocab_size);

  struct Pool {  // candidates, and the mass that top-p is a share of
    std::span<Candidate> candidates;
    float max = 0;
    double mass = 0;
    bool sorted = false;
  };
  void CollectPenalties(std::span<const TokenId> history, size_t vocab_size);
  float Penalized(float logit) const;
  template <class Visit>
  void VisitAll(std::span<const float> logits, Visit visit) const;
  std::span<Candidate> Best(std::span<const float> logits, size_t k);
  Pool TopK(std::span<const float> logits);
  Pool WholeVocabulary(std::span<const float> logits);
  std::span<Candidate> Cut(Pool pool) const;
  TokenId Draw(std::span<const Candidate> candidates, float max);

  SamplerOptions options_;
  Random random_;
  std::vector<Candidate> room_;
  std::vector<int32_t> penalized_;  // ascending, unique; room for repeat_last_n
};

}  // namespace tael::sample
