#include "engine/prompt_lookup.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tael::engine {
namespace {

size_t NumBuckets(size_t max_tokens) { return std::bit_ceil(std::max<size_t>(max_tokens, 64)); }

// Tokens before `a` and before `b` that are equal, up to kLongest. Requires: a < b.
size_t EqualBefore(std::span<const TokenId> text, size_t a, size_t b) {
  size_t length = 0;
  while (length < PromptLookup::kLongest && length < a &&
         text[a - length - 1] == text[b - length - 1]) {
    ++length;
  }
  return length;
}

}  // namespace

size_t PromptLookup::Bytes(size_t max_tokens) {
  return (NumBuckets(max_tokens) + max_tokens) * sizeof(uint32_t);
}

PromptLookup::PromptLookup(size_t max_tokens)
    : heads_(NumBuckets(max_tokens)), previous_(max_tokens) {}

size_t PromptLookup::Bucket(const TokenId* tokens) const {
  uint64_t hash = 0;
  for (size_t i = 0; i < kShortest; ++i) {
    hash = (hash + static_cast<uint32_t>(ToInt(tokens[i])) + 1) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash & (heads_.size() - 1);
}

// A position is of use once a token stands there.
void PromptLookup::Update(std::span<const TokenId> text) {
  TAEL_CHECK(text.size() <= previous_.size());
  for (; num_indexed_ < text.size(); ++num_indexed_) {
    uint32_t& head = heads_[Bucket(&text[num_indexed_ - kShortest])];
    previous_[num_indexed_] = head;
    head = static_cast<uint32_t>(num_indexed_);
  }
}

PromptLookup::Match PromptLookup::Find(std::span<const TokenId> text) const {
  Match best;
  if (text.size() < kShortest) return best;
  size_t candidates = 0;
  uint32_t position = heads_[Bucket(&text[text.size() - kShortest])];
  for (; position != 0 && candidates < kMostCandidates; position = previous_[position]) {
    const size_t length = EqualBefore(text, position, text.size());
    if (length < kShortest) continue;  // another's hash
    ++candidates;
    if (length > best.length) best = {position, length};
    if (best.length == kLongest) break;
  }
  return best;
}

}  // namespace tael::engine
