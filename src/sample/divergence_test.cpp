#include "sample/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tael::sample {
namespace {

std::vector<float> Logs(const std::vector<double>& probabilities) {
  std::vector<float> out;
  for (double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
  return out;
}

TEST(Divergence, ItIsTheSumOverTheReferenceOfTheLogarithmsDifference) {
  const auto p = Logs({0.5, 0.25, 0.25}), q = Logs({0.25, 0.5, 0.25});
  const Divergence got = Diverge(p, q);
  EXPECT_NEAR(got.kl, 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-6);
  EXPECT_FALSE(got.same_top);
  // The other way round it is another number.
  const auto r = Logs({0.8, 0.1, 0.1});
  EXPECT_NEAR(Diverge(p, r).kl, 0.5 * std::log(0.5 / 0.8) + 0.5 * std::log(2.5), 1e-6);
  EXPECT_NEAR(Diverge(r, p).kl, 0.8 * std::log(1.6) + 0.2 * std::log(0.4), 1e-6);
  EXPECT_TRUE(Diverge(r, p).same_top);
}

TEST(Divergence, EqualDistributionsHaveNoneWhateverTheirOffset) {
  const std::vector<float> a = {1, 5, -3, 2.5f}, b = {101, 105, 97, 102.5f};
  EXPECT_NEAR(Diverge(a, b).kl, 0, 1e-6);
  EXPECT_TRUE(Diverge(a, b).same_top);
  EXPECT_GE(Diverge(a, a).kl, 0);
}

TEST(Divergence, LargeLogitsDoNotOverflow) {
  const std::vector<float> a = {1e4f, 0}, b = {0, 1e4f};
  EXPECT_NEAR(Diverge(a, b).kl, 1e4, 1);
}

TEST(Divergence, ANaNIsNotHidden) {
  const std::vector<float> a = {1, 2}, b = {1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_TRUE(std::isnan(Diverge(a, b).kl));
  EXPECT_TRUE(std::isnan(Diverge(b, a).kl));
}

}  // namespace
}  // namespace tael::sample
