#include "engine/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/testing.h"

namespace tael::engine {
namespace {

using testing::HasSubstr;

std::unique_ptr<Engine> MakeEngine(const std::string& name, uint32_t max_sessions,
                                   exec::Compute compute = exec::Compute::kFast) {
  return CreateEngine({.model_path = Tiny(name),
                       .budget_bytes = 256u << 20,
                       .num_threads = 2,
                       .context_length = 256,
                       .max_sessions = max_sessions,
                       .chunk_tokens = 128,
                       .compute = compute});
}

using Logits = std::vector<float>;

std::vector<Logits> Feed(Session& session, std::span<const TokenId> tokens) {
  std::vector<Logits> all;
  const Status status =
      session.Feed(tokens, {.num_logits = static_cast<uint32_t>(tokens.size())},
                   [&](size_t, std::span<float> row) { all.emplace_back(row.begin(), row.end()); });
  EXPECT_TRUE(status.has_value()) << (status ? "" : status.error().Message());
  return all;
}

void MustFeedBatch(Engine& engine, std::span<const BatchItem> items, BatchSink sink) {
  const Status status = FeedBatch(engine, items, sink);
  ASSERT_TRUE(status.has_value()) << status.error().Message();
}

const auto kNoSink = [](size_t, size_t, std::span<float>) {};

TEST(Batch, SessionsGetTheLogitsThatTheyGetAlone) {
  // f32 activations: their products do not depend on how many tokens share a pass.
  for (const char* name : {"gemma3", "llama_gqa", "mistral_swa24", "qwen2_q256.Q4_K_M-mixed"}) {
    const auto engine = MakeEngine(name, 3, exec::Compute::kReference);
    std::vector<Session> sessions;
    std::vector<std::vector<TokenId>> texts;
    for (uint32_t i = 0; i < 3; ++i) {
      sessions.push_back(engine->NewSession());
      texts.push_back(RandomTokens(90 + 20 * i, i + 1));
    }
    std::vector<std::vector<Logits>> got(3);
    std::vector<size_t> fed(3, 0);
    std::mt19937 rng(7);
    // Long chunks and single tokens mixed; now and then a session rests.
    while (fed != std::vector<size_t>{90, 110, 130}) {
      std::vector<BatchItem> items;
      std::vector<size_t> who;
      for (size_t i = 0; i < 3; ++i) {
        const size_t left = texts[i].size() - fed[i];
        const size_t count = std::min<size_t>(left, rng() % 3 == 0 ? rng() % 40 : 1);
        if (count == 0) continue;
        items.push_back({.session = &sessions[i],
                         .tokens = std::span(texts[i]).subspan(fed[i], count),
                         .num_logits = static_cast<uint32_t>(count)});
        who.push_back(i);
        fed[i] += count;
      }
      if (items.empty()) continue;
      MustFeedBatch(*engine, items, [&](size_t item, size_t, std::span<float> row) {
        got[who[item]].emplace_back(row.begin(), row.end());
      });
    }
    sessions.clear();
    for (size_t i = 0; i < 3; ++i) {
      Session alone = engine->NewSession();
      EXPECT_EQ(got[i], Feed(alone, texts[i])) << name << ", session " << i;
    }
  }
}

TEST(Batch, LogitsComeForTheTokensAskedForInOrderOfItems) {
  const auto engine = MakeEngine("qwen3", 3);
  Session a = engine->NewSession(), b = engine->NewSession(), c = engine->NewSession();
  const auto tokens = RandomTokens(10, 1);
  const std::vector<BatchItem> items = {
      {.session = &a, .tokens = tokens, .num_logits = 2},
      {.session = &b, .tokens = tokens, .num_logits = 0},  // a chunk that is not the prompt's last
      {.session = &c, .tokens = std::span(tokens).first(1), .num_logits = 5}};
  std::vector<std::pair<size_t, size_t>> order;
  MustFeedBatch(*engine, items, [&](size_t item, size_t index, std::span<float> row) {
    order.emplace_back(item, index);
    EXPECT_EQ(row.size(), engine->model().description().vocab_size);
  });
  EXPECT_EQ(order, (std::vector<std::pair<size_t, size_t>>{{0, 8}, {0, 9}, {2, 0}}));
  EXPECT_EQ(a.length(), 10u);
  EXPECT_EQ(b.length(), 10u);
  EXPECT_EQ(c.length(), 1u);
}

TEST(Batch, WithoutRoomForAllNobodyGetsAny) {
  const auto engine = MakeEngine("llama_gqa", 2);
  Session a = engine->NewSession(), b = engine->NewSession();
  Feed(a, RandomTokens(100, 1));
  Feed(b, RandomTokens(100, 2));
  std::vector<Session> others;
  while (engine->pool().NumFree(kv::SizeClass{0}) > 4) {  // 2 and 3 are wanted below
    others.push_back(engine->NewSession());
    Feed(others.back(), RandomTokens(1, 3));
  }
  const uint64_t blocks = engine->pool().Stats().num_blocks_in_use;
  const auto more = RandomTokens(60, 3);
  bool called = false;
  const std::vector<BatchItem> items = {{.session = &a, .tokens = std::span(more).first(30)},
                                        {.session = &b, .tokens = more}};
  const Status status =
      FeedBatch(*engine, items, [&](size_t, size_t, std::span<float>) { called = true; });
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::kNoFreeBlocks);
  EXPECT_FALSE(called);
  EXPECT_EQ(a.length(), 100u);
  EXPECT_EQ(b.length(), 100u);
  EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, blocks);

  // Both live on: what fits is computed, and as if nothing had been.
  const auto after = Feed(a, std::span(more).first(20));
  const auto after_b = Feed(b, std::span(more).first(12));
  others.clear();
  a = engine->NewSession();
  b = engine->NewSession();
  Feed(a, RandomTokens(100, 1));
  Feed(b, RandomTokens(100, 2));
  EXPECT_EQ(after, Feed(a, std::span(more).first(20)));
  EXPECT_EQ(after_b, Feed(b, std::span(more).first(12)));
}

TEST(Batch, BadBatchesAreRefusedWhole) {
  const auto engine = MakeEngine("qwen3", 2);
  Session a = engine->NewSession(), b = engine->NewSession();
  const auto tokens = RandomTokens(100, 1);
  const std::vector<TokenId> bad = {TokenId{1}, TokenId{384}};
  const auto fails = [&](std::vector<BatchItem> items, ErrorCode code, const char* named) {
    const Status status = FeedBatch(*engine, items, kNoSink);
    ASSERT_FALSE(status.has_value()) << named;
    EXPECT_EQ(status.error().code, code) << named;
    EXPECT_THAT(status.error().Message(), HasSubstr(named));
    EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, 0u) << named;
  };
  fails({}, ErrorCode::kInvalidArgument, "without items");
  fails({{.session = &a, .tokens = tokens}, {.session = &b, .tokens = {}}},
        ErrorCode::kInvalidArgument, "no prompt tokens");
  fails({{.session = &a, .tokens = tokens}, {.session = &b, .tokens = bad}},
        ErrorCode::kInvalidArgument, "384");
  fails({{.session = &a, .tokens = std::span(tokens).first(2)},
         {.session = &a, .tokens = std::span(tokens).first(1)}},
        ErrorCode::kInvalidArgument, "twice");
  fails({{.session = &a, .tokens = tokens}, {.session = &b, .tokens = tokens}},
        ErrorCode::kInvalidArgument, "128");
  EXPECT_EQ(a.length(), 0u);

  Feed(a, RandomTokens(200, 2));
  const Status too_long =
      FeedBatch(*engine,
                std::vector<BatchItem>{{.session = &b, .tokens = std::span(tokens).first(1)},
                                       {.session = &a, .tokens = std::span(tokens).first(57)}},
                kNoSink);
  ASSERT_FALSE(too_long.has_value());
  EXPECT_EQ(too_long.error().code, ErrorCode::kContextExceeded);
  EXPECT_THAT(too_long.error().Message(), HasSubstr("257"));
  EXPECT_EQ(a.length(), 200u);
  EXPECT_EQ(b.length(), 0u);
}

TEST(Batch, TokensThatAreNotKeptWereNeverThere) {
  // mistral_swa24 sees 24 tokens: a draft that reaches into later blocks must not move the window.
  for (const char* name : {"mistral_swa24", "gemma3", "llama_gqa"}) {
    const auto engine = MakeEngine(name, 1, exec::Compute::kReference);
    const auto text = RandomTokens(200, 4), wrong = RandomTokens(40, 5);
    Session session = engine->NewSession();
    std::vector<Logits> got;
    for (size_t at = 0; at < text.size(); ++at) {
      std::vector<TokenId> tokens = {text[at]};
      tokens.insert(tokens.end(), wrong.begin(), wrong.begin() + static_cast<long>(at % 40));
      uint32_t keep = 0;
      const BatchItem item{.session = &session,
                           .tokens = tokens,
                           .num_logits = static_cast<uint32_t>(tokens.size()),
                           .keep = &keep};
      MustFeedBatch(*engine, {&item, 1}, [&](size_t, size_t index, std::span<float> row) {
        if (index != 0) return;
        got.emplace_back(row.begin(), row.end());
        keep = 1;
      });
      ASSERT_EQ(session.length(), at + 1);
    }
    const uint64_t bytes = session.sequence().bytes_in_use();
    session = engine->NewSession();
    EXPECT_EQ(got, Feed(session, text)) << name;
    EXPECT_EQ(bytes, session.sequence().bytes_in_use()) << name;
  }
}

TEST(Batch, APassThatIsGivenUpWasNeverThere) {
  // mistral_swa24 would move its window.
  for (const char* name : {"llama_gqa", "mistral_swa24"}) {
    const auto engine = MakeEngine(name, 2, exec::Compute::kReference);
    const auto text = RandomTokens(100, 4), other = RandomTokens(90, 5);
    Session a = engine->NewSession(), b = engine->NewSession();
    Feed(a, std::span(text).first(50));
    const uint64_t blocks = engine->pool().Stats().num_blocks_in_use;
    const std::vector<BatchItem> items = {{.session = &a, .tokens = std::span(text).subspan(50)},
                                          {.session = &b, .tokens = std::span(other).first(70)}};
    const uint32_t num_layers = engine->model().description().num_layers;
    for (uint32_t layer = 1; layer <= num_layers; ++layer) {
      uint32_t asked = 0;
      bool called = false;
      const Status status = FeedBatch(
          *engine, items, [&](size_t, size_t, std::span<float>) { called = true; },
          [&] { return ++asked == layer; });
      ASSERT_FALSE(status.has_value()) << name << ", layer " << layer;
      EXPECT_EQ(status.error().code, ErrorCode::kCancelled);
      EXPECT_EQ(asked, layer);
      EXPECT_FALSE(called);
      EXPECT_EQ(a.length(), 50u);
      EXPECT_EQ(b.length(), 0u);
      EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, blocks);
    }
    const auto after = Feed(a, std::span(text).subspan(50));
    a = engine->NewSession();
    const auto whole = Feed(a, text);
    EXPECT_EQ(after, std::vector<Logits>(whole.begin() + 50, whole.end())) << name;
  }
}

TEST(Batch, TheHeadTakesEverySessionInOnePass) {
  EXPECT_EQ(MakeEngine("qwen3", 8)->plan().workspace.logit_rows, 8u);
  EXPECT_EQ(MakeEngine("qwen3", 1)->plan().workspace.logit_rows, 1u);
}

}  // namespace
}  // namespace tael::engine
