#include "model/rope.h"

#include <cmath>

namespace tael::model {

std::vector<RopeFrequencies> MakeRopeFrequencies(const ModelDescription& model,
                                                 const Weights& weights, uint32_t context_length) {
  const bool is_long = model.rope_original_context != 0 &&
                       context_length > model.rope_original_context &&
                       !weights.long_rope_factors.empty();
  const std::vector<float>& factors = is_long ? weights.long_rope_factors : weights.rope_factors;
  std::vector<RopeFrequencies> out;
  for (const RopeDescription& rope : model.ropes) {
    RopeFrequencies made;
    made.magnitude = rope.magnitude;
    for (uint32_t i = 0; i < model.rope_dims / 2; ++i) {
      double frequency = std::pow(rope.base, -2.0 * i / model.rope_dims) / rope.linear_factor;
      if (rope.use_factors && !factors.empty()) frequency /= static_cast<double>(factors[i]);
      made.frequencies.push_back(frequency);
    }
    out.push_back(std::move(made));
  }
  return out;
}

void FillRope(const RopeFrequencies& rope, uint32_t position, std::span<float> cos,
              std::span<float> sin) {
  for (size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double angle = position * rope.frequencies[i];
    cos[i] = static_cast<float>(std::cos(angle)) * rope.magnitude;
    sin[i] = static_cast<float>(std::sin(angle)) * rope.magnitude;
  }
}

}  // namespace tael::model
