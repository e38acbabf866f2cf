// Which types the cache stores keys and values in, layer by layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kv/layer_group.h"
#include "model/model.h"

namespace tael::engine {

// A bias of keys is huge where its largest value is more than this many times the median of all
// layers' (Qwen2 7B as published: norms of 605 and 921 in the first and the last layer, about 22
// elsewhere; keys of few bits break there).
inline constexpr float kHugeBias = 8;

// Of each layer: whether the largest magnitude of its key bias stands out. `largest` has one entry
// for each layer, 0 where there is no bias.
std::vector<bool> LayersWithHugeBias(std::span<const float> largest);

// The types of each layer. `wanted`: those, in all layers. None: q8, and f16 in the layers whose
// key bias is huge. Values of 4 bits become q8 where the head size is no multiple of 32.
std::vector<kernels::KvTypes> KvTypesByLayer(const model::Model& model,
                                             std::optional<kernels::KvTypes> wanted);

// "f16", "q8", "k8v4"; others as "k f16 v q8".
std::string NameOf(kernels::KvTypes types);

// "q8", or, where layers differ, "q8; f16 in layers 0, 23": the commonest type first.
std::string DescribeKvTypes(const kv::Geometry& geometry);

// Layers of one type, and what a token of all of them costs.
struct KvTypeShare {
  kernels::KvTypes types;
  uint32_t num_layers = 0;
  uint64_t bytes_per_token = 0;
};
// In order of first layer.
std::vector<KvTypeShare> KvTypeShares(const kv::Geometry& geometry);

}  // namespace tael::engine
