// Windows against a mask over a dense cache (exec/reference.h), token by token: whatever the size
// of the chunks, whoever else is in the pass, and past the trained context too.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/testing.h"
#include "exec/reference.h"
#include "window_testing.h"

namespace tael {
namespace {

using engine::BatchItem;
using engine::RandomTokens;

constexpr uint32_t kMostChunk = 320;

std::unique_ptr<engine::Engine> MakeEngine(const Case& c, uint32_t sessions = 1,
                                           kernels::KvTypes types = kernels::KvType::kF32) {
  return engine::CreateEngine({.model_path = engine::Tiny(c.model),
                               .budget_bytes = 1u << 30,
                               .num_threads = 2,
                               .context_length = 512,
                               .max_sessions = sessions,
                               .chunk_tokens = kMostChunk,
                               .logit_rows = 16,
                               .compute = exec::Compute::kReference,
                               .kv_type = types,
                               .window = c.policy});
}

Rows Oracle(const engine::Engine& engine, std::span<const TokenId> tokens) {
  exec::Reference reference(engine.model(), engine.context_length(), LayerWindows(engine));
  Rows rows;
  for (const TokenId token : tokens) rows.push_back(reference.Feed(token));
  return rows;
}

// Blocks that an idle sequence holds of a group.
uint64_t IdleBlocks(const kv::LayerShape& shape, uint32_t length) {
  const uint64_t all = (length + 15) / 16;
  if (shape.window == 0) return all;
  const uint64_t first = kv::Window{shape.window, shape.sinks}.FirstVisible(length) / 16;
  const uint64_t pinned = (shape.sinks + 15) / 16;
  return first <= pinned ? all : all - (first - pinned);
}

void ExpectExactlyItsWindow(const engine::Engine& engine, const engine::Session& session) {
  uint64_t bytes = 0;
  for (const kv::LayerGroup& group : engine.plan().geometry.groups) {
    bytes += group.block_bytes * IdleBlocks(group.shape, session.length());
  }
  EXPECT_EQ(session.sequence().bytes_in_use(), bytes);
}

std::vector<Case> Cases() {
  using enum kv::WindowShape;
  std::vector<Case> cases;
  for (const uint32_t window : {16u, 64u, 100u}) {
    for (const uint32_t sinks : {0u, 4u}) cases.push_back({"llama_gqa", {window, sinks, kUniform}});
    cases.push_back({"gemma3", {window, 4, kUniform}});   // and windows of its own: 24
    cases.push_back({"smollm3", {window, 4, kLayered}});  // layers without rotation
    cases.push_back({"gemma2", {window, 4, kLayered}});   // soft caps
  }
  cases.push_back({"llama_gqa", {200, 150, kUniform}});  // sinks of more than one piece
  cases.push_back({"mistral_swa24", {64, 4, kUniform}});
  cases.push_back({"phi3", {64, 20, kUniform}});
  return cases;
}

class WindowedModel : public testing::TestWithParam<Case> {};

TEST_P(WindowedModel, EqualsADenseMaskWhateverTheChunks) {
  const auto engine = MakeEngine(GetParam());
  ASSERT_NE(engine, nullptr);
  const uint32_t window = GetParam().policy.tokens;
  const auto tokens = RandomTokens(2 * (3 * std::min(window, 100u) + 5), 1);
  const Rows want = Oracle(*engine, tokens);
  for (const uint32_t chunk : {1u, window - 1, window, window + 1, 3 * window + 5}) {
    if (chunk > kMostChunk) continue;
    engine::Session session = engine->NewSession();
    EXPECT_LT(FeedAndCompare(session, tokens, chunk, want), kTolerance) << "chunks of " << chunk;
    ExpectExactlyItsWindow(*engine, session);
  }
}

// Sessions take turns in passes of any mixture; some chunks are computed and thrown away, wholly or
// in part, as when a client leaves or a draft is wrong.
TEST_P(WindowedModel, EqualsADenseMaskAmongOthersAndAfterChunksThatWereCancelled) {
  constexpr size_t kSessions = 3;
  const auto engine = MakeEngine(GetParam(), kSessions);
  ASSERT_NE(engine, nullptr);
  const size_t length = 260;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<Rows> want;
  std::vector<engine::Session> sessions;
  for (uint32_t i = 0; i < kSessions; ++i) {
    tokens.push_back(RandomTokens(length, 10 + i));
    want.push_back(Oracle(*engine, tokens.back()));
    sessions.push_back(engine->NewSession());
  }
  std::mt19937 random(3);
  const double worst = FeedInTurns(*engine, sessions, tokens, want, [&](size_t, size_t left) {
    if (random() % 3 == 0) return Turn{};
    const size_t most = random() % 2 == 0 ? 3 : 100;
    const size_t count = std::min<size_t>(left, 1 + random() % most);
    return Turn{count, random() % 4 == 0 ? random() % (count + 1) : count};
  });
  EXPECT_LT(worst, kTolerance);
  for (const engine::Session& session : sessions) ExpectExactlyItsWindow(*engine, session);
}

INSTANTIATE_TEST_SUITE_P(, WindowedModel, testing::ValuesIn(Cases()), TestName);

class EndlessModel : public testing::TestWithParam<Case> {};

// The models were trained for 512 tokens: behind them queries are turned back for the sinks.
TEST_P(EndlessModel, GoesOnBehindTheTrainedContextLikeTheOracle) {
  const auto engine = MakeEngine(GetParam());
  ASSERT_NE(engine, nullptr);
  ASSERT_EQ(engine->model().description().trained_context, 512u);
  const auto tokens = RandomTokens(700, 5);
  const Rows want = Oracle(*engine, tokens);
  for (const uint32_t chunk : {1u, 40u, 300u}) {
    engine::Session session = engine->NewSession();
    EXPECT_LT(FeedAndCompare(session, tokens, chunk, want), kTolerance) << "chunks of " << chunk;
    ExpectExactlyItsWindow(*engine, session);
  }
}

INSTANTIATE_TEST_SUITE_P(, EndlessModel,
                         testing::Values(Case{"llama_gqa", {64, 4, kv::WindowShape::kUniform}},
                                         Case{"gemma3", {100, 4, kv::WindowShape::kLayered}},
                                         Case{"smollm3", {48, 4, kv::WindowShape::kLayered}}),
                         TestName);

// Keys of 8 bits are stored transformed, so that a query is turned in their space. Turned in its
// own it would be far away.
TEST(EndlessQuantised, QueriesAreTurnedInTheSpaceOfTheKeys) {
  const Case c{"llama_gqa", {64, 4, kv::WindowShape::kUniform}};
  const auto engine = MakeEngine(c, 1, kernels::KvType::kQ8);
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(700, 5);
  const Rows want = Oracle(*engine, tokens);
  for (const uint32_t chunk : {1u, 300u}) {
    // What 8 bits cost before the trained context ends, and behind it.
    engine::Session session = engine->NewSession();
    const std::span<const TokenId> all = tokens;
    const double before = FeedAndCompare(session, all.first(512), chunk, want);
    const Rows rest(want.begin() + 512, want.end());
    const double behind = FeedAndCompare(session, all.subspan(512), chunk, rest);
    EXPECT_LT(behind, 1.5 * before) << "chunks of " << chunk;
    EXPECT_LT(before, 0.6);
  }
}

// The oracle without the window, or without its sinks, is far from what a window gives: the
// tolerance above tells them apart.
TEST(WindowOracle, AnotherMaskWouldBeSeen) {
  const Case c{"llama_gqa", {64, 4, kv::WindowShape::kUniform}};
  const auto engine = MakeEngine(c);
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(300, 7);
  const Rows want = Oracle(*engine, tokens);
  const size_t layers = engine->plan().geometry.places.size();
  for (const exec::Reference::LayerWindow other :
       {exec::Reference::LayerWindow{0, 0}, {64, 0}, {63, 4}, {65, 4}, {64, 3}, {64, 5}}) {
    exec::Reference reference(engine->model(), 512, std::vector(layers, other));
    double distance = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      distance = std::max(distance, Distance(want[i], reference.Feed(tokens[i])));
    }
    EXPECT_GT(distance, 10 * kTolerance) << other.window << ", " << other.sinks;
  }
}

TEST(WindowLimit, AShrunkWindowGoesOnAsTheNarrowerOneWouldFromThere) {
  const Case c{"llama_gqa", {100, 4, kv::WindowShape::kUniform}};
  const auto engine = MakeEngine(c);
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(250, 8);
  exec::Reference reference(engine->model(), 512, LayerWindows(*engine));
  const exec::Reference::LayerWindow narrow{32, 4};
  Rows want;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i == 150) reference.set_windows(std::vector(engine->plan().num_layers, narrow));
    want.push_back(reference.Feed(tokens[i]));
  }
  for (const size_t chunk : {1u, 7u, 50u}) {
    engine::Session session = engine->NewSession();
    const std::span<const TokenId> all = tokens;
    EXPECT_LT(FeedAndCompare(session, all.first(150), 150, want), kTolerance);
    const uint64_t before = session.sequence().bytes_in_use();
    session.LimitWindow(32);
    EXPECT_LT(session.sequence().bytes_in_use(), before);
    const Rows rest(want.begin() + 150, want.end());
    EXPECT_LT(FeedAndCompare(session, all.subspan(150), chunk, rest), kTolerance) << chunk;
  }
}

}  // namespace
}  // namespace tael
