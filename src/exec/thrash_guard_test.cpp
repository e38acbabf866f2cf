#include "exec/thrash_guard.h"

#include <gtest/gtest.h>

namespace tael::exec {
namespace {

constexpr uint64_t kWeights = 400'000'000;  // a twentieth is 20 MB, 10 MB for each of two threads
constexpr uint64_t kMany = 10'000'000, kFew = 9'999'999;

class Guard : public testing::Test {
 protected:
  bool Pass(uint64_t bytes) {
    guard_.Begin();
    bytes_ += bytes;
    return guard_.End();
  }
  uint64_t bytes_ = 12345;
  ThrashGuard guard_{kWeights, 2, [this] { return bytes_; }};
};

TEST_F(Guard, PassesThatReadLittleAreNoAlarm) {
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(Pass(i % 3 == 0 ? kFew : 0));
}

TEST_F(Guard, ThreePassesInARowThatReadWeightsAgainAreOne) {
  EXPECT_FALSE(Pass(kMany));
  EXPECT_FALSE(Pass(kMany));
  EXPECT_TRUE(Pass(kMany));
  EXPECT_FALSE(Pass(kMany)) << "counted anew";
}

TEST_F(Guard, APassThatFindsItsWeightsEndsTheRow) {
  EXPECT_FALSE(Pass(kMany));
  EXPECT_FALSE(Pass(kMany));
  EXPECT_FALSE(Pass(0));
  EXPECT_FALSE(Pass(kMany));
}

TEST(ThrashGuard, ByTheKernelsOwnCountPassesThatReadNothingAreNoAlarm) {
  ThrashGuard guard(1, 1);
  for (int i = 0; i < 2 * ThrashGuard::kPasses; ++i) {
    guard.Begin();
    EXPECT_FALSE(guard.End());
  }
}

}  // namespace
}  // namespace tael::exec
