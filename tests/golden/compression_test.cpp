// Prompt compression against the oracle (exec/reference.h): the same blocks stay whatever the size
// of the chunks, the number of threads and whoever else is in the pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/testing.h"
#include "exec/reference.h"
#include "kv/prompt_compression.h"
#include "window_testing.h"

namespace tael {
namespace {

using engine::RandomTokens;
using exec::Reference;
using Gone = std::vector<std::vector<bool>>;  // by layer and block

constexpr size_t kAnswer = 40;

struct PromptCase {
  std::string model;
  uint32_t prompt = 0;
  kv::CompressPolicy policy;
};

std::string NameOf(const testing::TestParamInfo<PromptCase>& info) {
  const kv::CompressPolicy& policy = info.param.policy;
  return info.param.model + "_" + std::to_string(info.param.prompt) + "_" +
         (policy.percent != 0 ? std::to_string(policy.percent) + "_percent"
                              : std::to_string(policy.tokens) + "_tokens");
}

std::unique_ptr<engine::Engine> MakeEngine(const PromptCase& c, uint32_t sessions = 1,
                                           uint32_t threads = 2) {
  engine::EngineOptions options = ChoosingEngine(c.model, sessions, threads);
  options.compress = c.policy;
  return engine::CreateEngine(options);
}

// What ADR 0013 says of a prompt of so many tokens, counted anew.
Reference::Compression OracleCompression(const engine::Engine& engine, uint32_t prompt) {
  const kv::CompressPolicy& policy = engine.plan().compress;
  const uint32_t share = policy.percent != 0 ? prompt * policy.percent / 100 : policy.tokens;
  const uint32_t budget = std::max(64u, share);
  Reference::Compression out{.at = prompt};
  out.observe_from = prompt - std::min(24u, prompt / 4);
  out.recent_from = out.observe_from / 16 * 16;
  out.blocks =
      std::max(1u, (std::max(budget, prompt - out.recent_from) + out.recent_from - prompt) / 16);
  for (const kv::LayerGroup& group : engine.plan().geometry.groups) {
    if (group.shape.window == 0) out.groups.push_back(group.layers);
  }
  return out;
}

Gone GoneOf(const Reference& oracle, const engine::Engine& engine) {
  Gone gone;
  for (uint32_t i = 0; i < engine.plan().num_layers; ++i) gone.push_back(oracle.gone(i));
  return gone;
}

struct Expected {
  Rows rows;
  Gone gone;
};

// Prompts that end at each of `ends`, one behind the other.
Expected Oracle(const engine::Engine& engine, std::span<const TokenId> tokens,
                std::vector<uint32_t> ends) {
  Reference oracle(engine.model(), engine.context_length(), LayerWindows(engine));
  Expected want;
  size_t next = 0;
  for (uint32_t i = 0; i < tokens.size(); ++i) {
    if (next < ends.size() && (next == 0 || i == ends[next - 1] + 1)) {
      oracle.set_compression(OracleCompression(engine, ends[next++]));
    }
    want.rows.push_back(oracle.Feed(tokens[i]));
  }
  want.gone = GoneOf(oracle, engine);
  EXPECT_GT(oracle.least_margin(), kLeastMargin) << "a text for which the test means nothing";
  return want;
}

// Which blocks a session that is due lets go of, found by where their ids go in its tables.
Gone Compress(engine::Session& session) {
  const kv::Geometry& geometry = session.engine().plan().geometry;
  std::vector<std::vector<kv::BlockId>> before;
  for (uint32_t i = 0; i < geometry.groups.size(); ++i) {
    const auto table = session.sequence().table(kv::GroupId{i});
    before.emplace_back(table.begin(), table.end());
  }
  session.Compress();
  Gone gone(geometry.places.size());
  for (uint32_t i = 0; i < geometry.groups.size(); ++i) {
    if (geometry.groups[i].shape.window != 0) continue;
    const auto after = session.sequence().table(kv::GroupId{i});
    std::vector<bool> lost;
    for (const kv::BlockId id : before[i])
      lost.push_back(std::ranges::find(after, id) == after.end());
    while (!lost.empty() && !lost.back()) lost.pop_back();
    for (const uint32_t layer : geometry.groups[i].layers) gone[layer] = lost;
  }
  return gone;
}

std::vector<PromptCase> Cases() {
  return {{"llama_gqa", 300, {.percent = 40}},  {"llama_gqa", 450, {.tokens = 100}},
          {"gemma3", 301, {.percent = 40}},   // and windows of its own: 24
          {"smollm3", 256, {.percent = 30}},  // layers without rotation
          {"gemma2", 333, {.percent = 50}},   // soft caps
          {"qwen2_tied", 400, {.percent = 20}}, {"phi3", 280, {.tokens = 64}}};
}

class CompressedModel : public testing::TestWithParam<PromptCase> {};

TEST_P(CompressedModel, EqualsTheOracleWhateverTheChunks) {
  const auto engine = MakeEngine(GetParam());
  ASSERT_NE(engine, nullptr);
  ASSERT_GT(engine->plan().score_bytes, 0u);
  const uint32_t prompt = GetParam().prompt;
  const auto tokens = RandomTokens(prompt + kAnswer, 1);
  const Expected want = Oracle(*engine, tokens, {prompt});
  const std::span<const TokenId> all = tokens;
  const Rows rest(want.rows.begin() + prompt, want.rows.end());
  for (const uint32_t chunk : {1u, 5u, 16u, 200u, 320u}) {
    engine::Session session = engine->NewSession();
    session.PlanCompression(prompt);
    EXPECT_LT(FeedAndCompare(session, all.first(prompt), chunk, want.rows), kTolerance)
        << "chunks of " << chunk;
    EXPECT_EQ(Compress(session), want.gone) << "chunks of " << chunk;
    EXPECT_GT(session.compressed_tokens(), prompt / 3);
    EXPECT_LT(FeedAndCompare(session, all.subspan(prompt), chunk, rest), kTolerance)
        << "chunks of " << chunk;
  }
}

// Sessions take turns in passes of any mixture; some are computed and thrown away, as when a client
// leaves.
TEST_P(CompressedModel, EqualsTheOracleAmongOthersAndAfterPassesThatWereThrownAway) {
  constexpr size_t kSessions = 3;
  const auto engine = MakeEngine(GetParam(), kSessions);
  ASSERT_NE(engine, nullptr);
  std::vector<std::vector<TokenId>> tokens;
  std::vector<Rows> rows;
  std::vector<engine::Session> sessions;
  for (uint32_t i = 0; i < kSessions; ++i) {
    const uint32_t prompt = GetParam().prompt - 20 * i;
    tokens.push_back(RandomTokens(prompt + kAnswer, 10 + i));
    rows.push_back(Oracle(*engine, tokens.back(), {prompt}).rows);
    sessions.push_back(engine->NewSession());
    sessions.back().PlanCompression(prompt);
  }
  std::mt19937 random(3);
  const double worst = FeedInTurns(*engine, sessions, tokens, rows, [&](size_t i, size_t left) {
    if (random() % 3 == 0) return Turn{};
    const size_t most = std::min<size_t>(left, std::min(sessions[i].MostAtOnce(), 100u));
    const size_t count = 1 + random() % most;
    return Turn{count, random() % 4 == 0 ? 0 : count};
  });
  EXPECT_LT(worst, kTolerance);
  for (const engine::Session& session : sessions) EXPECT_GT(session.compressed_tokens(), 0u);
}

INSTANTIATE_TEST_SUITE_P(, CompressedModel, testing::ValuesIn(Cases()), NameOf);

const PromptCase kCase{"llama_gqa", 300, {.percent = 40}};

TEST(Compression, ASecondPromptIsCompressedWithWhatTheFirstHasLeft) {
  for (const char* model : {"llama_gqa", "gemma3"}) {
    const auto engine = MakeEngine({model, 0, kCase.policy});
    ASSERT_NE(engine, nullptr);
    const auto tokens = RandomTokens(480, 11);
    const Expected want = Oracle(*engine, tokens, {200, 440});
    const std::span<const TokenId> all = tokens;
    for (const uint32_t chunk : {1u, 17u, 300u}) {
      engine::Session session = engine->NewSession();
      session.PlanCompression(200);
      EXPECT_LT(FeedAndCompare(session, all.first(200), chunk, want.rows), kTolerance);
      session.Compress();
      const Rows second(want.rows.begin() + 200, want.rows.end());
      EXPECT_LT(FeedAndCompare(session, all.subspan(200, 30), chunk, second), kTolerance);
      session.PlanCompression(440);
      const Rows rest(want.rows.begin() + 230, want.rows.end());
      EXPECT_LT(FeedAndCompare(session, all.subspan(230), chunk, rest), kTolerance)
          << model << ", chunks of " << chunk;
      EXPECT_GT(session.compressed_tokens(), 200u);
    }
  }
}

TEST(Compression, ForksOfACompressedPromptGoOnOnTheirOwn) {
  const auto engine = MakeEngine(kCase, 3);
  ASSERT_NE(engine, nullptr);
  const auto begin = RandomTokens(300, 20);
  const auto ignore = [](size_t, std::span<float>) {};
  for (const bool before : {true, false}) {
    engine::Session first = engine->NewSession();
    first.PlanCompression(300);
    ASSERT_TRUE(first.Feed(begin, {}, ignore).has_value());
    if (!before) first.Compress();
    std::vector<engine::Session> sessions;
    sessions.push_back(first.Fork());
    sessions.push_back(first.Fork());
    sessions.push_back(std::move(first));
    for (uint32_t i = 0; i < 3; ++i) {
      std::vector<TokenId> tokens = begin;
      const auto rest = RandomTokens(kAnswer, 30 + i);
      tokens.insert(tokens.end(), rest.begin(), rest.end());
      const Expected want = Oracle(*engine, tokens, {300});
      const Rows behind(want.rows.begin() + 300, want.rows.end());
      EXPECT_LT(FeedAndCompare(sessions[i], rest, 7, behind), kTolerance) << before << ", " << i;
    }
  }
}

TEST(Compression, TheNumberOfThreadsAndTheCutOfThePromptChangeNoBit) {
  const auto tokens = RandomTokens(330, 4);
  std::vector<Rows> rows;
  for (const uint32_t threads : {1u, 2u, 3u}) {
    const auto engine = MakeEngine({"gemma3", 300, {.percent = 40}}, 1, threads);
    ASSERT_NE(engine, nullptr);
    for (const uint32_t chunk : {20u, 300u}) {
      engine::Session session = engine->NewSession();
      session.PlanCompression(300);
      Rows& out = rows.emplace_back();
      for (size_t done = 0; done < tokens.size(); done += done < 300 ? chunk : 10) {
        const auto some = std::span(tokens).subspan(done).first(done < 300 ? chunk : 10);
        ASSERT_TRUE(session
                        .Feed(some, {.num_logits = static_cast<uint32_t>(some.size())},
                              [&](size_t, std::span<float> logits) {
                                out.emplace_back(logits.begin(), logits.end());
                              })
                        .has_value());
      }
    }
  }
  for (const Rows& other : rows) EXPECT_EQ(other, rows[0]);
}

TEST(Compression, APassAcrossTheEndOfThePromptIsRefused) {
  const auto engine = MakeEngine(kCase);
  ASSERT_NE(engine, nullptr);
  engine::Session session = engine->NewSession();
  session.PlanCompression(300);
  const auto tokens = RandomTokens(310, 6);
  const engine::BatchItem item{.session = &session, .tokens = tokens};
  const Status status = engine::FeedBatch(*engine, {&item, 1}, [](auto...) {});
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().Message(), testing::HasSubstr("300"));
}

// The tolerance above tells other choices from these.
TEST(CompressionOracle, AnotherChoiceWouldBeSeen) {
  const auto engine = MakeEngine(kCase);
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(340, 7);
  const Expected want = Oracle(*engine, tokens, {300});
  for (const int change : {0, 1, 2, 3}) {
    Reference other(engine->model(), 512, LayerWindows(*engine));
    Reference::Compression compression = OracleCompression(*engine, 300);
    if (change == 1) compression.observe_from = 299;
    if (change == 2) compression.blocks -= 1;
    if (change == 3) compression.recent_from -= 16;
    if (change != 0) other.set_compression(compression);  // 0: everything stays
    double distance = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      distance = std::max(distance, Distance(want.rows[i], other.Feed(tokens[i])));
    }
    EXPECT_GT(distance, 10 * kTolerance) << change;
  }
}

}  // namespace
}  // namespace tael
