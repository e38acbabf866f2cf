#include "base/checked.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tael {
namespace {

// A type so small that every pair can be compared with arithmetic that is wide enough.
TEST(Checked, AgreesWithWiderArithmeticOnEveryPairOfBytes) {
  for (unsigned a = 0; a < 256; ++a) {
    for (unsigned b = 0; b < 256; ++b) {
      const auto sum = CheckedAdd(static_cast<uint8_t>(a), static_cast<uint8_t>(b));
      const auto product = CheckedMul(static_cast<uint8_t>(a), static_cast<uint8_t>(b));
      ASSERT_EQ(sum.has_value(), a + b < 256);
      ASSERT_EQ(product.has_value(), a * b < 256);
      ASSERT_TRUE(!sum || *sum == a + b);
      ASSERT_TRUE(!product || *product == a * b);
    }
  }
}

TEST(Checked, HoldsAtTheEdgesOf64Bits) {
  EXPECT_EQ(CheckedAdd(UINT64_MAX, uint64_t{0}), UINT64_MAX);
  EXPECT_EQ(CheckedAdd(UINT64_MAX, uint64_t{1}), std::nullopt);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 31), uint64_t{1} << 63);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
}

TEST(RoundUp, GoesToTheNextMultipleAndStaysOnOne) {
  EXPECT_EQ(RoundUp(0u, 32u), 0u);
  EXPECT_EQ(RoundUp(1u, 32u), 32u);
  EXPECT_EQ(RoundUp(32u, 32u), 32u);
  EXPECT_EQ(RoundUp(33u, 24u), 48u);  // no power of two needed
}

TEST(CeilDiv, DoesNotOverflowNearTheEnd) {
  EXPECT_EQ(CeilDiv(0u, 16u), 0u);
  EXPECT_EQ(CeilDiv(1u, 16u), 1u);
  EXPECT_EQ(CeilDiv(16u, 16u), 1u);
  EXPECT_EQ(CeilDiv(UINT64_MAX, uint64_t{2}), uint64_t{1} << 63);
}

}  // namespace
}  // namespace tael
