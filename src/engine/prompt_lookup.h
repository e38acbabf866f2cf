// Where the last tokens of a text stood before: what followed them then is a guess at what follows
// now ("prompt lookup", Saxena 2023). Answers that quote, edit or repeat their prompt are guessed
// well, and the index costs no model.
//
//   text   ... a b c d e ........ x b c d | ?       match: length 3 ("b c d"), next -> "e"
//
// Positions are chained by a hash of the kShortest tokens before them, latest first. The text stays
// the caller's; the index holds positions only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace tael::engine {

class PromptLookup {
 public:
  static constexpr size_t kShortest = 3;  // shorter matches are mostly chance
  static constexpr size_t kLongest = 16;  // further back nobody looks
  static constexpr size_t kMostCandidates = 16;

  // Bytes that an index of texts of up to `max_tokens` keeps.
  static size_t Bytes(size_t max_tokens);
  explicit PromptLookup(size_t max_tokens);

  // Takes in the tokens that are new. Requires: `text` begins with what it was in the call before,
  // and has at most max_tokens tokens. Allocates nothing.
  void Update(std::span<const TokenId> text);

  struct Match {
    size_t next = 0;    // text[next - length, next) equals the text's last `length` tokens
    size_t length = 0;  // 0: no match
  };
  // The longest match (lengths above kLongest count as kLongest) among the latest kMostCandidates,
  // and of equally long ones the latest. Requires: `text` is what Update() was given last.
  Match Find(std::span<const TokenId> text) const;

 private:
  size_t Bucket(const TokenId* tokens) const;

  std::vector<uint32_t> heads_;     // by hash: the latest position, 0 for none
  std::vector<uint32_t> previous_;  // by position: the one before it with the same hash
  size_t num_indexed_ = kShortest;  // positions below are in
};

}  // namespace tael::engine
