// What a model is, in numbers and choices: the same shared operations (op_list.h) run every
// architecture, and this says with which sizes, norms, rotations and windows.
//
// Made from GGUF metadata only; no tensor is looked at. The facts that no key states (Gemma's layer
// pattern, SmolLM3's layers without rotation, ...) live in architectures.cpp, one entry each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"

namespace tael::model {

// Which pairs of a head's values a rotation turns.
enum class RopeLayout : uint8_t { kHalves, kPairs };  // (i, i + n/2), or (2i, 2i + 1)

enum class QkNorm : uint8_t { kNone, kPerHead, kWholeProjection };
enum class Activation : uint8_t { kSilu, kGelu };

// One set of rotation frequencies. Angle of pair i at position p:
//   p * base^(-2i / num_dims) / linear_factor / factors[i]
struct RopeDescription {
  double base = 10000;
  double linear_factor = 1;
  float magnitude = 1;  // multiplies cos and sin (long RoPE's attention factor)
  // Uses the per-pair divisors of `rope_freqs.weight` or `rope_factors_*.weight` when the file has
  // them.
  bool use_factors = false;
};

struct LayerDescription {
  uint32_t window = 0;  // tokens a query sees, itself included; 0 = all
  int32_t rope = 0;     // index into ModelDescription::ropes; -1: no rotation
  uint32_t num_kv_heads = 0;
};

struct ModelDescription {
  std::string architecture;
  std::string name;

  uint32_t num_layers = 0;
  uint32_t vocab_size = 0;  // rows of the embedding table; filled from the tensor
  uint32_t model_dim = 0;
  uint32_t ffn_dim = 0;
  uint32_t num_heads = 0;
  uint32_t head_dim = 0;
  uint32_t rope_dims = 0;  // values of a head that rotate
  uint32_t trained_context = 0;

  float norm_epsilon = 1e-5f;
  float embedding_scale = 1;
  float attention_scale = 1;    // multiplies q . k
  float attention_softcap = 0;  // 0: none
  float final_softcap = 0;

  bool pre_norm = true;    // norm before attention and FFN
  bool post_norm = false;  // norm after them, before the residual add
  bool qkv_bias = false;   // q, k and v always have biases (elsewhere: where the file has them)
  QkNorm qk_norm = QkNorm::kNone;
  RopeLayout rope_layout = RopeLayout::kHalves;
  Activation activation = Activation::kSilu;

  std::vector<RopeDescription> ropes;
  // Long RoPE (Phi-3): above this context the long factors are used; 0: the model has one set.
  uint32_t rope_original_context = 0;
  std::vector<LayerDescription> layers;
};

// Fails: kUnsupported naming the architecture or the setting; kMalformed naming the key and, for
// numbers, the limit.
Result<ModelDescription> Describe(const gguf::File& file);

// Names of the architectures that Describe() knows, for messages and `inspect`.
std::vector<std::string> SupportedArchitectures();

}  // namespace tael::model
