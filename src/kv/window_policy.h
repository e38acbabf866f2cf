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
// Layers whose model has a window of its own (Gemma, Mistral) were trained without sinks and get
// none; the tighter of the two windows holds.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kv/layer_group.h"

namespace tael::kv {

// What one query sees of a layer. sinks < tokens, but where tokens is 0: everything is seen.
struct Window {
  uint32_t tokens = 0;
  uint32_t sinks = 0;

  // The first token that the query at `position` sees for being recent.
  uint32_t FirstVisible(uint32_t position) const {
    const uint32_t recent = tokens - sinks;
    return tokens == 0 || position < recent ? 0 : position - recent + 1;
  }
  bool operator==(const Window&) const = default;
};

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
};

// Fails: kInvalidArgument for a window that its sinks fill.
Status CheckWindow(const WindowPolicy& policy);

// Writes the policy into the windows and sinks of a geometry's groups. The layers of a group have
// one window, so a layered window climbs in steps, whole blocks each; over the layers of one shape
// the mean is `policy.tokens` at most. Where that leaves a layer no block beside its sinks, the
// shape is uniform. Requires: CheckWindow(policy); the geometry is as MakeGeometry() made it.
void ApplyWindow(const WindowPolicy& policy, Geometry& geometry);

// Rows of blocks that a sequence holds of a windowed group at most, while a pass of `pass_tokens`
// runs: the window, the pass, two partly used blocks at the ends, one more behind sinks.
// Requires: shape.window != 0.
uint64_t MostRows(const LayerShape& shape, uint32_t pass_tokens);

// The widest window among the groups; 0 where one of them sees everything.
uint32_t WidestWindow(const Geometry& geometry);

}  // namespace tael::kv
