#include "engine/kv_types.h"

#include <algorithm>
#include <cmath>

namespace tael::engine {

using kernels::KvType;
using kernels::KvTypes;

namespace {

float LargestMagnitude(const float* values, size_t count) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

const char* NameOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kQ8:
      return "q8";
    case KvType::kQ4:
      return "q4";
  }
  return "?";
}

}  // namespace

std::vector<bool> LayersWithHugeBias(std::span<const float> largest) {
  std::vector<float> sorted(largest.begin(), largest.end());
  // Of two, the smaller: the other one may be huge.
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  std::vector<bool> huge(largest.size());
  for (size_t i = 0; i < largest.size(); ++i) huge[i] = largest[i] > kHugeBias * *middle;
  return huge;
}

std::vector<KvTypes> KvTypesByLayer(const model::Model& model, std::optional<KvTypes> wanted) {
  const auto& layers = model.weights().layers;
  std::vector<KvTypes> types(layers.size(), wanted.value_or(KvType::kQ8));
  if (!wanted) {
    std::vector<float> largest;
    for (const model::LayerWeights& layer : layers) {
      const size_t count = layer.k_bias != nullptr ? layer.k.rows : 0;
      largest.push_back(LargestMagnitude(layer.k_bias, count));
    }
    const std::vector<bool> huge = LayersWithHugeBias(largest);
    for (size_t i = 0; i < types.size(); ++i) {
      if (huge[i]) types[i] = KvType::kF16;
    }
  }
  for (KvTypes& type : types) {
    const bool whole_groups = model.description().head_dim % kernels::kQ4Group == 0;
    if (type.v == KvType::kQ4 && !whole_groups) type.v = KvType::kQ8;
  }
  return types;
}

std::string NameOf(KvTypes types) {
  if (types.k == types.v) return NameOf(types.k);
  if (types == KvTypes{KvType::kQ8, KvType::kQ4}) return "k8v4";
  return std::string("k ") + NameOf(types.k) + " v " + NameOf(types.v);
}

std::vector<KvTypeShare> KvTypeShares(const kv::Geometry& geometry) {
  std::vector<KvTypeShare> shares;
  for (const kv::LayerPlace& place : geometry.places) {
    const kv::LayerGroup& group = geometry.group(place.group);
    auto share = std::find_if(shares.begin(), shares.end(),
                              [&](const KvTypeShare& s) { return s.types == group.shape.type; });
    if (share == shares.end()) {
      shares.push_back({.types = group.shape.type});
      share = shares.end() - 1;
    }
    ++share->num_layers;
    share->bytes_per_token += group.layer_bytes;  // of 16 tokens
  }
  for (KvTypeShare& share : shares) share.bytes_per_token /= kernels::kBlockTokens;
  return shares;
}

std::string DescribeKvTypes(const kv::Geometry& geometry) {
  std::vector<KvTypeShare> shares = KvTypeShares(geometry);
  std::stable_sort(shares.begin(), shares.end(), [](const KvTypeShare& a, const KvTypeShare& b) {
    return a.num_layers > b.num_layers;
  });
  std::string text = NameOf(shares.front().types);
  for (size_t i = 1; i < shares.size(); ++i) {
    text += "; " + NameOf(shares[i].types) + " in layers ";
    std::string separator;
    for (size_t layer = 0; layer < geometry.places.size(); ++layer) {
      if (geometry.group(geometry.places[layer].group).shape.type != shares[i].types) continue;
      text += separator + std::to_string(layer);
      separator = ", ";
    }
  }
  return text;
}

}  // namespace tael::engine
