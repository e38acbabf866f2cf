#include "kv/tail_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
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

TEST_F(TailScoresTest, WhoGotMoreTakesTheSlotOfWhoGotLeast) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.4, 0.1, 0.3, 0.2});
  Pass(6, {0.05, 0.15, 0.25});
  const auto moves = scores.Choose(kTail, 6, 0);
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
  EXPECT_TRUE(scores.Choose(kTail, 6, 0).empty());
  const auto moves = scores.Choose(kTail, 22, 0);
  ASSERT_EQ(moves.size(), 1u);
  EXPECT_EQ(moves[0].from, 6u + 3);
  EXPECT_EQ(moves[0].to, 5u);
  EXPECT_THAT(Positions(), ElementsAre(2, 3, 4, 25));
  EXPECT_TRUE(scores.Choose(kTail, 38, 0).empty());  // what came behind has no score
}

TEST_F(TailScoresTest, ScoresFadeWithTheTokensThatCome) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.5, 0.5, 0.5, 0.5});
  for (int i = 0; i < 400; ++i) Pass(0, {});
  const double faded = 0.5 * std::pow(TailScores::kDecay, 400);  // 0.224
  Pass(6, {faded * 1.01, faded * 0.97});
  const auto moves = scores.Choose(kTail, 6, 0);
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
    const auto moves = each->Choose(kTail, 6, 0);
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
  EXPECT_TRUE(scores.Choose(kTail, 6, 0).empty());
}

TEST_F(TailScoresTest, ATokenOutOfReachLosesToAnybody) {
  scores.BeginTail(kTail, 2);
  Pass(2, {0.4, 0.3, 0.2, 0.1});
  const auto moves = scores.Choose(kTail, 6, 4);  // 2 and 3 are too old
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

}  // namespace
}  // namespace tael::kv
