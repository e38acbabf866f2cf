// Decides what to draft: tokens that the text itself suggests (prompt_lookup.h), as many as are
// likely to pay.
//
// A draft of k tokens makes the pass wider: it costs c(k + 1) passes of one token and gives, if the
// lookup is right with probability p for a match of that length,
//
//   1 + p(l) + p(l) p(l + 1) + ...        tokens      (each token guessed lengthens the match)
//
// p is learnt from every token of the text, drafted or not: looking costs nothing, so that no pass
// has to be spent on finding out whether guesses are good again. c is measured. Both only decide
// about speed; what is drafted changes no answer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "engine/prompt_lookup.h"

namespace tael::engine {

enum class Speculate : uint8_t {
  kOff,
  kWhereItPays,
  kAlways,  // at every match, as far as possible
};

class Speculation {
 public:
  // More rows than this in a pass were never worth their cost.
  static constexpr size_t kMostDraft = 7;

  // For texts of up to `max_tokens`, and drafts of up to `max_draft` <= kMostDraft tokens.
  Speculation(Speculate when, size_t max_tokens, size_t max_draft);

  // Takes in the text's new tokens (see PromptLookup::Update).
  void Update(std::span<const TokenId> text);
  // What to try behind the text that Update() was given last, at most `most` tokens; mostly
  // nothing. Valid until the next call.
  std::span<const TokenId> Draft(std::span<const TokenId> text, size_t most);
  // How long a pass of so many tokens took.
  void Measured(size_t num_tokens, double milliseconds);

 private:
  void Learn(bool hit);
  double Probability(size_t length) const;
  double Cost(size_t num_tokens) const;
  size_t BestLength(size_t match_length, size_t most) const;

  const Speculate when_;
  const size_t max_draft_;
  PromptLookup lookup_;
  PromptLookup::Match match_;  // what it says about the next token
  size_t num_seen_ = 0;        // tokens of the text
  std::array<TokenId, kMostDraft> draft_{};
  std::array<double, PromptLookup::kLongest + 1> probability_{};  // by length of match
  std::array<double, kMostDraft + 2> pass_ms_{};                  // by tokens; 0: not measured
};

}  // namespace tael::engine
