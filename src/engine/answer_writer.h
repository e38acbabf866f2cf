// One answer in the making, apart from the KV: says which tokens to compute next, picks tokens from
// logits, turns them into text, and knows when it is over.
//
//   history   [ prompt | answer ]     all but the token picked last are computed, or will be
//   pass      Next() -> tokens to compute;  OnLogits() for those whose logits it wants;  EndPass()
//
// It does not care where the KV comes from: what is held may be a shared prefix, and an answer
// whose KV was dropped goes on as soon as its history is computed again.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"
#include "engine/generation.h"
#include "engine/speculation.h"
#include "engine/stop_filter.h"
#include "mem/memory_budget.h"
#include "sample/logprobs.h"
#include "sample/sampler.h"
#include "tokenizer/tokenizer.h"

namespace tael::engine {

// Fails: kInvalidArgument (options; no prompt tokens, ids outside the vocabulary);
// kContextExceeded, naming both numbers, for a prompt (or forced tokens) longer than the context.
Status CheckAnswer(const Engine& engine, std::span<const TokenId> prompt,
                   const GenerateOptions& options);

// Told what comes, while a pass may still be under way.
class AnswerListener {
 public:
  // `logprobs` is null unless they were asked for, and may be moved from.
  virtual void OnToken(TokenId token, sample::LogProbs* logprobs) = 0;
  virtual void OnText(std::string_view text) = 0;  // never empty

 protected:
  ~AnswerListener() = default;
};

class AnswerWriter {
 public:
  using Clock = std::chrono::steady_clock;

  // Samples with `seed`, whatever the options say. `engine`, `options` and `listener` outlive the
  // writer; timings count from `start`. Requires: CheckAnswer() found nothing.
  // Fails: kInvalidArgument; kOutOfBudget for what sampling needs.
  static Result<std::unique_ptr<AnswerWriter>> Create(Engine& engine,
                                                      std::span<const TokenId> prompt,
                                                      const GenerateOptions& options, uint64_t seed,
                                                      Clock::time_point start,
                                                      AnswerListener& listener);

  std::span<const TokenId> history() const { return history_; }
  // Tokens of which the KV will be needed at most: all but the last.
  uint32_t most_held() const { return most_held_; }
  // The same as far as memory is set aside for it: an answer in a window may have no end.
  uint32_t planned_tokens() const;

  // What to compute behind the first `held` tokens of the history: at most `most` of it and, where
  // that is its last token and `draft`, a guess at what follows. Valid until EndPass().
  // Requires: held < history().size(); !ended().
  struct Feed {
    std::span<const TokenId> tokens;
    uint32_t num_logits = 0;         // of the last so many
    const uint32_t* keep = nullptr;  // as in BatchItem
  };
  Feed Next(uint32_t held, uint32_t most, bool draft);
  // The logits of tokens[index] of what Next() said.
  void OnLogits(size_t index, std::span<const float> logits);
  // The pass is over; `milliseconds` is how long it took, if it was for this answer alone. A pass
  // that failed needs no EndPass(), if it gave no logits.
  void EndPass(std::optional<double> milliseconds);

  bool ended() const { return finish_reason_.has_value(); }
  std::optional<FinishReason> finish_reason() const { return finish_reason_; }
  // Ends the answer from outside; text that was held back comes out. Requires: !ended().
  void Finish(FinishReason reason);

  // `cached_tokens` of the prompt were there already.
  Timings MakeTimings(uint32_t cached_tokens) const;

 private:
  AnswerWriter(Engine& engine, std::span<const TokenId> prompt, const GenerateOptions& options,
               Clock::time_point start, AnswerListener& listener, sample::Sampler sampler);

  bool forced() const { return !options_.force_tokens.empty(); }
  void MakeSpeculation();
  uint32_t Draft(size_t most);
  void Pick(std::span<const float> logits);
  bool Accept();
  bool End(FinishReason reason);
  void Show(std::string_view text);

  Engine& engine_;
  const GenerateOptions& options_;
  AnswerListener& listener_;
  const tokenizer::Tokenizer& tokenizer_;
  mem::Reservation scratch_, lookup_;
  sample::Sampler sampler_;
  std::optional<Speculation> speculation_;
  tokenizer::Detokenizer detokenizer_;
  StopFilter filter_;
  const uint32_t num_prompt_;
  const uint32_t max_tokens_;
  const uint32_t most_held_;

  std::vector<TokenId> history_;
  uint32_t num_tokens_ = 0;
  std::optional<FinishReason> finish_reason_;

  // The pass.
  std::array<TokenId, 1 + Speculation::kMostDraft> pass_{};  // the last token and a draft
  std::span<const TokenId> fed_;
  uint32_t num_drafted_ = 0;
  uint32_t keep_ = 0;
  bool right_ = false;  // everything so far; later logits are of no use otherwise

  // The token picked last, until it is accepted.
  TokenId next_{-1};
  bool is_picked_ = false;
  bool end_of_generation_ = false;
  std::optional<sample::LogProbs> logprobs_;

  const Clock::time_point start_;
  std::optional<Clock::time_point> first_pass_, first_token_;
  Clock::time_point last_token_;
  uint32_t draft_tokens_ = 0, accepted_tokens_ = 0;
};

double Milliseconds(AnswerWriter::Clock::duration duration);

}  // namespace tael::engine
