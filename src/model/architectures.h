// The architectures Tael knows, each as a few choices over the shared operations.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/description.h"

namespace tael::model {

// Which layers see only the window that `attention.sliding_window` gives.
enum class WindowPattern : uint8_t {
  kNone,        // the key is not used by this family; a non-zero value is refused
  kAllLayers,   // Mistral, Phi-3
  kEvenLayers,  // Gemma 2: layers 0, 2, 4 ... are local
  kFiveOfSix,   // Gemma 3: layer i is global when i % 6 == 5
};

struct Architecture {
  std::string_view name;  // `general.architecture`
  RopeLayout rope_layout = RopeLayout::kHalves;
  QkNorm qk_norm = QkNorm::kNone;
  Activation activation = Activation::kSilu;
  WindowPattern window = WindowPattern::kNone;
  bool pre_norm = true;
  bool post_norm = false;
  bool qkv_bias = false;
  bool scale_embedding = false;  // embeddings are multiplied by sqrt(model_dim)
  uint32_t no_rope_every = 0;    // layer i is not rotated when (i + 1) % n == 0
  double local_rope_base = 0;    // local layers rotate with their own base (0: with the global)
};

std::span<const Architecture> Architectures();
const Architecture* FindArchitecture(std::string_view name);  // null if unknown

}  // namespace tael::model
