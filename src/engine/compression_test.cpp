// Prompts that are compressed before they are answered: alone, turn after turn, and among many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/generation.h"
#include "engine/scheduler_testing.h"

namespace tael::engine {
namespace {

EngineOptions CompressingEngine(const std::string& name = "llama_gqa",
                                kv::CompressPolicy policy = {.percent = 40}) {
  EngineOptions options = SchedulerEngine(name);
  options.context_length = 512;
  options.compress = policy;
  return options;
}

GenerateOptions Greedy(uint32_t max_tokens) {
  GenerateOptions options;
  options.max_tokens = max_tokens;
  options.ignore_eos = true;
  options.sampler.temperature = 0;
  return options;
}

GenerateResult Reply(Session& session, std::span<const TokenId> prompt, uint32_t max_tokens = 30) {
  auto result = Generate(session, prompt, Greedy(max_tokens));
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().Message());
  return result ? *std::move(result) : GenerateResult{};
}

TEST(Compression, AnAnswerBeginsWithAPartOfItsPromptAndSaysHowMuchIsGone) {
  const auto engine = CreateEngine(CompressingEngine());
  const auto plain = CreateEngine(CompressingEngine("llama_gqa", {}));
  ASSERT_TRUE(engine != nullptr && plain != nullptr);
  const auto prompt = RandomTokens(300, 1);
  Session session = engine->NewSession();
  Session whole = plain->NewSession();
  const GenerateResult result = Reply(session, prompt, 4);
  EXPECT_EQ(result.prompt_tokens, 300u);
  // 276 to 299 ask; their blocks stay, from 272 on, and of the 17 before (120 - 28) / 16.
  EXPECT_EQ(result.compressed_tokens, 12u * 16);
  EXPECT_EQ(result.truncated_tokens, 0u);
  EXPECT_EQ(Reply(whole, prompt, 4).compressed_tokens, 0u);
  const uint64_t row_bytes = engine->plan().geometry.RowBytes();
  EXPECT_EQ(session.sequence().bytes_in_use(), 7 * row_bytes);
  EXPECT_EQ(whole.sequence().bytes_in_use(), 19 * row_bytes);
}

TEST(Compression, ShortPromptsAreLeftAloneByAuto) {
  const auto engine = CreateEngine(CompressingEngine("llama_gqa", kv::CompressPolicy::Auto()));
  ASSERT_NE(engine, nullptr);
  Session session = engine->NewSession();
  EXPECT_EQ(Reply(session, RandomTokens(256, 1)).compressed_tokens, 0u);
  session.Truncate(0);
  EXPECT_GT(Reply(session, RandomTokens(257, 1)).compressed_tokens, 100u);
}

TEST(Compression, TheAnswerDependsNeitherOnChunksNorOnDraftsNorOnWhatWasHeldBefore) {
  const auto prompt = RandomTokens(300, 2, 40);  // so few that there is something to guess
  std::vector<std::vector<TokenId>> answers;
  for (const uint32_t chunk : {7u, 32u, 300u}) {
    for (const uint32_t drafts : {0u, 4u}) {
      EngineOptions options = CompressingEngine();
      options.chunk_tokens = chunk;
      options.draft_tokens = drafts;
      const auto engine = CreateEngine(options);
      ASSERT_NE(engine, nullptr);
      for (const uint32_t held : {0u, 100u, 250u, 299u}) {
        Session session = engine->NewSession();
        if (held > 0) {
          const auto first = std::span(prompt).first(held);
          ASSERT_TRUE(session.Feed(first, {}, [](size_t, std::span<float>) {}).has_value());
        }
        const GenerateResult result = Reply(session, prompt);
        EXPECT_EQ(result.cached_tokens, std::min(held, 276u));  // who asks is computed
        EXPECT_GT(result.compressed_tokens, 0u);
        answers.push_back(result.tokens);
      }
    }
  }
  for (const auto& answer : answers) EXPECT_EQ(answer, answers[0]);
}

TEST(Compression, LaterTurnsKeepWhatTheFirstLeftAndAreCompressedWithIt) {
  const auto engine = CreateEngine(CompressingEngine());
  ASSERT_NE(engine, nullptr);
  Session session = engine->NewSession();
  std::vector<TokenId> held = RandomTokens(300, 3);
  const GenerateResult first = Reply(session, held);
  held.insert(held.end(), first.tokens.begin(), first.tokens.end());
  std::vector<TokenId> next = held;
  const auto question = RandomTokens(90, 4);
  next.insert(next.end(), question.begin(), question.end());
  EXPECT_EQ(KeepCommonPrefix(session, held, next), 329u);
  const GenerateResult second = Reply(session, next);
  EXPECT_EQ(second.cached_tokens, 329u);
  EXPECT_GT(second.compressed_tokens, first.compressed_tokens);
  // 420 tokens, of which 168 stay; the answer's 29 come on top.
  EXPECT_LE(session.sequence().bytes_in_use(), 13 * engine->plan().geometry.RowBytes());
  // Another first turn: all of it is read again, and nothing of the old one is left.
  const auto other = RandomTokens(300, 5);
  EXPECT_EQ(KeepCommonPrefix(session, next, other), 0u);
  Session fresh = engine->NewSession();
  EXPECT_EQ(Reply(session, other).tokens, Reply(fresh, other).tokens);
}

TEST(Compression, ThePlanCountsTheScoresOfEverySession) {
  for (const uint32_t sessions : {1u, 3u}) {
    EngineOptions options = CompressingEngine("gemma3");
    options.max_sessions = sessions;
    const auto plan = ForecastPlan(options);
    options.compress = {};
    const auto plain = ForecastPlan(options);
    ASSERT_TRUE(plan.has_value() && plain.has_value());
    uint64_t groups = 0;
    for (const kv::LayerGroup& group : plan->geometry.groups) groups += group.shape.window == 0;
    ASSERT_LT(groups, plan->geometry.groups.size());  // the others keep their own windows
    EXPECT_EQ(plan->score_bytes, sessions * groups * 512 * 16);
    EXPECT_EQ(plan->part(mem::MemoryTag::kKv),
              plain->part(mem::MemoryTag::kKv) + plan->score_bytes);
    EXPECT_EQ(plain->score_bytes, 0u);
  }
}

TEST(Compression, InsideAWindowItIsRefused) {
  EngineOptions options = CompressingEngine();
  options.window.tokens = 100;
  const auto plan = ForecastPlan(options);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(plan.error().Message(), testing::HasSubstr("--compress-prompt"));
}

// ---- among many ----

TEST(CompressionScheduler, AnswersAreThoseThatEachRequestGetsAlone) {
  for (const bool cache : {false, true}) {
    EngineOptions options = CompressingEngine("qwen2_tied");
    options.draft_tokens = 4;
    const auto engine = CreateEngine(options);
    ASSERT_NE(engine, nullptr);
    std::vector<Request> requests = MixedRequests(120, 50, 40);
    requests.push_back(requests[4]);  // its prompt is known by then, or somebody computes it
    std::vector<std::vector<Told>> want;
    for (const Request& request : requests) want.push_back(Expected(*engine, request));
    const auto scheduler = StartScheduler(*engine, {.prefix_cache = cache});
    ASSERT_NE(scheduler, nullptr);
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<engine::Answer>> answers;
      for (const Request& request : requests) answers.push_back(MustSubmit(*scheduler, request));
      for (size_t i = 0; i < answers.size(); ++i) {
        ASSERT_NE(answers[i], nullptr);
        EXPECT_EQ(Listen(*answers[i], requests[i].num_choices), want[i]) << "request " << i;
        EXPECT_GT(answers[i]->usage().compressed_tokens, 0u);
        const auto most = static_cast<uint32_t>(requests[i].prompt.size()) - 24;
        EXPECT_LE(answers[i]->usage().cached_tokens, most);  // what chooses is computed
        const bool is_known = cache && round == 1;
        EXPECT_TRUE(!is_known || answers[i]->usage().cached_tokens > 0);
      }
    }
    ExpectNoBlocks(*engine, *scheduler);
  }
}

TEST(CompressionScheduler, APinnedPromptStaysWhole) {
  const auto engine = CreateEngine(CompressingEngine("qwen2_tied"));
  ASSERT_NE(engine, nullptr);
  std::vector<TokenId> prompt = RandomTokens(320, 8);
  Request request = MakeRequest(prompt, 20);
  const auto question = RandomTokens(80, 9);
  request.prompt.insert(request.prompt.end(), question.begin(), question.end());
  const auto want = Expected(*engine, request);
  const auto scheduler = StartScheduler(*engine, {});
  ASSERT_NE(scheduler, nullptr);
  ASSERT_TRUE(scheduler->Pin(prompt, 0).has_value());
  scheduler->Trim(TrimLevel::kModerate);
  const auto answer = MustSubmit(*scheduler, request);
  ASSERT_NE(answer, nullptr);
  EXPECT_EQ(Listen(*answer), want);
  EXPECT_EQ(answer->usage().cached_tokens, 320u);
}

TEST(CompressionScheduler, APreemptedAnswerGoesOnAsIfNothingHadHappened) {
  for (const bool cache : {false, true}) {
    EngineOptions options = CompressingEngine("qwen2_tied");
    const auto engine = CreateEngine(options);
    ASSERT_NE(engine, nullptr);
    std::vector<Request> requests;
    std::vector<std::vector<Told>> want;
    for (uint32_t i = 0; i < 3; ++i) {
      requests.push_back(MakeRequest(RandomTokens(200 + 30 * i, 90 + i), 200));
      want.push_back(Expected(*engine, requests.back()));
    }
    const auto scheduler = StartScheduler(*engine, {.prefix_cache = cache});
    ASSERT_NE(scheduler, nullptr);
    std::vector<std::shared_ptr<engine::Answer>> answers;
    for (const Request& request : requests) answers.push_back(MustSubmit(*scheduler, request));
    EXPECT_TRUE(Eventually([&] { return scheduler->Stats().generated_tokens > 30; }));
    EXPECT_GT(scheduler->Trim(TrimLevel::kCritical), 0u);
    for (size_t i = 0; i < answers.size(); ++i) {
      ASSERT_NE(answers[i], nullptr);
      EXPECT_EQ(Listen(*answers[i]), want[i]) << "request " << i;
    }
    EXPECT_GT(scheduler->Stats().preemptions, 0u);
    EXPECT_GT(scheduler->Stats().recomputed_tokens, 0u);
    ExpectNoBlocks(*engine, *scheduler);
  }
}

}  // namespace
}  // namespace tael::engine
