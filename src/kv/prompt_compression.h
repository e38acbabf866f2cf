// Prompt compression: which blocks of a prompt stay once it has been read.
//
//   tokens   0 ........................ recent_from ........ observe_from ....... at-1 | answer
//            blocks with the best       all stay             their attention tells
//            scores stay, the first too                      which blocks are good
//
// The last queries of a prompt, a question mostly, look at what they are about. What a token got of
// their attention, summed over the query heads of all layers of a group, is its score; a block is
// as good as its best token (SnapKV, Li et al. 2024, in whole blocks as ChunkKV, Liu et al. 2025).
// Whole blocks go or stay: nothing is copied or written, so that others may hold them, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/layer_group.h"

namespace tael::kv {

// What the user chose. Of no tokens and no per cent: off.
struct CompressPolicy {
  static constexpr uint32_t kAutoPercent = 40;
  static constexpr uint32_t kAutoFrom = 256;
  // What a prompt keeps at least: fewer tokens would be a question without a text.
  static constexpr uint32_t kLeastTokens = 64;

  uint32_t percent = 0;      // of a prompt's tokens stay,
  uint32_t tokens = 0;       // or so many of them
  uint32_t longer_than = 0;  // prompts of up to so many tokens stay whole

  static CompressPolicy Auto() { return {.percent = kAutoPercent, .longer_than = kAutoFrom}; }
  bool on() const { return percent != 0 || tokens != 0; }
  // How many tokens of a prompt stay at most; all where nothing is to be done.
  uint32_t Budget(uint32_t prompt_tokens) const;
  bool operator==(const CompressPolicy&) const = default;
};

// What is to become of one prompt.
struct Compression {
  // Queries: a question and what a chat template puts behind it. With 64, as SnapKV has them, what
  // was said just before outvotes the question: fewer pass keys are found (docs/long-text.md).
  static constexpr uint32_t kMostObserved = 24;

  uint32_t at = 0;  // the prompt's length; 0: nothing is compressed
  uint32_t observe_from = 0;
  uint32_t recent_from = 0;
  uint32_t budget = 0;  // tokens that stay at most, but for the first block and those behind
                        // recent_from, which always do
};
Compression PlanCompression(const CompressPolicy& policy, uint32_t prompt_tokens);

// What the tokens of one layer group got of the queries that are observed, by slot: live blocks in
// their order, 16 slots each (Sequence::Observed()). In whole numbers, so that neither the order of
// threads nor the cut into passes changes a sum.
class PromptScores {
 public:
  static constexpr double kUnit = 4294967296.0;  // sums count in 2^-32

  // Heap of one with so many slots.
  static uint64_t BytesFor(uint64_t num_slots) { return num_slots * 2 * sizeof(int64_t); }

  void Begin(size_t num_slots);  // forgets what was there
  void Forget() { sums_ = masses_ = {}; }
  bool empty() const { return sums_.empty(); }

  // Of the pass that runs, which may be thrown away.
  std::span<int64_t> masses() { return masses_; }
  void BeginPass();
  void EndPass();

  // Indices of the `most` best of the first `num_blocks` blocks, ascending. The first is one of
  // them always; of two that are equal the older stays. Requires: 0 < most <= num_blocks.
  std::vector<uint32_t> BestBlocks(size_t num_blocks, size_t most) const;

 private:
  std::vector<int64_t> sums_;
  std::vector<int64_t> masses_;
};

// Heap of the scores of one sequence of so many tokens.
uint64_t PromptScoreBytes(const Geometry& geometry, uint32_t tokens);

}  // namespace tael::kv
