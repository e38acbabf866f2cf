#include "model/architectures.h"

#include <array>

namespace tael::model {
namespace {

constexpr std::array<Architecture, 8> kArchitectures = {{
    // Llama 2 and 3, Mistral, SmolLM2, TinyLlama. The file's q and k rows are permuted for
    // rotation of adjacent pairs; Llama 3's factors come as `rope_freqs.weight`.
    {.name = "llama", .rope_layout = RopeLayout::kPairs, .window = WindowPattern::kAllLayers},
    {.name = "qwen2", .qkv_bias = true},
    {.name = "qwen3", .qk_norm = QkNorm::kPerHead},
    {.name = "gemma2",
     .activation = Activation::kGelu,
     .window = WindowPattern::kEvenLayers,
     .post_norm = true,
     .scale_embedding = true},
    {.name = "gemma3",
     .qk_norm = QkNorm::kPerHead,
     .activation = Activation::kGelu,
     .window = WindowPattern::kFiveOfSix,
     .post_norm = true,
     .scale_embedding = true,
     .local_rope_base = 10000},
    {.name = "phi3", .window = WindowPattern::kAllLayers},
    {.name = "smollm3", .rope_layout = RopeLayout::kPairs, .no_rope_every = 4},
    {.name = "olmo2", .qk_norm = QkNorm::kWholeProjection, .pre_norm = false, .post_norm = true},
}};

}  // namespace

std::span<const Architecture> Architectures() { return kArchitectures; }

const Architecture* FindArchitecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == name) return &architecture;
  }
  return nullptr;
}

}  // namespace tael::model
