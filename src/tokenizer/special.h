// Finds tokens that are matched in text before anything else: control tokens, where the caller
// allows it, and user-defined ones.
//
// The leftmost match wins, and of those the longest (as in the families' own tokenizers). The
// search walks a sorted list of spellings byte by byte, so a text costs time in proportion to its
// length and to the log of the number of tokens, whatever it is made of.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

namespace tael::tokenizer {

// True for a token that only templates may put into a conversation: a control token, the unknown
// token, or a user-defined one that marks structure ("<|tool|>", "<think>", "</tool_call>").
bool NeedsPermission(const Vocab& vocab, uint32_t id);

struct SpecialMatch {
  size_t begin = 0;
  size_t end = 0;
  uint32_t id = kNoToken;
};

class SpecialMatcher {
 public:
  // The vocabulary must outlive the matcher.
  explicit SpecialMatcher(const Vocab& vocab);

  // The first match that begins at `from` or later.
  std::optional<SpecialMatch> FindNext(std::string_view text, size_t from,
                                       const EncodeOptions& options) const;

  uint64_t HeapBytes() const { return sizeof *this + ids_.capacity() * sizeof(uint32_t); }

 private:
  struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  // The longest allowed match that begins exactly here.
  std::optional<SpecialMatch> MatchAt(std::string_view text, size_t begin,
                                      const EncodeOptions& options) const;
  Range Narrow(Range range, size_t depth, uint8_t byte) const;

  const Vocab* vocab_;
  std::vector<uint32_t> ids_;          // sorted by spelling
  std::array<Range, 256> first_byte_;  // of ids_, by the first byte of the spelling
  std::array<bool, 256> free_byte_{};  // some token that needs no permission starts like this
};

}  // namespace tael::tokenizer
