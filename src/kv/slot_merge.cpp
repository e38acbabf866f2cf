#include "kv/slot_merge.h"

#include <array>
#include <cmath>

#include "base/check.h"

namespace tael::kv {
namespace {

using kernels::KvType;

constexpr size_t kTokens = kernels::kBlockTokens;
constexpr size_t kMostDims = 1024;  // of a head (model/description.h)

using Head = std::array<float, kMostDims>;

float HalfAt(const std::byte* data) {
  float out;
  kernels::Active().matmul.dequantize_row[static_cast<size_t>(kernels::WeightType::kF16)](data, 1,
                                                                                          &out);
  return out;
}

// A key as it is stored, in f32. kernels.h draws the tiles.
void LoadKey(KvType type, size_t head_dim, const std::byte* tile, size_t slot, float* out) {
  switch (type) {
    case KvType::kF32:
      for (size_t d = 0; d < head_dim; ++d) {
        __builtin_memcpy(out + d, tile + (d * kTokens + slot) * sizeof(float), sizeof(float));
      }
      return;
    case KvType::kF16:
      for (size_t d = 0; d < head_dim; ++d) out[d] = HalfAt(tile + (d * kTokens + slot) * 2);
      return;
    case KvType::kQ8: {
      const float scale = HalfAt(tile + kTokens * head_dim + slot * 2);
      for (size_t d = 0; d < head_dim; ++d) {
        const std::byte number = tile[d / 4 * 4 * kTokens + slot * 4 + d % 4];
        out[d] = scale * static_cast<float>(static_cast<int8_t>(number));
      }
      return;
    }
    case KvType::kQ4:
      break;
  }
  TAEL_CHECK(false);  // q4 is for values only
}

// Turns a key on by so many positions.
void Turn(const kernels::VectorTable& vec, const Rotation& rotation, double positions, float* key) {
  const size_t half = rotation.frequencies.size();
  std::array<float, kMostDims / 2> cos, sin;
  for (size_t i = 0; i < half; ++i) {
    const double angle = positions * rotation.frequencies[i];
    cos[i] = static_cast<float>(std::cos(angle));
    sin[i] = static_cast<float>(std::sin(angle));
  }
  (rotation.pairs ? vec.rope_pairs : vec.rope_halves)(key, cos.data(), sin.data(), half);
}

}  // namespace

void MergeSlots(const LayerGroup& group, size_t layer, const Rotation& rotation,
                std::span<const SlotPart> parts, std::byte* to, size_t to_slot) {
  const LayerShape& shape = group.shape;
  const kernels::KernelTable& kernels = kernels::Active();
  const auto [k_type, v_type] = shape.type;
  const size_t head_dim = shape.head_dim;
  TAEL_CHECK(head_dim <= kMostDims);
  const bool transformed = IsQuantised(k_type);
  for (size_t head = 0; head < shape.num_kv_heads; ++head) {
    const size_t keys = layer * group.layer_bytes + head * group.head_bytes;
    alignas(kernels::kCacheLine) Head key{}, value{}, part_key;
    for (const SlotPart& part : parts) {
      LoadKey(k_type, head_dim, part.block + keys, part.slot, part_key.data());
      if (transformed) kernels.vec.hadamard(part_key.data(), head_dim);
      Turn(kernels.vec, rotation, part.shift, part_key.data());
      for (size_t d = 0; d < head_dim; ++d) key[d] += part.weight * part_key[d];
      alignas(kernels::kCacheLine) std::array<float, kTokens> weights{};
      weights[part.slot] = part.weight;
      kernels::AttendCall call{};
      call.blocks = &part.block;
      call.tile_offset = keys + group.k_tile_bytes;
      call.num_tokens = part.slot + 1;
      call.head_dim = head_dim;
      call.num_rows = 1;
      call.scores = weights.data();
      call.score_stride = kTokens;
      call.out = value.data();
      call.out_stride = head_dim;
      kernels.kv[static_cast<size_t>(v_type)].values(call);  // a mean of transformed ones is one
    }
    if (transformed) kernels.vec.hadamard(key.data(), head_dim);
    kernels.kv[static_cast<size_t>(k_type)].store_k(key.data(), head_dim, to_slot, to + keys);
    kernels.kv[static_cast<size_t>(v_type)].store_v(value.data(), head_dim, to_slot,
                                                    to + keys + group.k_tile_bytes);
  }
}

}  // namespace tael::kv
