// Eviction by attention against the oracle (exec/reference.h), token by token: the same tokens stay
// whatever the size of the chunks, the number of threads and whoever else is in the pass.
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
#include "window_testing.h"

namespace tael {
namespace {

using engine::BatchItem;
using engine::RandomTokens;
using exec::Reference;
using Tails = std::vector<std::vector<uint32_t>>;  // positions by layer, ascending

kv::WindowPolicy Heavy(uint32_t tokens, uint32_t sinks, kv::WindowShape shape) {
  return {.tokens = tokens, .sinks = sinks, .shape = shape, .evict = kv::Evict::kHeavy};
}
kv::WindowPolicy Merge(uint32_t tokens, uint32_t sinks, kv::WindowShape shape) {
  return {.tokens = tokens, .sinks = sinks, .shape = shape, .evict = kv::Evict::kMerge};
}

std::unique_ptr<engine::Engine> MakeEngine(const Case& c, uint32_t sessions = 1,
                                           uint32_t threads = 2) {
  engine::EngineOptions options = ChoosingEngine(c.model, sessions, threads);
  options.window = c.policy;
  return engine::CreateEngine(options);
}

// What ADR 0011 says of a window with a tail, counted anew: by layer.
std::vector<Reference::Tail> OracleTails(const engine::Engine& engine) {
  std::vector<Reference::Tail> tails;
  const kv::Geometry& geometry = engine.plan().geometry;
  for (const kv::LayerPlace& place : geometry.places) {
    const kv::LayerShape& shape = geometry.group(place.group).shape;
    Reference::Tail out{.sinks = shape.sinks, .tail = shape.tail};
    out.merges = engine.plan().window.evict == kv::Evict::kMerge;
    out.recent = (shape.window - shape.sinks - shape.tail - 8) / 16 * 16;
    out.first_choice = (shape.sinks + 15) / 16 * 16 + shape.tail + out.recent + 16;
    out.reach = engine.model().description().trained_context;
    tails.push_back(out);
  }
  return tails;
}

Reference MakeOracle(const engine::Engine& engine) {
  Reference oracle(engine.model(), engine.context_length(), LayerWindows(engine));
  oracle.set_tails(OracleTails(engine));
  return oracle;
}

struct Expected {
  Rows rows;
  Tails tails;
};

Tails TailsOf(const Reference& oracle) {
  Tails tails;
  for (const Reference::Tail& tail : oracle.tails()) {
    tails.push_back(tail.kept);
    for (const auto& mean : tail.summaries)
      tails.back().push_back(static_cast<uint32_t>(mean.position));
    std::ranges::sort(tails.back());
  }
  return tails;
}

// One token more than is looked at, so that a choice behind the last one is made.
Expected Oracle(const engine::Engine& engine, std::span<const TokenId> tokens) {
  Reference oracle = MakeOracle(engine);
  Expected want;
  for (const TokenId token : tokens) want.rows.push_back(oracle.Feed(token));
  oracle.Feed(tokens.front());
  want.tails = TailsOf(oracle);
  for (const Reference::Tail& tail : oracle.tails()) {
    EXPECT_GT(tail.least_margin, kLeastMargin) << "a text for which the test means nothing";
  }
  return want;
}

Tails TailsOf(const engine::Session& session) {
  const kv::Geometry& geometry = session.engine().plan().geometry;
  Tails tails(geometry.places.size());
  for (uint32_t i = 0; i < geometry.groups.size(); ++i) {
    const kv::LayerGroup& group = geometry.groups[i];
    for (size_t layer = 0; layer < group.layers.size() && group.shape.tail != 0; ++layer) {
      const auto positions = session.sequence().TailPositions(kv::GroupId{i}, layer);
      tails[group.layers[layer]].assign(positions.begin(), positions.end());
      std::ranges::sort(tails[group.layers[layer]]);
    }
  }
  return tails;
}

void ExpectWithinItsPlan(const engine::Session& session) {
  uint64_t bytes = 0;
  for (const kv::LayerGroup& group : session.engine().plan().geometry.groups) {
    bytes += group.block_bytes * kv::MostRows(group.shape, 1);
  }
  EXPECT_LE(session.sequence().bytes_in_use(), bytes);
}

std::vector<Case> Cases() {
  using enum kv::WindowShape;
  return {{"llama_gqa", Heavy(64, 4, kUniform)},    {"llama_gqa", Heavy(64, 0, kUniform)},
          {"llama_gqa", Heavy(200, 150, kUniform)},  // sinks of more than one piece
          {"gemma3", Heavy(100, 4, kUniform)},       // and windows of its own: 24, without a tail
          {"smollm3", Heavy(100, 4, kLayered)},      // layers without rotation
          {"gemma2", Heavy(80, 20, kLayered)},       // soft caps
          {"phi3", Heavy(130, 4, kUniform)},        {"llama_gqa", Merge(64, 4, kUniform)},
          {"gemma3", Merge(100, 4, kUniform)},      {"smollm3", Merge(100, 4, kLayered)},
          {"gemma2", Merge(80, 20, kLayered)},      {"phi3", Merge(130, 4, kUniform)}};
}

class HeavyModel : public testing::TestWithParam<Case> {};

TEST_P(HeavyModel, EqualsTheOracleWhateverTheChunks) {
  const auto engine = MakeEngine(GetParam());
  ASSERT_NE(engine, nullptr);
  ASSERT_GT(engine->plan().score_bytes, 0u);
  const uint32_t window = GetParam().policy.tokens;
  const auto tokens = RandomTokens(2 * window + 121, 1);
  const Expected want = Oracle(*engine, tokens);
  for (const uint32_t chunk : {1u, 5u, 16u, window + 1, 300u}) {
    engine::Session session = engine->NewSession();
    EXPECT_LT(FeedAndCompare(session, tokens, chunk, want.rows), kTolerance)
        << "chunks of " << chunk;
    EXPECT_EQ(TailsOf(session), want.tails) << "chunks of " << chunk;
    ExpectWithinItsPlan(session);
  }
}

// Sessions take turns in passes of any mixture; some are computed and thrown away, as when a client
// leaves.
TEST_P(HeavyModel, EqualsTheOracleAmongOthersAndAfterPassesThatWereThrownAway) {
  constexpr size_t kSessions = 3;
  const auto engine = MakeEngine(GetParam(), kSessions);
  ASSERT_NE(engine, nullptr);
  const size_t length = GetParam().policy.tokens + 120;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<Rows> rows;
  std::vector<Tails> tails;
  std::vector<engine::Session> sessions;
  for (uint32_t i = 0; i < kSessions; ++i) {
    tokens.push_back(RandomTokens(length, 10 + i));
    Expected want = Oracle(*engine, tokens.back());
    rows.push_back(std::move(want.rows));
    tails.push_back(std::move(want.tails));
    sessions.push_back(engine->NewSession());
  }
  std::mt19937 random(3);
  const double worst = FeedInTurns(*engine, sessions, tokens, rows, [&](size_t i, size_t left) {
    if (random() % 3 == 0) return Turn{};
    const size_t most = std::min<size_t>(left, std::min(sessions[i].MostAtOnce(), 100u));
    const size_t count = 1 + random() % most;
    return Turn{count, random() % 4 == 0 ? 0 : count};
  });
  EXPECT_LT(worst, kTolerance);
  for (size_t i = 0; i < kSessions; ++i) {
    EXPECT_EQ(TailsOf(sessions[i]), tails[i]);
    ExpectWithinItsPlan(sessions[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(, HeavyModel, testing::ValuesIn(Cases()), TestName);

const Case kCase{"llama_gqa", Heavy(64, 4, kv::WindowShape::kUniform)};

TEST(Heavy, ForksGoOnOnTheirOwnAndLeaveEachOtherAlone) {
  const auto engine = MakeEngine(kCase, 3);
  ASSERT_NE(engine, nullptr);
  for (const size_t common : {50u, 90u, 144u}) {  // before a choice, between two and at one
    const auto begin = RandomTokens(common, 20);
    engine::Session first = engine->NewSession();
    std::vector<engine::Session> forks;
    const auto ignore = [](size_t, std::span<float>) {};
    ASSERT_TRUE(first.Feed(begin, {}, ignore).has_value());
    forks.push_back(first.Fork());
    forks.push_back(first.Fork());
    for (uint32_t i = 0; i < 3; ++i) {
      engine::Session& session = i == 0 ? first : forks[i - 1];
      std::vector<TokenId> tokens = begin;
      const auto rest = RandomTokens(70, 30 + i);
      tokens.insert(tokens.end(), rest.begin(), rest.end());
      const Expected want = Oracle(*engine, tokens);
      const Rows behind(want.rows.begin() + static_cast<ptrdiff_t>(common), want.rows.end());
      EXPECT_LT(FeedAndCompare(session, rest, 7, behind), kTolerance) << common << ", " << i;
      EXPECT_EQ(TailsOf(session), want.tails) << common << ", " << i;
    }
  }
}

TEST(Heavy, TheNumberOfThreadsChangesNoBit) {
  const Case c{"gemma3", Heavy(100, 4, kv::WindowShape::kUniform)};
  const auto tokens = RandomTokens(330, 4);
  for (const uint32_t chunk : {1u, 300u}) {
    std::vector<Rows> rows;
    std::vector<Tails> tails;
    for (const uint32_t threads : {1u, 2u, 3u}) {
      const auto engine = MakeEngine(c, 1, threads);
      ASSERT_NE(engine, nullptr);
      engine::Session session = engine->NewSession();
      rows.emplace_back();
      for (size_t done = 0; done < tokens.size(); done += chunk) {
        const auto some =
            std::span(tokens).subspan(done).first(std::min<size_t>(chunk, tokens.size() - done));
        ASSERT_TRUE(session
                        .Feed(some, {.num_logits = static_cast<uint32_t>(some.size())},
                              [&](size_t, std::span<float> logits) {
                                rows.back().emplace_back(logits.begin(), logits.end());
                              })
                        .has_value());
      }
      tails.push_back(TailsOf(session));
    }
    EXPECT_EQ(rows[0], rows[1]);
    EXPECT_EQ(rows[0], rows[2]);
    EXPECT_EQ(tails[0], tails[1]);
    EXPECT_EQ(tails[0], tails[2]);
  }
}

// The models were trained for 512 tokens: queries are turned back for the sinks, and a token that
// is further away than that leaves the tail.
TEST(Heavy, BehindTheTrainedContextNoTokenIsFurtherAwayThanIt) {
  const auto engine = MakeEngine(kCase);
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(700, 5, 40);
  const Expected want = Oracle(*engine, tokens);
  for (const uint32_t chunk : {1u, 40u, 300u}) {
    engine::Session session = engine->NewSession();
    EXPECT_LT(FeedAndCompare(session, tokens, chunk, want.rows), kTolerance) << chunk;
    const Tails tails = TailsOf(session);
    EXPECT_EQ(tails, want.tails) << chunk;
    for (const uint32_t position : tails[0]) EXPECT_GE(position + 512 + 16, 700u);
  }
}

TEST(Heavy, ALimitLeavesThePlainWindowThatIsNarrower) {
  const auto engine = MakeEngine({"llama_gqa", Heavy(100, 4, kv::WindowShape::kUniform)});
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(250, 8);
  Reference oracle = MakeOracle(*engine);
  Rows want;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i == 150) {
      oracle.set_tails({});
      oracle.set_windows(std::vector(engine->plan().num_layers, Reference::LayerWindow{32, 4}));
    }
    want.push_back(oracle.Feed(tokens[i]));
  }
  for (const size_t chunk : {1u, 7u, 50u}) {
    engine::Session session = engine->NewSession();
    const std::span<const TokenId> all = tokens;
    EXPECT_LT(FeedAndCompare(session, all.first(150), 150, want), kTolerance);
    session.LimitWindow(32);
    const Rows rest(want.begin() + 150, want.end());
    EXPECT_LT(FeedAndCompare(session, all.subspan(150), chunk, rest), kTolerance) << chunk;
  }
}

TEST(Heavy, APassAcrossAChoiceIsRefused) {
  const auto engine = MakeEngine(kCase);
  ASSERT_NE(engine, nullptr);
  engine::Session session = engine->NewSession();
  const auto tokens = RandomTokens(100, 6);
  const BatchItem item{.session = &session, .tokens = tokens};
  const Status status = engine::FeedBatch(*engine, {&item, 1}, [](auto...) {});
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.error().Message(), testing::HasSubstr("100"));
  EXPECT_THAT(status.error().Message(), testing::HasSubstr("80"));  // 16 + 16 + 32 + 16
}

// The tolerance above tells other choices from these.
TEST(HeavyOracle, AnotherTailWouldBeSeen) {
  const auto engine = MakeEngine(kCase);
  ASSERT_NE(engine, nullptr);
  const auto tokens = RandomTokens(300, 7);
  const Expected want = Oracle(*engine, tokens);
  for (const int change : {0, 1, 2, 3}) {
    Reference other(engine->model(), 512, LayerWindows(*engine));
    std::vector<Reference::Tail> tails = OracleTails(*engine);
    for (Reference::Tail& tail : tails) {
      if (change == 1) tail.recent -= 16;
      if (change == 2) tail.sinks -= 1;
      if (change == 3) tail.first_choice += 16;
    }
    if (change != 0) other.set_tails(tails);  // 0: a plain window
    double distance = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      distance = std::max(distance, Distance(want.rows[i], other.Feed(tokens[i])));
    }
    EXPECT_GT(distance, 10 * kTolerance) << change;
  }
}

}  // namespace
}  // namespace tael
