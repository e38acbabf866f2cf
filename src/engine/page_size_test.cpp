// Nothing of the engine depends on a page of 4 KiB: with any page size injected, answers are the
// same bits, plans fit, and memory goes back in whole pages.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/testing.h"
#include "mem/mapping.h"

namespace tael::engine {
namespace {

class PageSize : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    if (GetParam() < mem::PageSize()) GTEST_SKIP() << "smaller than this system's pages";
    mem::SetPageSizeForTest(GetParam());
  }
  void TearDown() override { mem::SetPageSizeForTest(0); }
};

EngineOptions Options(const std::string& name) {
  EngineOptions options;
  options.model_path = Tiny(name);
  options.budget_bytes = uint64_t{1} << 30;
  options.num_threads = 2;
  options.context_length = 256;
  options.runtime_bytes = 8 << 20;
  options.chunk_tokens = 32;  // whatever the budget: chunks decide the last bits
  return options;
}

std::vector<float> LogitsOf(Engine& engine) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < 100; ++i) tokens.push_back(TokenId{(i * 7) % 300});
  std::vector<float> logits;
  Session session = engine.NewSession();
  const auto keep = [&](size_t, std::span<float> row) { logits.assign(row.begin(), row.end()); };
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second through pages that were dropped
    EXPECT_TRUE(session.Feed(tokens, {}, keep).has_value());
  }
  return logits;
}

std::vector<float> Expected(EngineOptions options) {
  mem::SetPageSizeForTest(0);
  auto engine = Engine::Create(options);
  return engine ? LogitsOf(**engine) : std::vector<float>();
}

TEST_P(PageSize, GivesTheSameLogitsWholeAndStreamed) {
  for (const char* model : {"gemma3", "qwen3", "qwen2_q256.Q4_0"}) {
    EngineOptions options = Options(model);
    const std::vector<float> expected = Expected(options);
    ASSERT_FALSE(expected.empty());
    mem::SetPageSizeForTest(GetParam());
    {
      auto whole = Engine::Create(options);
      ASSERT_TRUE(whole.has_value()) << whole.error().Message();
      EXPECT_EQ(LogitsOf(**whole), expected) << model;
      (*whole)->ReleaseWeights();
      EXPECT_EQ(LogitsOf(**whole), expected) << model;
      const MemoryPlan& plan = (*whole)->plan();
      EXPECT_EQ(plan.slab_bytes % GetParam(), 0u);
      options.budget_bytes = (plan.min_streamed_bytes + plan.min_budget_bytes) / 2;
    }
    auto streamed = Engine::Create(options);
    ASSERT_TRUE(streamed.has_value()) << streamed.error().Message();
    EXPECT_EQ(LogitsOf(**streamed), expected) << model;
  }
}

TEST_P(PageSize, AClosedSessionGivesItsBlocksBack) {
  auto engine = Engine::Create(Options("qwen3"));
  ASSERT_TRUE(engine.has_value()) << engine.error().Message();
  LogitsOf(**engine);
  EXPECT_EQ((*engine)->pool().Stats().num_blocks_in_use, 0u);
  EXPECT_EQ((*engine)->pool().Stats().touched_bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(, PageSize, testing::Values(4096, 16384, 65536),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace tael::engine
