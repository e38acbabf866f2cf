// The merge rules of a byte-level BPE vocabulary: which pairs of tokens join, in which order, into
// what. A table by the pair of ids; no spelling is kept.
//
// Refused, naming the key: rules that are not two parts with one space between, parts or results
// that are no tokens, and rules chosen to collide in the hash table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"
#include "tokenizer/hash.h"
#include "tokenizer/vocab.h"

namespace tael::tokenizer {

struct Merge {
  uint32_t left = kNoToken;
  uint32_t right = kNoToken;
  uint32_t rank = UINT32_MAX;  // lower joins first
  uint32_t merged = kNoToken;
};

class MergeTable {
 public:
  // Fails: kMalformed, naming the key.
  static Result<MergeTable> Load(const gguf::File& file, const Vocab& vocab);

  // Null where the two do not join; ids may be kNoToken.
  const Merge* Find(uint32_t left, uint32_t right) const {
    if (left == kNoToken) return nullptr;
    const size_t mask = slots_.size() - 1;
    for (size_t slot = Slot(left, right);; slot = (slot + 1) & mask) {
      const Merge& merge = slots_[slot];
      if (merge.left == kNoToken) return nullptr;
      if (merge.left == left && merge.right == right) return &merge;
    }
  }

  uint64_t HeapBytes() const { return slots_.capacity() * sizeof(Merge); }

 private:
  size_t Slot(uint32_t left, uint32_t right) const {
    return MixBits((static_cast<uint64_t>(left) << 32) | right) & (slots_.size() - 1);
  }
  static Result<Merge> Parse(std::string_view rule, uint32_t rank, const Vocab& vocab);

  std::vector<Merge> slots_;  // open addressing, a power of two, never full
};

}  // namespace tael::tokenizer
