// Windows: how many tokens a layer keeps, and which.
//
//   tokens   0 ... sinks-1 | .......... | p-recent+1 ........ p      recent = tokens - sinks
//            always seen     not seen     seen by the query at p
//
// The mask is exact: a query sees the sinks and the last `recent` tokens, itself included, whatever
// chunk it comes with and however many tokens are dropped at once. The sinks are what softmax
// parks its mass on: without them perplexity nearly doubles, with one of them a window of a quarter
// of the text costs 2 to 7 % (Xiao et al. 2023, "Efficient streaming language models with attention
// sinks"; measured with `tael eval`).
//
// Eviction by attention keeps a tail of old tokens besides, those that later queries looked at most
// (tail_scores.h). What is recent then begins at a block, for all 16 queries of a block alike:
//
//   0 .. sinks-1 | tail: `tail` tokens of those before | floor16(p) - recent ........ p
//
// with sinks + tail + recent + 8 <= tokens, so that the mean over the queries of a block is the
// window. Nothing is hidden before there is more than the tail can hold. What is not kept may be
// merged instead of dropped: one of the tail's slots then stands for all of it (slot_merge.h).
//
// Layers whose model has a window of its own (Gemma, Mistral) were trained without sinks and get
// neither sinks nor a tail; the tighter of the two windows holds.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kernels/kernels.h"
#include "kv/layer_group.h"

namespace tael::kv {

// What one query sees of a layer. sinks < tokens, but where tokens is 0: everything is seen.
struct Window {
  // What a window with a tail has to hold beside sinks and tail: a block of recent tokens, and half
  // of the block that is being filled.
  static constexpr uint32_t kLeastRecent = kernels::kBlockTokens + kernels::kBlockTokens / 2;

  uint32_t tokens = 0;
  uint32_t sinks = 0;
  uint32_t tail = 0;  // whole blocks; sinks + tail + kLeastRecent <= tokens where it is not 0

  // The sinks' blocks, as tokens: a tail lies behind them.
  uint32_t tail_begin() const { return WholeBlocks(sinks + uint32_t{kernels::kBlockTokens} - 1); }
  // Tokens before the block of a query that it sees for being recent. Requires: a tail.
  uint32_t recent() const {
    return WholeBlocks(tokens - sinks - tail - uint32_t{kernels::kBlockTokens} / 2);
  }
  // The first position whose query does not see everything. Requires: a tail.
  uint32_t first_choice() const {
    return tail_begin() + tail + recent() + uint32_t{kernels::kBlockTokens};
  }

  // The first token that the query at `position` sees for being recent.
  uint32_t FirstVisible(uint32_t position) const {
    if (tail != 0) return position < first_choice() ? 0 : WholeBlocks(position) - recent();
    const uint32_t last = tokens - sinks;
    return tokens == 0 || position < last ? 0 : position - last + 1;
  }
  bool operator==(const Window&) const = default;

 private:
  static uint32_t WholeBlocks(uint32_t n) { return n - n % uint32_t{kernels::kBlockTokens}; }
};

// What becomes of the tokens that leave a window.
enum class Evict : uint8_t {
  kDrop,
  kHeavy,  // those that got most attention stay, in a quarter of the window
  kMerge,  // so they do, and the others are merged
};
// Whether a window keeps a tail then.
constexpr bool ChoosesByAttention(Evict evict) { return evict != Evict::kDrop; }
const char* ToString(Evict evict);  // as --evict has it

enum class WindowShape : uint8_t {
  kUniform,
  // Shallow layers keep less: layer l of L in proportion to 0.5 + 0.5 l / (L - 1) (the seed's
  // ramp), at equal bytes.
  kLayered,
};

// What the user chose.
struct WindowPolicy {
  static constexpr uint32_t kAuto = UINT32_MAX;  // as much as the budget holds (engine/plan.h)

  uint32_t tokens = 0;  // that a layer keeps on average, sinks included; 0: no window
  uint32_t sinks = 4;
  WindowShape shape = WindowShape::kLayered;
  uint32_t floor = 256;  // memory pressure shrinks a window to this at least
  Evict evict = Evict::kDrop;
  uint32_t most = UINT32_MAX;  // tokens that kAuto stands for at most
  // Of a window that is kAuto, and becomes shorter than what the model was trained for: eviction is
  // that which loses least (docs/kv-quality.md), whatever is said here; but not a server's, which
  // could not share prefixes then.
  bool best = false;
  // Sequences begin with a window of so many tokens at most; it grows to `tokens` while there is
  // room (engine/dynamic_window.h). 0: they have all of it from the start.
  uint32_t start = 0;
};

// Fails: kInvalidArgument for a window that its sinks fill, and for eviction by attention without a
// window, in one that is too short for it, or in one that grows.
Status CheckWindow(const WindowPolicy& policy);

// Writes the policy into the windows and sinks of a geometry's groups. The layers of a group have
// one window, so a layered window climbs in steps, whole blocks each; over the layers of one shape
// the mean is `policy.tokens` at most. Where that leaves a layer no block beside its sinks, the
// shape is uniform. Requires: CheckWindow(policy); the geometry is as MakeGeometry() made it.
void ApplyWindow(const WindowPolicy& policy, Geometry& geometry);

// Rows of blocks that a sequence holds of a windowed group at most, while a pass of `pass_tokens`
// runs: the window, the pass, two partly used blocks at the ends, one more behind sinks. With a
// tail a pass brings a block at most (Sequence::MostAtOnce()). Requires: shape.window != 0.
uint64_t MostRows(const LayerShape& shape, uint32_t pass_tokens);

// The same shape with a window of `tokens` at most, as Sequence::LimitWindow() makes it.
LayerShape Narrowed(LayerShape shape, uint32_t tokens);

// Slots whose scores a sequence keeps for a tail (tail_scores.h). Requires: shape.tail != 0.
uint32_t MostSlots(const LayerShape& shape);
// Heap of the scores of all layers' tails, of one sequence.
uint64_t TailBytes(const Geometry& geometry);

// The widest window among the groups; 0 where one of them sees everything.
uint32_t WidestWindow(const Geometry& geometry);

}  // namespace tael::kv
