// Views of a model's tensors inside the mapped file, by role. Nothing is copied but the few vectors
// (norms, biases, rotation factors) that a file stores in another type than F32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gguf/file.h"
#include "kernels/kernels.h"
#include "model/description.h"

namespace tael::model {

// [rows, cols], row-major, in the file's own quantised layout.
struct Matrix {
  const std::byte* data = nullptr;
  size_t row_bytes = 0;
  uint32_t rows = 0;
  uint32_t cols = 0;
  kernels::WeightType type = kernels::WeightType::kF32;
};

// Null pointers are parts that the architecture does not have.
struct LayerWeights {
  Matrix q, k, v, output;
  Matrix gate, up, down;
  const float* attention_norm = nullptr;       // [model_dim]
  const float* attention_post_norm = nullptr;  // [model_dim]
  const float* ffn_norm = nullptr;             // [model_dim]
  const float* ffn_post_norm = nullptr;        // [model_dim]
  const float* q_norm = nullptr;  // [head_dim], or [num_heads * head_dim] for the whole projection
  const float* k_norm = nullptr;
  const float* q_bias = nullptr;  // [q.rows] ...
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* output_bias = nullptr;
};

struct Weights {
  Matrix embedding;  // [vocab_size, model_dim]
  Matrix output;     // the same tensor when tied
  bool tied = false;
  const float* output_norm = nullptr;  // [model_dim]
  std::vector<LayerWeights> layers;

  // Divisors of the rotation frequencies, [rope_dims / 2]; empty: all 1. `long_factors` serve
  // contexts above ModelDescription::rope_original_context.
  std::vector<float> rope_factors;
  std::vector<float> long_rope_factors;

  std::vector<std::unique_ptr<float[]>> owned;  // vectors that were not F32 in the file
  uint64_t owned_bytes = 0;
};

// Finds every tensor that the description calls for and checks its shape and type, then that the
// file holds no other: a tensor that is left over means that the model is not what it claims.
// Fills description.vocab_size. Fails: kMalformed naming the tensor (missing, wrong shape, left
// over); kUnsupported naming tensor and type.
Result<Weights> BindWeights(const gguf::File& file, ModelDescription& description);

}  // namespace tael::model
