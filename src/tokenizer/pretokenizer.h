// Cuts text into the words that byte-level BPE merges within, one rule per family of models, chosen
// by `tokenizer.ggml.pre`. A family that is not in the table is refused by name: a wrong cut costs
// quality that nobody would notice.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tokenizer/regex.h"

namespace tael::tokenizer {

class PreTokenizer {
 public:
  using Scratch = std::vector<Regex::Scratch>;

  // Fails: kUnsupported, naming the family.
  static Result<PreTokenizer> Create(std::string_view family);

  // The family's own tokenizer normalises text to NFC before it cuts.
  bool normalizes() const { return normalizes_; }
  // A word that is a token becomes that token, whatever the merges would make of it.
  bool ignores_merges() const { return ignores_merges_; }

  Scratch MakeScratch() const;

  // Calls on_word(std::string_view) for each word, in order; together they are the text.
  // Requires: text is valid UTF-8.
  template <class OnWord>
  void Split(std::string_view text, Scratch& scratch, OnWord&& on_word) const {
    SplitFrom(0, text, scratch, on_word);
  }

  uint64_t HeapBytes() const;

 private:
  // Each pattern cuts what the patterns before it left: a match is one piece, the text between two
  // matches another.
  template <class OnWord>
  void SplitFrom(size_t pattern, std::string_view text, Scratch& scratch, OnWord& on_word) const {
    if (text.empty()) return;
    if (pattern == patterns_.size()) {
      on_word(text);
      return;
    }
    size_t done = 0;
    while (done < text.size()) {
      const auto match = patterns_[pattern].Find(text, done, scratch[pattern]);
      if (!match) break;
      SplitFrom(pattern + 1, text.substr(done, match->begin - done), scratch, on_word);
      SplitFrom(pattern + 1, text.substr(match->begin, match->end - match->begin), scratch,
                on_word);
      done = match->end;
    }
    SplitFrom(pattern + 1, text.substr(done), scratch, on_word);
  }

  std::vector<Regex> patterns_;
  bool normalizes_ = false;
  bool ignores_merges_ = false;
};

}  // namespace tael::tokenizer
