// The merge rules of a byte-level BPE vocabulary: which pairs of tokens join, in which order, into
// what. 12 bytes a rule and a hash table of their numbers; no spelling is kept.
//
// Refused, naming the key: rules that are not two parts with one space between, parts or results
// that are no tokens, and rules chosen to collide in the hash table. Rules that would make a
// control token are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"
#include "tokenizer/hash.h"
#include "tokenizer/vocab.h"

namespace tael::tokenizer {

struct Merge {
  uint32_t rank = UINT32_MAX;  // lower joins first
  uint32_t merged = kNoToken;
};

class MergeTable {
 public:
  // Fails: kMalformed, naming the key.
  static Result<MergeTable> Load(const gguf::File& file, const Vocab& vocab);

  // Nothing where the two do not join; ids may be kNoToken.
  std::optional<Merge> Find(uint32_t left, uint32_t right) const {
    if (left == kNoToken || right == kNoToken) return std::nullopt;
    const size_t mask = slots_.size() - 1;
    for (size_t slot = Slot(left, right); slots_[slot] != kEmpty; slot = (slot + 1) & mask) {
      const Rule& rule = rules_[slots_[slot]];
      if (rule.left == left && rule.right == right) return Merge{slots_[slot], rule.merged};
    }
    return std::nullopt;
  }

  uint64_t HeapBytes() const {
    return rules_.capacity() * sizeof(Rule) + slots_.capacity() * sizeof(uint32_t);
  }

 private:
  static constexpr uint32_t kEmpty = UINT32_MAX;

  struct Rule {
    uint32_t left = kNoToken;
    uint32_t right = kNoToken;
    uint32_t merged = kNoToken;
  };

  size_t Slot(uint32_t left, uint32_t right) const {
    return MixBits((static_cast<uint64_t>(left) << 32) | right) & (slots_.size() - 1);
  }
  // `joined` is scratch memory.
  static Result<Rule> Parse(std::string_view text, size_t rank, const Vocab& vocab,
                            std::string& joined);

  std::vector<Rule> rules_;  // by rank
  std::vector<uint32_t>
      slots_;  // open addressing: ranks, kEmpty where there is none; a power of two
};

}  // namespace tael::tokenizer
