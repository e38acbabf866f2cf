#include "model/extents.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace tael::model {
namespace {

constexpr std::string_view kLayerPrefix = "blk.";

// The layer that a tensor belongs to, or num_layers for the others.
uint32_t LayerOf(std::string_view name, uint32_t num_layers) {
  if (!name.starts_with(kLayerPrefix)) return num_layers;
  uint32_t layer = num_layers;
  std::from_chars(name.data() + kLayerPrefix.size(), name.data() + name.size(), layer);
  return std::min(layer, num_layers);
}

uint64_t Sum(const std::vector<Extent>& extents) {
  uint64_t bytes = 0;
  for (const Extent& extent : extents) bytes += extent.bytes;
  return bytes;
}

}  // namespace

uint64_t WeightExtents::rest_bytes() const { return Sum(rest); }

uint64_t WeightExtents::layer_bytes(size_t index) const { return Sum(layers[index]); }

uint64_t WeightExtents::largest_layer_bytes() const {
  uint64_t largest = 0;
  for (size_t i = 0; i < layers.size(); ++i) largest = std::max(largest, layer_bytes(i));
  return largest;
}

WeightExtents ExtentsOf(const gguf::File& file, uint32_t num_layers) {
  std::vector<const gguf::TensorInfo*> tensors;
  for (const gguf::TensorInfo& tensor : file.tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  WeightExtents out;
  out.layers.resize(num_layers);
  out.rest.push_back({0, tensors.empty() ? file.bytes().size() : tensors.front()->offset});
  // Everything up to the next tensor goes with this one, so that nothing of the file is left out.
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t begin = tensors[i]->offset;
    const uint64_t end = i + 1 < tensors.size() ? tensors[i + 1]->offset : file.bytes().size();
    const uint32_t layer = LayerOf(tensors[i]->name, num_layers);
    std::vector<Extent>& extents = layer < num_layers ? out.layers[layer] : out.rest;
    if (!extents.empty() && extents.back().offset + extents.back().bytes == begin) {
      extents.back().bytes += end - begin;
    } else {
      extents.push_back({begin, end - begin});
    }
  }
  return out;
}

}  // namespace tael::model
