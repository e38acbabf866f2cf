#include "kv/slot_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kv/testing.h"

namespace tael::kv {
namespace {

using kernels::KvType;

std::vector<float> Normals(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& x : out) x = normal(random);
  return out;
}

using Store = void (*)(const float*, size_t, size_t, std::byte*);
using Copy = void (*)(KvType, size_t, const std::byte*, size_t, std::byte*, size_t);

// Copies slot 5 of a full tile over slot 11 of another full one: the result is what storing the
// vector there would have given, to the last byte of all other slots.
void ExpectACopyIsAStore(KvType type, size_t head_dim, size_t bytes, Store store, Copy copy) {
  std::vector<std::byte> from(bytes), to(bytes);
  for (uint32_t slot = 0; slot < 16; ++slot) {
    store(Normals(head_dim, slot).data(), head_dim, slot, from.data());
    store(Normals(head_dim, 100 + slot).data(), head_dim, slot, to.data());
  }
  std::vector<std::byte> want = to;
  store(Normals(head_dim, 5).data(), head_dim, 11, want.data());
  EXPECT_NE(to, want);
  copy(type, head_dim, from.data(), 5, to.data(), 11);
  EXPECT_EQ(to, want) << "type " << static_cast<int>(type) << ", " << head_dim << " dimensions";
}

TEST(SlotCopy, ACopyIsWhatStoringTheVectorThereWouldHaveGiven) {
  for (const size_t head_dim : {32u, 64u, 96u, 256u}) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8, KvType::kQ4}) {
      const kernels::KvTable& table = ScalarKernels().kv[static_cast<size_t>(type)];
      ExpectACopyIsAStore(type, head_dim, table.v_tile_bytes(head_dim), table.store_v,
                          CopyValueSlot);
      if (type == KvType::kQ4) continue;  // for values only
      ExpectACopyIsAStore(type, head_dim, table.k_tile_bytes(head_dim), table.store_k, CopyKeySlot);
    }
  }
}

TEST(SlotCopy, OneLayersSlotIsCopiedWithAllItsHeads) {
  const LayerShape shape{.num_kv_heads = 3, .head_dim = 32, .type = {KvType::kQ8, KvType::kQ4}};
  const Geometry geometry =
      MakeGeometry(std::vector<LayerShape>(4, shape), ScalarKernels(), 1 << 20);
  const LayerGroup& group = geometry.groups[0];
  ASSERT_EQ(group.layers.size(), 4u);
  const auto store = [&](std::vector<std::byte>& block, size_t slot, uint32_t seed) {
    for (uint32_t head = 6; head < 9; ++head) {  // of the third layer
      std::byte* tile = block.data() + head * group.head_bytes;
      const std::vector<float> x = Normals(32, seed + head);
      ScalarKernels().kv[static_cast<size_t>(KvType::kQ8)].store_k(x.data(), 32, slot, tile);
      ScalarKernels().kv[static_cast<size_t>(KvType::kQ4)].store_v(x.data(), 32, slot,
                                                                   tile + group.k_tile_bytes);
    }
  };
  std::vector<std::byte> from(group.block_bytes), to(group.block_bytes), want(group.block_bytes);
  std::ranges::fill(from, std::byte{7});
  store(from, 3, 1);
  store(want, 14, 1);
  CopySlot(group, 2, from.data(), 3, to.data(), 14);
  EXPECT_EQ(to, want);
}

}  // namespace
}  // namespace tael::kv
