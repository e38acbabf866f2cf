// The oracle: a forward pass one can read in one sitting. One token at a time, f32 everywhere, a
// contiguous cache that keeps every key, plain loops, no kernels but the scalar dequantisers.
// Windows are a mask over that cache, and so is eviction by attention.
//
// Everything faster is held against it in tests. It shares the model's description and weights with
// the engine, and nothing else.
#pragma once

#include <cmath>
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

  // Eviction by attention, of one layer: what is seen are the tokens from floor16(position) -
  // recent on, `tail` of those before, which have the highest scores, and the sinks. Nothing is
  // hidden from positions before `first_choice`. Scores fade by 0.998 for each token. Where it
  // merges, one place of the tail goes to the mean of those that are not kept (ALGORITHMS 4.1).
  struct Summary {
    std::vector<float> key = {};  // [num_kv_heads * head_dim], as it is rotated at `position`
    std::vector<float> value = {};
    double position = 0;
    double bias = 0;
    double score = 0;
  };
  struct Tail {
    uint32_t sinks = 0;
    uint32_t tail = 0;  // none: windows[] of the layer
    uint32_t recent = 0;
    uint32_t first_choice = 0;
    uint32_t reach = UINT32_MAX;  // older tokens lose, whatever attention they got
    bool merges = false;
    // What has come of it:
    std::vector<double> scores = {};  // by position
    std::vector<uint32_t> kept = {};  // positions of the tail, ascending
    std::vector<Summary> summaries = {};
    double least_margin = INFINITY;  // of a choice: how far the best loser was behind, relatively
  };
  // By layer; or empty. Before the first token, or to give tails up.
  void set_tails(std::vector<Tail> tails) { tails_ = std::move(tails); }
  const std::vector<Tail>& tails() const { return tails_; }

  // Prompt compression: the queries from observe_from to at - 1 say which blocks of 16 tokens are
  // good; of those before recent_from that are still there the first and the best others stay,
  // `blocks` in all, for queries from `at` on. A block is as good as its best token.
  struct Compression {
    uint32_t at = 0;  // 0: none
    uint32_t observe_from = 0;
    uint32_t recent_from = 0;
    uint32_t blocks = 0;
    std::vector<std::vector<uint32_t>> groups = {};  // layers that choose together; others do not
    std::vector<std::vector<double>> scores = {};    // by group and position
  };
  // Before observe_from; again for a second prompt.
  void set_compression(Compression compression);
  // By block of a layer, up to the last that is gone.
  const std::vector<bool>& gone(uint32_t layer) const { return gone_[layer]; }
  // Of all choices so far: how far the best loser was behind, relatively.
  double least_margin() const { return least_margin_; }

  // From the next token on.
  void set_windows(std::vector<LayerWindow> windows) { windows_ = std::move(windows); }

  // Logits [vocab_size] after `token`. Requires: a valid id.
  std::vector<float> Feed(TokenId token);

 private:
  using Vector = std::vector<float>;
  // What a query is compared with: a token, or a summary.
  struct Item {
    const float* key;  // [num_kv_heads * head_dim], and so is the value
    const float* value;
    float bias;
    bool is_sink;
    double* score;     // of the tail; null: there is none
    double* observed;  // of the compression; null: it does not count
  };

  Vector Multiply(const model::Matrix& matrix, const Vector& x, const float* bias) const;
  Vector RmsNorm(const Vector& x, const float* weight) const;
  void NormHeads(Vector& heads, const float* weight) const;
  void Rotate(Vector& heads, int32_t rope, uint32_t position) const;
  bool Sees(uint32_t layer, uint32_t token) const;
  bool HasTail(uint32_t layer) const { return !tails_.empty() && tails_[layer].tail != 0; }
  bool TailSees(const Tail& tail, uint32_t token) const;
  void Choose(uint32_t layer);
  std::vector<Summary> Candidates(uint32_t layer, uint32_t end);
  Summary MeanOf(uint32_t layer, const std::vector<Summary>& parts) const;
  std::vector<Item> Visible(uint32_t layer);
  bool IsGone(uint32_t layer, uint32_t block) const;
  std::vector<double>* Observed(uint32_t layer);
  void Compress();
  Vector Attention(uint32_t layer, const Vector& q, const Vector& sink_q);
  Vector AttentionBlock(uint32_t layer, const Vector& x);
  Vector FfnBlock(uint32_t layer, const Vector& x) const;

  const model::Model& model_;
  std::vector<LayerWindow> windows_;  // by layer
  std::vector<Tail> tails_;           // by layer
  Compression compression_;
  std::vector<std::vector<bool>> gone_;  // by layer and block
  double least_margin_ = INFINITY;
  std::vector<model::RopeFrequencies> ropes_;
  uint32_t position_ = 0;
  std::vector<Vector> keys_;    // by layer: [position][num_kv_heads * head_dim]
  std::vector<Vector> values_;  // by layer: the same
};

}  // namespace tael::exec
