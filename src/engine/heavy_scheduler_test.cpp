// Eviction by attention among many: what the scheduler makes of a request does not depend on who
// else is there.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/scheduler.h"
#include "engine/scheduler_testing.h"
#include "engine/testing.h"

namespace tael::engine {
namespace {

EngineOptions HeavyEngine() {
  EngineOptions options = SchedulerEngine("qwen2_tied");
  options.window = {
      .tokens = 80, .shape = kv::WindowShape::kUniform, .floor = 48, .evict = kv::Evict::kHeavy};
  options.draft_tokens = 4;  // asked for, but there are none
  return options;
}

TEST(HeavyScheduler, AnswersAreThoseThatEachRequestGetsAlone) {
  const auto engine = CreateEngine(HeavyEngine());
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->max_draft_tokens(), 0u);
  // Shorter than the window, about as long, and longer than the context.
  const std::vector<Request> requests = MixedRequests(30, 61, 90);
  std::vector<std::vector<Told>> want;
  for (const Request& request : requests) want.push_back(Expected(*engine, request));
  const auto scheduler = StartScheduler(*engine, {.prefix_cache = false});
  ASSERT_NE(scheduler, nullptr);
  std::vector<std::shared_ptr<Answer>> answers;
  for (const Request& request : requests) answers.push_back(MustSubmit(*scheduler, request));
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_NE(answers[i], nullptr);
    EXPECT_EQ(Listen(*answers[i], requests[i].num_choices), want[i]) << "request " << i;
  }
  ExpectNoBlocks(*engine, *scheduler);
}

// The index stays empty: nobody would know what attention a prefix's tokens got.
TEST(HeavyScheduler, WithAnIndexNothingIsSharedAndNothingChanges) {
  const auto engine = CreateEngine(HeavyEngine());
  ASSERT_NE(engine, nullptr);
  const Request request = MakeRequest(RandomTokens(200, 5), 40);
  const auto want = Expected(*engine, request);
  const auto scheduler = StartScheduler(*engine, {.prefix_cache = true});
  ASSERT_NE(scheduler, nullptr);
  for (int i = 0; i < 2; ++i) {
    const auto answer = MustSubmit(*scheduler, request);
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(Listen(*answer), want);
    EXPECT_EQ(answer->usage().cached_tokens, 0u);
  }
  ExpectNoBlocks(*engine, *scheduler);
}

// The scores of tails have room for the plan's sessions, whatever blocks could hold.
TEST(HeavyScheduler, NoMoreRunAtOnceThanTheirScoresArePlannedFor) {
  const auto engine = CreateEngine(HeavyEngine());
  ASSERT_NE(engine, nullptr);
  ASSERT_EQ(engine->plan().max_sessions, 4u);
  const auto scheduler = StartScheduler(*engine, {.max_running = 8, .prefix_cache = false});
  ASSERT_NE(scheduler, nullptr);
  Request request = MakeRequest(RandomTokens(20, 1), 4);
  request.num_choices = 5;
  EXPECT_EQ(scheduler->Submit(request).error().code, ErrorCode::kInvalidArgument);
  request.num_choices = 4;
  EXPECT_NE(MustSubmit(*scheduler, request), nullptr);
}

// Memory is short: windows shrink to their floor, without a tail, and answers still come.
TEST(HeavyScheduler, UnderPressureAnswersGoOnInNarrowerWindows) {
  const auto engine = CreateEngine(HeavyEngine());
  ASSERT_NE(engine, nullptr);
  const auto scheduler = StartScheduler(*engine, {.prefix_cache = false});
  ASSERT_NE(scheduler, nullptr);
  std::vector<std::shared_ptr<Answer>> answers;
  for (uint32_t i = 0; i < 3; ++i) {
    answers.push_back(MustSubmit(*scheduler, MakeRequest(RandomTokens(150, i), 300)));
  }
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().generated_tokens > 20; }));
  EXPECT_GT(scheduler->Trim(TrimLevel::kCritical), 0u);
  for (const auto& answer : answers) {
    ASSERT_NE(answer, nullptr);
    EXPECT_EQ(Listen(*answer)[0].tokens.size(), 300u);
  }
  ExpectNoBlocks(*engine, *scheduler);
}

}  // namespace
}  // namespace tael::engine
