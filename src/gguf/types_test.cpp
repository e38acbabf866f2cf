#include "gguf/types.h"

#include <gtest/gtest.h>

namespace tael::gguf {
namespace {

uint64_t Bytes(TensorType type, std::initializer_list<uint64_t> shape) {
  return TensorBytes(type, std::span(shape.begin(), shape.size())).value_or(0);
}

TEST(TypeTraits, ComputesWithExactlyTheListedTypes) {
  const TensorType listed[] = {TensorType::kF32,    TensorType::kF16,    TensorType::kQ4_0,
                               TensorType::kQ4_1,   TensorType::kQ5_0,   TensorType::kQ5_1,
                               TensorType::kQ8_0,   TensorType::kQ2_K,   TensorType::kQ3_K,
                               TensorType::kQ4_K,   TensorType::kQ5_K,   TensorType::kQ6_K,
                               TensorType::kIQ4_NL, TensorType::kIQ4_XS, TensorType::kBF16};
  for (const TensorType type : listed) {
    ASSERT_NE(FindTypeTraits(type), nullptr);
    EXPECT_TRUE(FindTypeTraits(type)->supported) << TypeName(type);
  }
  size_t supported = 0;
  for (uint32_t id = 0; id < 100; ++id) {
    const TypeTraits* traits = FindTypeTraits(TensorType{id});
    supported += traits != nullptr && traits->supported ? 1 : 0;
  }
  EXPECT_EQ(supported, std::size(listed));
}

TEST(TypeTraits, NamesAndSizesTypesItCannotComputeWith) {
  const TypeTraits* traits = FindTypeTraits(TensorType{16});
  ASSERT_NE(traits, nullptr);
  EXPECT_EQ(traits->name, "IQ2_XXS");
  EXPECT_EQ(traits->block_bytes, 66u);
  EXPECT_FALSE(traits->supported);
  EXPECT_EQ(TypeName(TensorType{39}), "MXFP4");
}

TEST(TypeTraits, KnowsNothingOfWithdrawnAndUnknownIds) {
  for (const uint32_t id : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u, 43u, 1000u, UINT32_MAX}) {
    EXPECT_EQ(FindTypeTraits(TensorType{id}), nullptr) << id;
    EXPECT_EQ(TypeName(TensorType{id}), "unknown") << id;
  }
}

// Bits per weight that are common knowledge about the formats, times the values of a row.
TEST(TensorBytes, FollowsTheBlocks) {
  EXPECT_EQ(Bytes(TensorType::kF32, {3}), 12u);
  EXPECT_EQ(Bytes(TensorType::kBF16, {3, 5}), 30u);
  EXPECT_EQ(Bytes(TensorType::kQ4_0, {256, 2, 3, 4}), 256u * 24 * 9 / 16);  // 4.5 bits
  EXPECT_EQ(Bytes(TensorType::kQ8_0, {256}), 256u * 17 / 16);               // 8.5
  EXPECT_EQ(Bytes(TensorType::kQ4_K, {256}), 256u * 9 / 16);                // 4.5
  EXPECT_EQ(Bytes(TensorType::kQ6_K, {512}), 512u * 105 / 128);             // 6.5625
  EXPECT_EQ(Bytes(TensorType::kIQ4_XS, {256}), 256u * 17 / 32);             // 4.25
}

TEST(TensorBytes, IsNothingForShapesWithoutASize) {
  EXPECT_EQ(Bytes(TensorType::kF32, {}), 0u);
  EXPECT_EQ(Bytes(TensorType::kF32, {4, 0}), 0u);
  EXPECT_EQ(Bytes(TensorType::kQ4_0, {33}), 0u);
  EXPECT_EQ(Bytes(TensorType{99}, {32}), 0u);
  EXPECT_EQ(Bytes(TensorType::kF32, {uint64_t{1} << 62}), 0u);
  EXPECT_EQ(Bytes(TensorType::kF32, {uint64_t{1} << 32, uint64_t{1} << 32}), 0u);
}

}  // namespace
}  // namespace tael::gguf
