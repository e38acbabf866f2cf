// One key and value that attend like several together: what is left of tokens that are merged
// (ALGORITHMS 4.1). Keys are turned back to one position before they are averaged: of two that were
// rotated for different positions, the fast dimensions would cancel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kv/layer_group.h"

namespace tael::kv {

struct SlotPart {
  const std::byte* block;
  size_t slot;   // 0..15
  float weight;  // of all parts: they sum to 1
  double shift;  // positions from its own to the one that the mean has
};

// Writes the mean of the parts' keys and values, all heads of one of a group's layers, to a slot of
// `to`, which may be one of theirs. `rotation`: of the layer's keys. It is rounded once more as it
// is stored; the sum is the same on every machine with the same kernels.
void MergeSlots(const LayerGroup& group, size_t layer, const Rotation& rotation,
                std::span<const SlotPart> parts, std::byte* to, size_t to_slot);

}  // namespace tael::kv
