// The oracle: a forward pass one can read in one sitting. One token at a time, f32 everywhere, a
// contiguous cache that keeps every key, plain loops, no kernels but the scalar dequantisers.
// Windows are a mask over that cache.
//
// Everything faster is held against it in tests. It shares the model's description and weights with
// the engine, and nothing else.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "model/model.h"
#include "model/rope.h"

namespace tael::exec {

class Reference {
 public:
  // What a layer shows: the first `sinks` tokens and the last window - sinks, or all (window 0).
  struct LayerWindow {
    uint32_t window = 0;
    uint32_t sinks = 0;
  };

  // `context_length` only chooses between the short and long factors of long RoPE.
  // `windows`: by layer; empty: what the model says.
  Reference(const model::Model& model, uint32_t context_length,
            std::vector<LayerWindow> windows = {});

  // From the next token on.
  void set_windows(std::vector<LayerWindow> windows) { windows_ = std::move(windows); }

  // Logits [vocab_size] after `token`. Requires: a valid id.
  std::vector<float> Feed(TokenId token);

 private:
  using Vector = std::vector<float>;

  Vector Multiply(const model::Matrix& matrix, const Vector& x, const float* bias) const;
  Vector RmsNorm(const Vector& x, const float* weight) const;
  void NormHeads(Vector& heads, const float* weight) const;
  void Rotate(Vector& heads, int32_t rope, uint32_t position) const;
  bool Sees(uint32_t layer, uint32_t token) const;
  Vector Attention(uint32_t layer, const Vector& q, const Vector& sink_q) const;
  Vector AttentionBlock(uint32_t layer, const Vector& x);
  Vector FfnBlock(uint32_t layer, const Vector& x) const;

  const model::Model& model_;
  std::vector<LayerWindow> windows_;  // by layer
  std::vector<model::RopeFrequencies> ropes_;
  uint32_t position_ = 0;
  std::vector<Vector> keys_;    // by layer: [position][num_kv_heads * head_dim]
  std::vector<Vector> values_;  // by layer: the same
};

}  // namespace tael::exec
