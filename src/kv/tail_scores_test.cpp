#include "kv/tail_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <vector>

namespace tael::kv {
namespace {

using testing::ElementsAre;

constexpr TailScores::Tail kTail{2, 6};  // four slots, behind two of the sinks
constexpr uint32_t kSlots = 40;

void Give(TailScores& scores, uint32_t slot, double mass) {
  scores.masses()[slot] += static_cast<int64_t>(mass * TailScores::kUnit);
}

struct TailScoresTest : testing::Test {
  TailScores scores{kSlots};

  // One pass of one token that gives so much to the slots from `first` on.
  void Pass(uint32_t first, std::initializer_list<double> masses) {
    scores.BeginPass();
    for (const double mass : masses) Give(scores, first++, mass);
    scores.EndPass(1);
  }
  std::vector<uint32_t> Positions() const {
    const auto positions = scores.positions(kTail);
    return {positions.begin(), positions.end()};
  }
};

TEST(TailScoreUnits, AreWholeNumbersToTheNearest) {
  EXPECT_EQ(TailScores::ToUnits(0.0f), 0);
  EXPECT_EQ(TailScores::ToUnits(1.0f), int64_t{1} << 32);
  EXPECT_EQ(TailScores::ToUnits(0x1.8p-32f), 2);  // halves to even
  EXPECT_EQ(TailScores::ToUnits(0x1p-34f), 0);
  EXPECT_EQ(TailScores::ToUnits(0x1.fffffep19f), 0x1.fffffep51);
  for (const int64_t units : {int64_t{0}, int64_t{1}, int64_t{1} << 33, (int64_t{1} << 52) - 1}) {
    EXPECT_EQ(TailScores::FromUnits(units), std::ldexp(static_cast<double>(units), -32)) << units;
  }
}

TEST_F(TailScoresTest, WhoGotMoreTakesTheSlotOfWhoGotLeast) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.4, 0.1, 0.3, 0.2});
  Pass(6, {0.05, 0.15, 0.25});
  const TailScores::Choice choice = scores.Choose(kTail, 6, 0);
  const auto moves = choice.moves();
  // 0.15 beats 0.1 (slot 3), 0.25 beats that of the same slot no more, but 0.15 itself.
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].from, 7u);
  EXPECT_EQ(moves[0].to, 3u);
  EXPECT_EQ(moves[1].from, 8u);
  EXPECT_EQ(moves[1].to, 3u);
  EXPECT_THAT(Positions(), ElementsAre(2, 8, 4, 5));
}

TEST_F(TailScoresTest, SlotsBehindTheOnesThatLeaveMoveUpWithTheirScores) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.4, 0.4, 0.4, 0.1});
  Pass(22 + 3, {0.9});  // token 3 of the next block
  EXPECT_TRUE(scores.Choose(kTail, 6, 0).moves().empty());
  const TailScores::Choice choice = scores.Choose(kTail, 22, 0);
  const auto moves = choice.moves();
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].from, 6u + 3);
  EXPECT_EQ(moves[0].to, 5u);
  EXPECT_THAT(Positions(), ElementsAre(2, 3, 4, 25));
  EXPECT_TRUE(scores.Choose(kTail, 38, 0).moves().empty());  // what came behind has no score
}

TEST_F(TailScoresTest, ScoresFadeWithTheTokensThatCome) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.5, 0.5, 0.5, 0.5});
  for (int i = 0; i < 400; ++i) Pass(0, {});
  const double faded = 0.5 * std::pow(TailScores::kDecay, 400);  // 0.224
  Pass(6, {faded * 1.01, faded * 0.97});
  const TailScores::Choice choice = scores.Choose(kTail, 6, 0);
  const auto moves = choice.moves();
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].from, 6u);
}

// One pass of three tokens, or three of one: each share faded by the tokens behind it.
TEST_F(TailScoresTest, WhereAPassIsCutDoesNotMatter) {
  TailScores whole{kSlots};
  whole.BeginPass();
  for (int i = 0; i < 3; ++i) {
    const double fade = std::pow(TailScores::kDecay, 2 - i);
    Give(whole, 2, 0.1 * fade);
    Give(whole, 6, (0.1 + 1e-5) * fade);
    Pass(2, {0.1, 0, 0, 0, 0.1 + 1e-5});
  }
  whole.EndPass(3);
  for (TailScores* each : {&whole, &scores}) {
    each->BeginTail(kTail, 2);
    const TailScores::Choice choice = each->Choose(kTail, 6, 0);
    const auto moves = choice.moves();
    ASSERT_EQ(moves.size(), 1u);  // over a slot that got nothing
    EXPECT_EQ(moves[0].to, 3u);
  }
}

TEST_F(TailScoresTest, APassThatWasGivenUpLeavesNoTrace) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.4, 0.3, 0.2, 0.1});
  scores.BeginPass();
  Give(scores, 6, 5);
  scores.BeginPass();
  scores.EndPass(1);
  EXPECT_TRUE(scores.Choose(kTail, 6, 0).moves().empty());
}

TEST_F(TailScoresTest, ATokenOutOfReachLosesToAnybody) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.4, 0.3, 0.2, 0.1});
  const TailScores::Choice choice = scores.Choose(kTail, 6, 4);  // 2 and 3 are too old
  const auto moves = choice.moves();
  ASSERT_EQ(moves.size(), 2u);
  EXPECT_EQ(moves[0].to, 2u);
  EXPECT_EQ(moves[1].to, 3u);
  EXPECT_THAT(Positions(), ElementsAre(6, 7, 4, 5));
}

TEST_F(TailScoresTest, MassesAddUpInWhateverOrder) {
  const double masses[] = {1e-7, 0.3, 2e-9, 0.7, 1e-5};
  TailScores forth{kSlots}, back{kSlots};
  for (size_t i = 0; i < 5; ++i) {
    Give(forth, 3, masses[i]);
    Give(back, 3, masses[4 - i]);
  }
  EXPECT_EQ(forth.masses()[3], back.masses()[3]);
  for (TailScores* each : {&forth, &back}) {
    each->EndPass(1);
    each->BeginTail(kTail, 2);
    each->Choose(kTail, 6, 0);
  }
  EXPECT_TRUE(std::ranges::equal(forth.positions(kTail), back.positions(kTail)));
}

// A slot may lie in the tail, or be one of the block that leaves.
std::vector<uint32_t> SlotsOf(const TailScores::Choice& choice) {
  std::vector<uint32_t> slots;
  for (const TailScores::Part& part : choice.parts()) slots.push_back(part.slot);
  std::ranges::sort(slots);
  return slots;
}

struct MergingTest : TailScoresTest {
  MergingTest() { scores = TailScores(kSlots, true); }
};

TEST_F(MergingTest, TheLosersAndTheWorstThatStayedTakeOneSlot) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.4, 0.1, 0.3, 0.2});
  Pass(6, {0.05, 0.15, 0.25});
  const TailScores::Choice choice = scores.Choose(kTail, 6, 0);
  // Of 0.4, 0.3, 0.25 | 0.2, 0.15, 0.1, 0.05 the first three stay: 0.2 of slot 5 was the worst.
  EXPECT_EQ(choice.to, 5u);
  EXPECT_THAT(SlotsOf(choice), ElementsAre(3, 5, 6, 7));
  ASSERT_FALSE(choice.moves().empty());
  EXPECT_EQ(choice.moves().back().from, 8u);
  EXPECT_EQ(choice.moves().back().to, 3u);
  const double faded = TailScores::kDecay;  // what came a pass earlier
  const std::map<uint32_t, double> given{{3, 0.1 * faded}, {5, 0.2 * faded}, {6, 0.05}, {7, 0.15}};
  double total = 0, mean = 0;  // of positions
  for (const auto& [slot, mass] : given) total += mass;
  for (const auto& [slot, mass] : given) mean += mass / total * slot;
  double weights = 0, bias = 0;
  for (const TailScores::Part& part : choice.parts()) {
    const double weight = part.weight;
    weights += weight;
    bias -= weight * std::log(weight);
    const double position = part.slot;  // before anything was dropped it is
    EXPECT_NEAR(part.shift, mean - position, 1e-5);
    EXPECT_NEAR(weight, given.at(part.slot) / total, 1e-6);
  }
  EXPECT_NEAR(weights, 1, 1e-6);
  EXPECT_NEAR(scores.biases()[5], bias, 1e-6);
  EXPECT_EQ(scores.biases()[3], 0.0f);
  EXPECT_THAT(Positions(), ElementsAre(2, 8, 4, static_cast<uint32_t>(mean)));
}

TEST_F(MergingTest, EqualPartsCountAsManyAsTheyAre) {
  scores.BeginTail(kTail, 2);
  Pass(2, {9, 9, 9, 0});
  scores.BeginPass();
  for (uint32_t slot = 6; slot < 22; ++slot) Give(scores, slot, 0.01);
  scores.EndPass(1);
  EXPECT_EQ(scores.Choose(kTail, 6, 0).parts().size(), 16u);  // one of the 17 got nothing
  EXPECT_NEAR(std::ranges::max(scores.biases()), std::log(16.0), 1e-5);
}

TEST_F(MergingTest, MeansAreMergedByWhatTheyStandFor) {
  scores.BeginTail(kTail, 2);
  const auto give_all = [&](double mass) {  // as much to each token, so 16 times to their mean
    scores.BeginPass();
    for (uint32_t slot = 6; slot < 22; ++slot) Give(scores, slot, mass);
    for (uint32_t slot = kTail.begin; slot < kTail.end; ++slot) {
      Give(scores, slot, mass * std::exp(static_cast<double>(scores.biases()[slot])));
    }
    scores.EndPass(20000);  // what was before is forgotten
  };
  double tokens = 4;
  for (uint32_t leaving = 6; leaving < 6 + 16 * 8; leaving += 16) {
    give_all(0.01);
    scores.Choose(kTail, leaving, 0);
    tokens += 16;
    double stand_for = 0;
    for (uint32_t slot = kTail.begin; slot < kTail.end; ++slot) {
      stand_for += std::exp(static_cast<double>(scores.biases()[slot]));
    }
    EXPECT_NEAR(stand_for, tokens, 1e-3 * tokens);  // nothing is lost, and nothing is made
  }
}

TEST_F(MergingTest, WhatIsOutOfReachIsNotMerged) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.4, 0.3, 0.2, 0.1});
  Pass(6, {0.05, 0.05, 0.05});
  const TailScores::Choice choice = scores.Choose(kTail, 6, 4);  // 2 and 3 are too old
  for (const TailScores::Part& part : choice.parts()) EXPECT_GE(part.slot, 4u);
}

}  // namespace
}  // namespace tael::kv
