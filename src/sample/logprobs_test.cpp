#include "sample/logprobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tael::sample {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<int32_t> Ids(const LogProbs& logprobs) {
  std::vector<int32_t> ids;
  for (const TokenLogProb& each : logprobs.top) ids.push_back(ToInt(each.id));
  return ids;
}

TEST(LogProbs, TheyAreTheNaturalLogarithmOfTheSoftmax) {
  const std::vector<float> logits = {std::log(1.0f), std::log(5.0f), std::log(2.0f),
                                     std::log(2.0f)};
  const LogProbs got = LogSoftmaxTop(logits, TokenId{0}, 3);
  EXPECT_NEAR(got.logprob, std::log(0.1), 1e-6);
  EXPECT_THAT(Ids(got), testing::ElementsAre(1, 2, 3));
  EXPECT_NEAR(got.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_NEAR(got.top[2].logprob, std::log(0.2), 1e-6);
  EXPECT_EQ(LogSoftmax(logits, TokenId{0}), got.logprob);
}

TEST(LogProbs, AnOffsetOfAllLogitsChangesNothing) {
  const std::vector<float> logits = {10001, 10003, 10002};
  EXPECT_NEAR(LogSoftmax(logits, TokenId{1}), -std::log(1 + std::exp(-1.0) + std::exp(-2.0)), 1e-6);
}

TEST(LogProbs, AnyKIsFine) {
  const std::vector<float> logits = {1, 2};
  EXPECT_TRUE(LogSoftmaxTop(logits, TokenId{0}, 0).top.empty());
  EXPECT_EQ(LogSoftmaxTop(logits, TokenId{0}, 99).top.size(), 2u);
  EXPECT_TRUE(LogSoftmaxTop({}, TokenId{0}, 5).top.empty());
}

TEST(LogProbs, WhatIsNoNumberTakesNoPart) {
  const std::vector<float> logits = {kNan, 1, -kInf, 1};
  const LogProbs got = LogSoftmaxTop(logits, TokenId{0}, 4);
  EXPECT_EQ(got.logprob, -kInf);
  EXPECT_THAT(Ids(got), testing::ElementsAre(1, 3));
  EXPECT_NEAR(got.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(LogSoftmax(logits, TokenId{4}), -kInf);
  EXPECT_EQ(LogSoftmax(logits, TokenId{-1}), -kInf);
  EXPECT_EQ(LogSoftmax(std::vector<float>{kNan}, TokenId{0}), -kInf);
  EXPECT_NEAR(LogSoftmax(std::vector<float>{kInf, 0}, TokenId{0}), 0, 1e-6);
}

}  // namespace
}  // namespace tael::sample
