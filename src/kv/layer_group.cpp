#include "kv/layer_group.h"

#include <algorithm>

#include "base/checked.h"

namespace tael::kv {
namespace {

// How many layers make a block of about `target` bytes: the nearest whole number.
size_t LayersPerBlock(size_t layer_bytes, size_t target) {
  if (layer_bytes == 0) return 1;
  return std::max<size_t>(1, (target + layer_bytes / 2) / layer_bytes);
}

LayerGroup MakeGroup(const LayerShape& shape, std::span<const uint32_t> layers,
                     const kernels::KernelTable& kernels) {
  const kernels::KvTable& keys = kernels.kv[static_cast<size_t>(shape.type.k)];
  const kernels::KvTable& values = kernels.kv[static_cast<size_t>(shape.type.v)];
  LayerGroup group;
  group.layers.assign(layers.begin(), layers.end());
  group.shape = shape;
  group.k_tile_bytes = keys.k_tile_bytes(shape.head_dim);
  group.head_bytes = RoundUp(group.k_tile_bytes + values.v_tile_bytes(shape.head_dim),
                             size_t{kernels::kCacheLine});
  group.layer_bytes = shape.num_kv_heads * group.head_bytes;
  group.block_bytes = layers.size() * group.layer_bytes;
  return group;
}

// Cuts the layers of one shape into groups and writes down where each layer went.
void AddGroups(const LayerShape& shape, std::span<const uint32_t> layers,
               const kernels::KernelTable& kernels, size_t target, Geometry& geometry) {
  const size_t layer_bytes = MakeGroup(shape, layers.first(1), kernels).layer_bytes;
  const size_t num_groups = CeilDiv(layers.size(), LayersPerBlock(layer_bytes, target));
  size_t begin = 0;
  for (size_t i = 0; i < num_groups; ++i) {
    // The first `size % num_groups` groups get one layer more.
    const size_t size = layers.size() / num_groups + (i < layers.size() % num_groups ? 1 : 0);
    const GroupId id{static_cast<uint32_t>(geometry.groups.size())};
    const std::span<const uint32_t> members = layers.subspan(begin, size);
    for (size_t j = 0; j < size; ++j) geometry.places[members[j]] = {id, j * layer_bytes};
    geometry.groups.push_back(MakeGroup(shape, members, kernels));
    begin += size;
  }
}

}  // namespace

uint64_t Geometry::RowBytes() const {
  uint64_t bytes = 0;
  for (const LayerGroup& group : groups) bytes += group.block_bytes;
  return bytes;
}

uint64_t Geometry::BytesPerToken() const { return RowBytes() / kernels::kBlockTokens; }

Geometry MakeGeometry(std::span<const LayerShape> layers, const kernels::KernelTable& kernels,
                      size_t target_block_bytes) {
  TAEL_CHECK(!layers.empty());
  Geometry geometry;
  geometry.places.resize(layers.size());
  std::vector<bool> done(layers.size());
  std::vector<uint32_t> equal;
  for (size_t first = 0; first < layers.size(); ++first) {
    if (done[first]) continue;
    equal.clear();
    for (size_t i = first; i < layers.size(); ++i) {
      if (!(layers[i] == layers[first])) continue;
      equal.push_back(static_cast<uint32_t>(i));
      done[i] = true;
    }
    AddGroups(layers[first], equal, kernels, target_block_bytes, geometry);
  }
  return geometry;
}

}  // namespace tael::kv
