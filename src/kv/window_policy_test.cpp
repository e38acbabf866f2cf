#include "kv/window_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "kv/testing.h"

namespace tael::kv {
namespace {

using testing::ElementsAre;

// 64 x 3 heads in f16 give SmolLM2's groups of five layers.
Geometry Layers(uint32_t count, uint32_t kv_heads = 3, uint32_t head_dim = 64) {
  return MakeGeometry(std::vector<LayerShape>(count, {kv_heads, head_dim}), TileSizes());
}

std::vector<uint32_t> Windows(const Geometry& geometry) {
  std::vector<uint32_t> out;
  for (const LayerGroup& group : geometry.groups) out.push_back(group.shape.window);
  return out;
}

double MeanWindow(const Geometry& geometry) {
  double sum = 0;
  for (const LayerPlace& place : geometry.places) sum += geometry.group(place.group).shape.window;
  return sum / static_cast<double>(geometry.places.size());
}

TEST(Window, AQuerySeesItsSinksAndTheLastTokensItselfIncluded) {
  const Window window{.tokens = 16, .sinks = 4};  // 12 recent ones
  EXPECT_EQ(window.FirstVisible(0), 0u);
  EXPECT_EQ(window.FirstVisible(11), 0u);
  EXPECT_EQ(window.FirstVisible(12), 1u);
  EXPECT_EQ(window.FirstVisible(15), 4u);  // all of 0..15, for the last time
  EXPECT_EQ(window.FirstVisible(16), 5u);
  EXPECT_EQ(Window{}.FirstVisible(1000), 0u);
  EXPECT_EQ((Window{.tokens = 1}).FirstVisible(7), 7u);
}

TEST(WindowPolicy, AUniformWindowIsTheSameInEveryLayer) {
  Geometry geometry = Layers(30);
  ApplyWindow({.tokens = 100, .sinks = 4, .shape = WindowShape::kUniform}, geometry);
  EXPECT_THAT(Windows(geometry), testing::Each(100u));
  EXPECT_EQ(geometry.groups[3].shape.sinks, 4u);
  EXPECT_EQ(WidestWindow(geometry), 100u);
}

TEST(WindowPolicy, ALayeredWindowClimbsInWholeBlocksAndCostsNoMoreThanAUniformOne) {
  Geometry geometry = Layers(30);
  ApplyWindow({.tokens = 512}, geometry);
  // 512 x (0.57 ... 1.0) / 0.785 of the groups' last layers, in blocks: 368 416 480 528 592 640 and
  // three blocks more for those that lost most.
  EXPECT_THAT(Windows(geometry), ElementsAre(368, 432, 480, 544, 592, 656));
  EXPECT_EQ(MeanWindow(geometry), 512);
  EXPECT_EQ(WidestWindow(geometry), 656u);
}

TEST(WindowPolicy, TheMeanIsNeverAboveWhatWasAskedFor) {
  for (uint32_t layers : {1u, 2u, 7u, 18u, 23u, 30u}) {
    for (uint32_t tokens = 5; tokens < 1200; tokens += 13) {
      Geometry geometry = Layers(layers);
      ApplyWindow({.tokens = tokens}, geometry);
      ASSERT_LE(MeanWindow(geometry), tokens) << layers << " layers";
      ASSERT_GT(MeanWindow(geometry) + 16, tokens) << layers << " layers";
      uint32_t before = 0;
      for (const uint32_t window : Windows(geometry)) {
        ASSERT_GE(window, before);
        ASSERT_GT(window, 4u);
        before = window;
      }
    }
  }
}

TEST(WindowPolicy, WhereTheRampLeavesALayerNothingTheWindowIsUniform) {
  Geometry geometry = Layers(30);
  ApplyWindow({.tokens = 16}, geometry);
  EXPECT_THAT(Windows(geometry), testing::Each(16u));
}

TEST(WindowPolicy, AModelsOwnWindowStaysUnlessThePolicysIsTighterAndHasNoSinks) {
  std::vector<LayerShape> layers;
  for (uint32_t i = 0; i < 18; ++i) layers.push_back({1, 256, i % 6 == 5 ? 0u : 512u});
  const Geometry plain = MakeGeometry(layers, TileSizes());
  Geometry wide = plain, narrow = plain, off = plain;
  ApplyWindow({.tokens = 1024, .shape = WindowShape::kUniform}, wide);
  EXPECT_THAT(Windows(wide), ElementsAre(512, 512, 512, 512, 1024));
  EXPECT_EQ(wide.groups[0].shape.sinks, 0u);
  EXPECT_EQ(wide.groups[4].shape.sinks, 4u);
  ApplyWindow({.tokens = 256, .shape = WindowShape::kUniform}, narrow);
  EXPECT_THAT(Windows(narrow), testing::Each(256u));
  ApplyWindow({}, off);
  EXPECT_THAT(Windows(off), ElementsAre(512, 512, 512, 512, 0));
  EXPECT_EQ(WidestWindow(off), 0u);
}

TEST(Window, WithATailWhatIsRecentBeginsAtABlock) {
  const Window window{.tokens = 512, .sinks = 4, .tail = 128};
  EXPECT_EQ(window.tail_begin(), 16u);
  EXPECT_EQ(window.recent(), 368u);  // 4 + 128 + 368 + 8 = 508
  EXPECT_EQ(window.first_choice(), 16u + 128 + 368 + 16);
  EXPECT_EQ(window.FirstVisible(527), 0u);
  EXPECT_EQ(window.FirstVisible(528), 160u);
  EXPECT_EQ(window.FirstVisible(543), 160u);
  EXPECT_EQ(window.FirstVisible(544), 176u);
}

TEST(WindowPolicy, AQuarterOfAWindowIsItsTailInWholeBlocks) {
  Geometry geometry = Layers(30);
  ApplyWindow({.tokens = 512, .evict = Evict::kHeavy}, geometry);
  std::vector<uint32_t> tails;
  for (const LayerGroup& group : geometry.groups) tails.push_back(group.shape.tail);
  EXPECT_THAT(Windows(geometry), ElementsAre(368, 432, 480, 544, 592, 656));
  EXPECT_THAT(tails, ElementsAre(80, 96, 112, 128, 144, 160));
}

// The mean over the queries of a block is the window at most, and the blocks are those of the plan.
TEST(WindowPolicy, AWindowWithATailHoldsNoMoreThanOneWithout) {
  for (uint32_t tokens = 64; tokens < 1200; tokens += 13) {
    for (const uint32_t sinks : {0u, 1u, 4u, 16u, 17u, 40u}) {
      const WindowPolicy policy{tokens, sinks, WindowShape::kUniform, 256, Evict::kHeavy};
      if (!CheckWindow(policy)) continue;
      Geometry geometry = Layers(1);
      ApplyWindow(policy, geometry);
      const LayerShape& shape = geometry.groups[0].shape;
      const Window window{shape.window, shape.sinks, shape.tail};
      ASSERT_GT(window.tail, 0u) << tokens << ", " << sinks;
      ASSERT_GE(window.recent(), 16u);
      ASSERT_LE(sinks + window.tail + window.recent() + 8, tokens);
      ASSERT_GT(sinks + window.tail + window.recent() + 8 + 16, tokens);
      ASSERT_LE(window.first_choice(), 16 * MostRows(shape, 256));
      ASSERT_LE(window.first_choice(), MostSlots(shape));
    }
  }
}

TEST(WindowPolicy, ATailThatNoWindowHoldsIsRefused) {
  const auto message = [](const WindowPolicy& policy) {
    const Status status = CheckWindow(policy);
    return status ? std::string() : status.error().Message();
  };
  EXPECT_THAT(message({.tokens = 0, .evict = Evict::kHeavy}), testing::HasSubstr("--window"));
  EXPECT_THAT(message({.tokens = 63, .evict = Evict::kHeavy}), testing::HasSubstr("64"));
  EXPECT_EQ(message({.tokens = 64, .evict = Evict::kHeavy}), "");
  EXPECT_THAT(message({.tokens = 100, .sinks = 90, .evict = Evict::kHeavy}),
              testing::HasSubstr("130"));
  EXPECT_EQ(message({.tokens = WindowPolicy::kAuto, .evict = Evict::kHeavy}), "");
}

TEST(WindowPolicy, AWindowThatGrowsHasNoTailAndHoldsItsSinksFromTheStart) {
  EXPECT_TRUE(CheckWindow({.tokens = 1024, .start = 512}).has_value());
  EXPECT_FALSE(CheckWindow({.tokens = 1024, .sinks = 600, .start = 512}).has_value());
  EXPECT_TRUE(CheckWindow({.tokens = 1024, .sinks = 600}).has_value());
  EXPECT_FALSE(CheckWindow({.tokens = 1024, .evict = Evict::kHeavy, .start = 512}).has_value());
}

TEST(WindowPolicy, ANarrowedShapeIsWhatALimitedSequenceHas) {
  const LayerShape shape{.num_kv_heads = 2, .head_dim = 64, .window = 100, .sinks = 40};
  EXPECT_EQ(Narrowed(shape, 300).window, 100u);
  EXPECT_EQ(Narrowed(shape, 60).window, 60u);
  EXPECT_EQ(Narrowed(shape, 60).sinks, 40u);
  EXPECT_EQ(Narrowed(shape, 30).sinks, 29u);
}

TEST(WindowPolicy, AWindowOfSinksAloneIsRefusedNamingBoth) {
  EXPECT_TRUE(CheckWindow({.tokens = 5, .sinks = 4}).has_value());
  EXPECT_TRUE(CheckWindow({.tokens = 0, .sinks = 4}).has_value());
  const Status refused = CheckWindow({.tokens = 77, .sinks = 88});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().Message(), testing::HasSubstr("77"));
  EXPECT_THAT(refused.error().Message(), testing::HasSubstr("88"));
}

}  // namespace
}  // namespace tael::kv
