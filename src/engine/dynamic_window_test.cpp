#include "engine/dynamic_window.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/generation.h"
#include "engine/testing.h"

namespace tael::engine {
namespace {

constexpr uint32_t kStart = 64, kWidest = 384;

WindowSituation Now(uint32_t limit, uint32_t held, double free_share) {
  return {.start = kStart,
          .widest = kWidest,
          .limit = limit,
          .held = held,
          .coming = 1,
          .free_share = free_share,
          .share_to_widen = 0.05};
}

TEST(DynamicWindow, GrowsBeforeAnythingIsDroppedWhileThereIsPlenty) {
  EXPECT_EQ(NextWindow(Now(64, 20, 0.9)), 64u);  // it need not yet
  EXPECT_EQ(NextWindow(Now(64, 40, 0.9)), 64u + kWindowStep);
  EXPECT_EQ(NextWindow(Now(64, 40, 0.24)), 64u);
  EXPECT_EQ(NextWindow(Now(320, 310, 0.9)), kWidest);  // and no wider
  EXPECT_EQ(NextWindow(Now(kWidest, kWidest, 0.9)), kWidest);
}

TEST(DynamicWindow, AGuessIsNoReasonToGrow) {
  for (uint32_t held = 0; held <= 64; ++held) {
    WindowSituation alone = Now(64, held, 0.9), guessing = alone;
    guessing.coming = 9;
    ASSERT_EQ(NextWindow(alone), NextWindow(guessing)) << held;
  }
}

TEST(DynamicWindow, ShrinksWhenLittleIsLeftAndNotBelowItsStart) {
  EXPECT_EQ(NextWindow(Now(384, 384, 0.09)), 384u - kWindowStep);
  EXPECT_EQ(NextWindow(Now(384, 330, 0.09)), 330u - kWindowStep);
  EXPECT_EQ(NextWindow(Now(128, 128, 0.0)), kStart);
  EXPECT_EQ(NextWindow(Now(kStart, 64, 0.0)), kStart);
}

TEST(DynamicWindow, BetweenThePlentyAndTheLittleNothingChanges) {
  for (const double share : {0.11, 0.18, 0.24}) {
    EXPECT_EQ(NextWindow(Now(200, 200, share)), 200u) << share;
  }
}

TEST(DynamicWindow, DoesNotGrowByWhatWouldMakeItShrinkAgain) {
  WindowSituation now = Now(64, 64, 0.3);
  now.share_to_widen = 0.19;
  EXPECT_EQ(NextWindow(now), 320u);
  now.share_to_widen = 0.21;
  EXPECT_EQ(NextWindow(now), 64u);
}

// ---- in an engine ----

EngineOptions Options(kv::WindowPolicy window, uint64_t budget_bytes = uint64_t{1} << 30) {
  return {.model_path = Tiny("llama_gqa"),
          .budget_bytes = budget_bytes,
          .num_threads = 1,
          .context_length = 128,
          .chunk_tokens = 32,
          .window = window};
}

constexpr kv::WindowPolicy kUniform = {
    .tokens = kWidest, .shape = kv::WindowShape::kUniform, .start = kStart};

std::vector<float> LastLogits(Session& session, std::span<const TokenId> tokens) {
  std::vector<float> last;
  const Status fed = session.Feed(tokens, {}, [&](size_t, std::span<float> logits) {
    last.assign(logits.begin(), logits.end());
  });
  EXPECT_TRUE(fed.has_value());
  return last;
}

TEST(DynamicWindow, InALargePoolItIsTheWidestOneFromTheStart) {
  const std::vector<TokenId> tokens = RandomTokens(700, 3);
  const auto grows = CreateEngine(Options(kUniform));
  kv::WindowPolicy wide = kUniform;
  wide.start = 0;
  const auto fixed = CreateEngine(Options(wide));
  Session a = grows->NewSession(), b = fixed->NewSession();
  EXPECT_EQ(a.sequence().window_limit(), kStart);
  EXPECT_EQ(LastLogits(a, tokens), LastLogits(b, tokens));
  EXPECT_EQ(a.dropped_tokens(), b.dropped_tokens());
  EXPECT_EQ(a.sequence().window_limit(), 0u);
}

// With so many bytes more than the start of the window takes.
std::unique_ptr<Engine> Tight(kv::WindowPolicy window, uint64_t more_bytes) {
  const auto plan = ForecastPlan(Options(window));
  EXPECT_TRUE(plan.has_value());
  return CreateEngine(Options(window, plan->min_budget_bytes + more_bytes));
}

TEST(DynamicWindow, InATightPoolItStaysWithinItAndTheSameEachTime) {
  const std::vector<TokenId> tokens = RandomTokens(1500, 4);
  const auto engine = Tight(kUniform, uint64_t{256} << 10);
  ASSERT_NE(engine, nullptr);
  std::optional<std::vector<float>> first;
  for (int round = 0; round < 2; ++round) {
    Session session = engine->NewSession();
    const std::vector<float> logits = LastLogits(session, tokens);
    EXPECT_EQ(session.length(), tokens.size());
    if (!first) first = logits;
    EXPECT_EQ(logits, *first);
  }
}

// Beside others that hold something and do nothing.
TEST(DynamicWindow, ASessionNeverMakesItselfShrink) {
  const std::vector<TokenId> tokens = RandomTokens(900, 7);
  bool grows = false, stops_short = false;
  for (const kv::WindowShape shape : {kv::WindowShape::kUniform, kv::WindowShape::kLayered}) {
    kv::WindowPolicy window = kUniform;
    window.shape = shape;
    const auto engine = CreateEngine(Options(window));
    ASSERT_NE(engine, nullptr);
    const uint32_t widest = engine->plan().workspace.max_window;
    std::vector<Session> others;
    for (bool room = true; room;) {
      uint32_t before = kStart;
      Session session = engine->NewSession();
      for (size_t at = 0; at < tokens.size() && room; at += 20) {
        const auto step = std::span(tokens).subspan(at, 20);
        room = session.Feed(step, {}, [](size_t, std::span<float>) {}).has_value();
        const uint32_t limit = session.sequence().window_limit();
        const uint32_t now = limit != 0 ? limit : widest;
        if (!room) break;
        ASSERT_GE(now, before) << others.size() << " others, at " << at;
        before = now;
      }
      grows = grows || before > kStart;
      stops_short = stops_short || (room && before < widest);
      others.push_back(engine->NewSession());
      const auto few = std::span(tokens).first(32);
      room = room && others.back().Feed(few, {}, [](size_t, std::span<float>) {}).has_value();
    }
  }
  EXPECT_TRUE(grows);
  EXPECT_TRUE(stops_short);
}

TEST(DynamicWindow, OneSessionGivesWayToAnother) {
  const auto engine = CreateEngine(Options(kUniform));
  ASSERT_NE(engine, nullptr);
  Session wide = engine->NewSession();
  LastLogits(wide, RandomTokens(400, 5));
  EXPECT_EQ(wide.sequence().window_limit(), 0u);
  // What others hold.
  std::vector<Session> others;
  const auto share = [&] {
    const kv::PoolStats pool = engine->pool().Stats();
    return static_cast<double>(pool.block_bytes_in_use) / static_cast<double>(pool.capacity_bytes);
  };
  while (share() < 0.95) {
    others.push_back(engine->NewSession());
    const Status fed = others.back().Feed(RandomTokens(60, 6), {}, [](size_t, std::span<float>) {});
    if (!fed) break;
  }
  const auto window = wide.AdaptWindow(1);
  ASSERT_TRUE(window.has_value());
  EXPECT_LT(*window, kWidest);
  EXPECT_TRUE(wide.NarrowWindow());
  EXPECT_EQ(wide.sequence().window_limit(), kStart);
  EXPECT_FALSE(wide.NarrowWindow());
}

TEST(DynamicWindow, GuessesChangeNoAnswer) {
  std::vector<TokenId> prompt;
  for (int i = 0; i < 60; ++i) prompt.push_back(TokenId{5 + i % 6});
  std::vector<std::vector<TokenId>> answers;
  for (const uint32_t draft : {0u, 8u}) {
    EngineOptions options = Options(kUniform);
    options.draft_tokens = draft;
    const auto engine = CreateEngine(options);
    ASSERT_NE(engine, nullptr);
    Session session = engine->NewSession();
    GenerateOptions generate;
    generate.max_tokens = 500;
    generate.sampler.temperature = 0;
    generate.ignore_eos = true;
    generate.speculate = Speculate::kAlways;
    const auto result = Generate(session, prompt, generate);
    ASSERT_TRUE(result.has_value());
    answers.push_back(result->tokens);
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(DynamicWindow, ATailDoesNotGoWithIt) {
  kv::WindowPolicy heavy = kUniform;
  heavy.evict = kv::Evict::kHeavy;
  const auto plan = ForecastPlan(Options(heavy));
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tael::engine
