// Copies the key and value of one token from a slot of a block to a slot of another, as they are
// stored: nothing is rotated, scaled or rounded again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "kv/layer_group.h"

namespace tael::kv {

// Of one tile (kernels.h draws them). Slots are 0..15.
void CopyKeySlot(kernels::KvType type, size_t head_dim, const std::byte* from, size_t from_slot,
                 std::byte* to, size_t to_slot);
void CopyValueSlot(kernels::KvType type, size_t head_dim, const std::byte* from, size_t from_slot,
                   std::byte* to, size_t to_slot);

// Of all heads of one of a group's layers, between two of its blocks.
void CopySlot(const LayerGroup& group, size_t layer, const std::byte* from, size_t from_slot,
              std::byte* to, size_t to_slot);

}  // namespace tael::kv
