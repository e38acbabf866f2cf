#include "kv/layer_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kv/block_pool.h"
#include "kv/testing.h"

namespace tael::kv {
namespace {

using testing::ElementsAre;

LayerShape F16(uint32_t num_kv_heads, uint32_t head_dim, uint32_t window = 0) {
  return {num_kv_heads, head_dim, window, kernels::KvType::kF16};
}

std::vector<size_t> Sizes(const Geometry& geometry) {
  std::vector<size_t> out;
  for (const LayerGroup& group : geometry.groups) out.push_back(group.layers.size());
  return out;
}

TEST(LayerGroup, FifteenLayersOfSixteenKibAreCutEvenly) {
  const std::vector<LayerShape> layers(15, F16(1, 256));
  const Geometry geometry = MakeGeometry(layers, TileSizes());
  EXPECT_THAT(Sizes(geometry), ElementsAre(4, 4, 4, 3));
  EXPECT_EQ(geometry.group(GroupId{0}).block_bytes, 64u * 1024);
  EXPECT_EQ(geometry.group(GroupId{3}).block_bytes, 48u * 1024);
  EXPECT_THAT(geometry.groups[1].layers, ElementsAre(4, 5, 6, 7));
}

TEST(LayerGroup, SmolLM2sThirtyLayersGiveSixBlocksOfSixtyKib) {
  const std::vector<LayerShape> layers(30, F16(3, 64));
  const Geometry geometry = MakeGeometry(layers, TileSizes());
  EXPECT_THAT(Sizes(geometry), ElementsAre(5, 5, 5, 5, 5, 5));
  EXPECT_EQ(geometry.BytesPerToken(), 23040u);  // 22.5 KiB
}

TEST(LayerGroup, LayersOfAnotherWindowOrWidthHaveGroupsOfTheirOwn) {
  // Gemma's pattern: five local layers, one global.
  std::vector<LayerShape> layers;
  for (uint32_t i = 0; i < 18; ++i) layers.push_back(F16(1, 256, i % 6 == 5 ? 0 : 512));
  const Geometry geometry = MakeGeometry(layers, TileSizes());
  EXPECT_THAT(Sizes(geometry), ElementsAre(4, 4, 4, 3, 3));
  EXPECT_THAT(geometry.groups[1].layers, ElementsAre(4, 6, 7, 8));
  EXPECT_THAT(geometry.groups[4].layers, ElementsAre(5, 11, 17));
  EXPECT_EQ(geometry.groups[4].shape.window, 0u);
  EXPECT_EQ(geometry.BytesPerToken(), 18u * 1024);
}

TEST(LayerGroup, EveryLayerIsFoundWhereItsGroupSaysItIs) {
  std::vector<LayerShape> layers;
  for (uint32_t i = 0; i < 23; ++i) layers.push_back(i % 3 == 0 ? F16(2, 64, 32) : F16(4, 128));
  const Geometry geometry = MakeGeometry(layers, TileSizes());
  ASSERT_EQ(geometry.places.size(), layers.size());
  for (uint32_t i = 0; i < layers.size(); ++i) {
    const LayerPlace place = geometry.places[i];
    const LayerGroup& group = geometry.group(place.group);
    EXPECT_EQ(group.shape, layers[i]);
    EXPECT_EQ(group.layers.at(place.layer_offset / group.layer_bytes), i);
    EXPECT_LE(place.layer_offset + group.layer_bytes, group.block_bytes);
  }
}

TEST(LayerGroup, AHeadsKeyAndValueTilesLieSideBySide) {
  const std::vector<LayerShape> layers(2, LayerShape{3, 64, 0, kernels::KvType::kF32});
  const Geometry geometry = MakeGeometry(layers, TileSizes());
  EXPECT_EQ(geometry.k_tile_bytes(GroupId{0}), 64u * 16 * 4);
  EXPECT_EQ(geometry.groups[0].head_bytes, 2u * 64 * 16 * 4);
  EXPECT_EQ(geometry.groups[0].layer_bytes, 3u * 2 * 64 * 16 * 4);
}

// 0.53 of f16 for q8, 0.42 for 4-bit values beside 8-bit keys, scales included.
TEST(LayerGroup, QuantisedTypesTakeTheirShareOfF16) {
  const kernels::KvTypes q8 = kernels::KvType::kQ8;
  const kernels::KvTypes k8v4 = {kernels::KvType::kQ8, kernels::KvType::kQ4};
  for (const uint32_t head_dim : {64u, 96u, 128u, 256u}) {
    const auto bytes = [&](kernels::KvTypes types) {
      const std::vector<LayerShape> layers(30, {3, head_dim, 0, types});
      return static_cast<double>(MakeGeometry(layers, TileSizes()).RowBytes());
    };
    const double f16 = bytes(kernels::KvType::kF16);
    EXPECT_LE(bytes(q8), 0.53 * f16) << head_dim;
    EXPECT_LE(bytes(k8v4), 0.42 * f16) << head_dim;
  }
}

TEST(LayerGroup, LayersOfAnotherTypeHaveGroupsOfTheirOwnAndHeadsBeginAtACacheLine) {
  const kernels::KvTypes k8v4 = {kernels::KvType::kQ8, kernels::KvType::kQ4};
  std::vector<LayerShape> layers(24, {2, 64, 0, k8v4});
  layers.front().type = layers.back().type = kernels::KvType::kF16;
  const Geometry geometry = MakeGeometry(layers, TileSizes());
  EXPECT_THAT(geometry.groups[0].layers, ElementsAre(0, 23));
  for (const LayerGroup& group : geometry.groups) {
    EXPECT_EQ(group.head_bytes % 64, 0u);
    EXPECT_EQ(group.shape, layers[group.layers[0]]);
  }
  EXPECT_EQ(geometry.groups[1].k_tile_bytes, 64u * 16 + 32);
  EXPECT_EQ(geometry.groups[1].head_bytes, 64u * 26);  // 32 bytes of 1664 are padding
}

TEST(LayerGroup, ALayerLargerThanTheTargetIsAGroupAlone) {
  const std::vector<LayerShape> layers(2, F16(8, 256));  // 128 KiB
  EXPECT_THAT(Sizes(MakeGeometry(layers, TileSizes())), ElementsAre(1, 1));
}

// The three numbers of the seed agree: 24 layers of 1 KiB per token are six groups of four, so
// 256 MiB are 4096 blocks or 682 rows, and 192 MiB are 512 rows.
TEST(LayerGroup, TheSeedsNumbersComeOut) {
  const std::vector<LayerShape> layers(24, F16(2, 128));
  const Geometry geometry = MakeGeometry(layers, TileSizes());
  EXPECT_THAT(Sizes(geometry), ElementsAre(4, 4, 4, 4, 4, 4));
  EXPECT_EQ(geometry.BytesPerToken(), 24u * 1024);
  EXPECT_EQ(geometry.RowBytes(), 384u * 1024);

  for (const auto& [mib, blocks, rows] : {std::tuple{256u, 4096u, 682u}, {192u, 3072u, 512u}}) {
    mem::MemoryBudget budget(0);
    PoolOptions options;
    options.capacity_bytes = uint64_t{mib} << 20;
    for (const LayerGroup& group : geometry.groups)
      options.block_bytes.push_back(group.block_bytes);
    const auto pool = *BlockPool::Create(budget, options);
    EXPECT_EQ(pool->NumFree(SizeClass{0}), blocks);

    // Rows are granted until there are no more, whole rows only.
    std::vector<std::vector<BlockId>> held;
    for (bool granted = true; granted;) {
      std::vector<BlockId> row(6);
      std::vector<BlockPool::Request> requests;
      for (uint32_t g = 0; g < 6; ++g) {
        const BlockId near = held.empty() ? kNullBlock : held.back()[g];
        requests.push_back({SizeClass{g}, near, std::span(row).subspan(g, 1)});
      }
      granted = pool->Allocate(requests).has_value();
      if (granted) held.push_back(row);
    }
    EXPECT_EQ(held.size(), rows);
    EXPECT_TRUE(pool->CheckInvariants());
    for (const auto& row : held) {
      for (BlockId id : row) pool->Release(id);
    }
  }
}

}  // namespace
}  // namespace tael::kv
