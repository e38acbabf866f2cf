// Where in the file each layer's weights lie: what is read ahead, kept and dropped together.
#pragma once

#include <cstdint>
#include <vector>

#include "gguf/file.h"

namespace tael::model {

struct Extent {
  uint64_t offset = 0;  // from the start of the file
  uint64_t bytes = 0;
};

struct WeightExtents {
  std::vector<std::vector<Extent>> layers;  // of each layer, in order of the file
  std::vector<Extent> rest;                 // embedding, output, and all before the tensors

  uint64_t rest_bytes() const;
  // Bytes of layer `index`, and of the largest one.
  uint64_t layer_bytes(size_t index) const;
  uint64_t largest_layer_bytes() const;
};

// Neighbouring tensors are one extent, with the padding between them. Tensors belong to layer N if
// they are named "blk.N...."; `num_layers` is the model's.
WeightExtents ExtentsOf(const gguf::File& file, uint32_t num_layers);

}  // namespace tael::model
