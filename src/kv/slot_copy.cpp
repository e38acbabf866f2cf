#include "kv/slot_copy.h"

#include <cstring>

#include "base/check.h"

namespace tael::kv {
namespace {

using kernels::KvType;

constexpr size_t kTokens = kernels::kBlockTokens;
constexpr size_t kF16 = 2;  // bytes, of scales too

// Where a token's part of a tile lies: `count` pieces of `bytes`, `stride` apart; those of the next
// token follow `bytes` later.
struct Pieces {
  size_t offset;
  size_t count;
  size_t stride;
  size_t bytes;
};

void Copy(const Pieces& pieces, const std::byte* from, size_t from_slot, std::byte* to,
          size_t to_slot) {
  const std::byte* source = from + pieces.offset + from_slot * pieces.bytes;
  std::byte* target = to + pieces.offset + to_slot * pieces.bytes;
  for (size_t i = 0; i < pieces.count; ++i) {
    std::memcpy(target + i * pieces.stride, source + i * pieces.stride, pieces.bytes);
  }
}

// One number of `bytes` for each dimension.
Pieces Column(size_t head_dim, size_t bytes) { return {0, head_dim, kTokens * bytes, bytes}; }
Pieces Row(size_t offset, size_t bytes) { return {offset, 1, 0, bytes}; }

}  // namespace

void CopyKeySlot(KvType type, size_t head_dim, const std::byte* from, size_t from_slot,
                 std::byte* to, size_t to_slot) {
  const auto copy = [&](const Pieces& pieces) { Copy(pieces, from, from_slot, to, to_slot); };
  switch (type) {
    case KvType::kF32:
      return copy(Column(head_dim, sizeof(float)));
    case KvType::kF16:
      return copy(Column(head_dim, kF16));
    case KvType::kQ8:
      copy(Column(head_dim / 4, 4));  // four dimensions of a token lie together
      return copy(Row(kTokens * head_dim, kF16));
    case KvType::kQ4:
      break;
  }
  TAEL_CHECK(false);  // q4 is for values only
}

void CopyValueSlot(KvType type, size_t head_dim, const std::byte* from, size_t from_slot,
                   std::byte* to, size_t to_slot) {
  const auto copy = [&](const Pieces& pieces) { Copy(pieces, from, from_slot, to, to_slot); };
  switch (type) {
    case KvType::kF32:
      return copy(Row(0, head_dim * sizeof(float)));
    case KvType::kF16:
      return copy(Row(0, head_dim * kF16));
    case KvType::kQ8:
      copy(Row(0, kF16));
      return copy(Row(kTokens * kF16, head_dim));
    case KvType::kQ4:
      copy(Column(head_dim / kernels::kQ4Group, kF16));
      return copy(Row(head_dim / kernels::kQ4Group * kTokens * kF16, head_dim / 2));
  }
}

void CopySlot(const LayerGroup& group, size_t layer, const std::byte* from, size_t from_slot,
              std::byte* to, size_t to_slot) {
  const LayerShape& shape = group.shape;
  for (size_t head = 0; head < shape.num_kv_heads; ++head) {
    const size_t keys = layer * group.layer_bytes + head * group.head_bytes;
    const size_t values = keys + group.k_tile_bytes;
    CopyKeySlot(shape.type.k, shape.head_dim, from + keys, from_slot, to + keys, to_slot);
    CopyValueSlot(shape.type.v, shape.head_dim, from + values, from_slot, to + values, to_slot);
  }
}

}  // namespace tael::kv
