// Rotation frequencies: from a description and a file's factors to one angle per pair and position.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/description.h"
#include "model/weights.h"

namespace tael::model {

// Angular frequencies of one rope, [rope_dims / 2]; angle = position * frequency. In double: at
// position 10^5 a float angle is off by more than 1e-2 for the fastest pair (ALGORITHMS 2.3).
struct RopeFrequencies {
  std::vector<double> frequencies;
  float magnitude = 1;
};

// One entry per ModelDescription::ropes. `context_length` picks the long factors of long RoPE
// (Phi-3) when it is above the original context.
std::vector<RopeFrequencies> MakeRopeFrequencies(const ModelDescription& model,
                                                 const Weights& weights, uint32_t context_length);

// cos and sin of every pair at `position`, times the magnitude. Both spans: [rope_dims / 2].
void FillRope(const RopeFrequencies& rope, uint32_t position, std::span<float> cos,
              std::span<float> sin);

}  // namespace tael::model
