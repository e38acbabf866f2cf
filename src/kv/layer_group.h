// How layers share blocks. A block holds 16 tokens of K and V of one layer group: consecutive (or
// at least equal) layers with the same attention window and KV shape, so many of them that a block
// is about 64 KiB (DESIGN section 1; the seed's 24 x 1 KiB layers give 6 groups of 4).
//
// Block layout, for the i-th layer of the group and each KV head h:
//
//   [layer 0: [head 0: K tile | V tile] [head 1: K tile | V tile] ...] [layer 1: ...] ...
//
// K and V of a head lie side by side, so one head's attention reads one run of bytes per block; a
// head begins at a cache line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kernels/kernels.h"

namespace tael::kv {

enum class GroupId : uint32_t {};

// What the cache needs to know of one model layer.
struct LayerShape {
  uint32_t num_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t window = 0;  // tokens a query sees, itself included; 0 = all
  kernels::KvTypes type = kernels::KvType::kF16;
  uint32_t sinks = 0;   // of the window, first tokens that are always seen (window_policy.h)
  uint32_t tail = 0;    // of the window, old tokens that are kept for the attention they got
  bool merges = false;  // tokens that leave such a window leave their mean in the tail
  bool operator==(const LayerShape&) const = default;
};

struct LayerGroup {
  std::vector<uint32_t> layers;  // model layer indices, ascending
  LayerShape shape;              // common to all of them
  size_t k_tile_bytes = 0;       // where the V tile of a head begins
  size_t head_bytes = 0;         // K tile + V tile of one head, rounded up to 64
  size_t layer_bytes = 0;        // num_kv_heads * head_bytes
  size_t block_bytes = 0;        // layers.size() * layer_bytes
};

// Where a layer's KV lives: its group and its offset inside a block.
struct LayerPlace {
  GroupId group{};
  size_t layer_offset = 0;  // bytes from the block base to K of head 0
};

// How the keys of a layer turn with their position: pair i by position * frequencies[i].
struct Rotation {
  std::vector<double> frequencies;  // empty: not at all
  bool pairs = false;               // (2i, 2i + 1); else (i, i + the number of pairs)
};

struct Geometry {
  std::vector<LayerGroup> groups;
  std::vector<LayerPlace> places;     // by model layer
  std::vector<Rotation> rotations{};  // by model layer, where a group merges; else empty
  // How far apart a query and a key may be: what the model was trained for. Older tokens leave a
  // tail, whatever attention they got.
  uint32_t reach = UINT32_MAX;

  const LayerGroup& group(GroupId id) const { return groups[static_cast<size_t>(id)]; }
  size_t k_tile_bytes(GroupId id) const { return group(id).k_tile_bytes; }
  // Bytes of one block row: 16 tokens of every layer.
  uint64_t RowBytes() const;
  // Bytes of KV that one more token costs when every layer keeps it (a block row / 16).
  uint64_t BytesPerToken() const;
};

inline constexpr size_t kTargetBlockBytes = 64 * 1024;

// Layers of equal shape share groups, in layer order, whether they are adjacent or not (Gemma: five
// local layers, one global, ...); groups of one shape differ by at most one layer.
// Requires: layers is not empty. `kernels` gives the tile sizes of each KvType (any ISA's table:
// they are equal).
Geometry MakeGeometry(std::span<const LayerShape> layers, const kernels::KernelTable& kernels,
                      size_t target_block_bytes = kTargetBlockBytes);

}  // namespace tael::kv
