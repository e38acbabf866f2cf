// What the scheduler does when memory runs out, or somebody asks for it back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scheduler_testing.h"

namespace tael::engine {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

TEST_F(SchedulerTest, APinnedPromptStays) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start();
  const auto system = RandomTokens(100, 7);
  const Status pinned = scheduler->Pin(system, 0);
  ASSERT_TRUE(pinned.has_value()) << pinned.error().Message();
  scheduler->Trim(TrimLevel::kCritical);
  EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, engine->plan().geometry.groups.size() * 6);
  Request request = MakeRequest(system, 5);
  request.prompt.push_back(TokenId{3});
  const auto answer = MustSubmit(*scheduler, request);
  Listen(*answer);
  EXPECT_EQ(answer->usage().cached_tokens, 96u);
}

TEST_F(SchedulerTest, PinnedPromptsLeaveHalfThePool) {
  MakeEngine(SmallPool("qwen3"));
  ASSERT_EQ(engine->pool().NumFree(kv::SizeClass{0}), 43u);
  Start();
  const auto system = RandomTokens(320, 1);  // 20 rows
  EXPECT_TRUE(scheduler->Pin(system, 0).has_value());
  const Status second = scheduler->Pin(RandomTokens(96, 2), 0);
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::kOutOfBudget);
  // What can never have room beside it is refused, not kept waiting; the next one is fine.
  const auto large = MustSubmit(*scheduler, MakeRequest(RandomTokens(350, 3), 50));
  EXPECT_EQ(Listen(*large)[0].finish, std::nullopt);
  ASSERT_TRUE(large->error().has_value());
  EXPECT_EQ(large->error()->code, ErrorCode::kOutOfBudget);
  Request fits = MakeRequest(system, 50);
  fits.prompt.resize(400, TokenId{4});
  EXPECT_EQ(Listen(*MustSubmit(*scheduler, fits))[0].tokens.size(), 50u);
}

TEST_F(SchedulerTest, APromptThatCannotBePinnedLeavesNothingPinned) {
  EngineOptions options = SchedulerEngine("llama_gqa");
  options.context_length = 512;
  MakeEngine(options);
  Start({.prefix_cache_bytes = 16 * engine->plan().geometry.RowBytes()});
  const auto prompt = RandomTokens(16 * 20, 3);  // 20 rows
  Listen(*MustSubmit(*scheduler, MakeRequest({prompt.begin(), prompt.begin() + 65}, 1)));
  EXPECT_GT(engine->pool().Stats().num_blocks_in_use, 0u);  // its first rows are there
  EXPECT_FALSE(scheduler->Pin(prompt, 0).has_value());
  ExpectNoBlocks(*engine, *scheduler);
}

TEST_F(SchedulerTest, WhenBlocksRunOutTheNewestWaitsAndGoesOnWhereItWas) {
  MakeEngine(SmallPool("llama_gqa"));
  ASSERT_EQ(engine->pool().NumFree(kv::SizeClass{0}), 64u);  // 4 sequences want 4 * 20
  std::vector<Request> requests;
  std::vector<std::vector<Told>> want;
  for (uint32_t i = 0; i < 6; ++i) {
    requests.push_back(MakeRequest(RandomTokens(20 + i, i + 1), 300));
    requests.back().options.sampler.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    requests.back().options.logprobs = 1;
    requests.back().num_choices = 1 + i % 3;
    want.push_back(Expected(*engine, requests.back()));
  }
  for (const bool cache : {true, false}) {
    Start({.max_running = 4, .prefix_cache = cache, .reserved_tokens = 16});
    std::vector<std::shared_ptr<Answer>> answers;
    for (const Request& request : requests) answers.push_back(MustSubmit(*scheduler, request));
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(Listen(*answers[i], requests[i].num_choices), want[i]) << i << ", cache " << cache;
    }
    EXPECT_TRUE(Eventually([&] { return scheduler->Stats().finished == 6; }));
    const SchedulerStats stats = scheduler->Stats();
    EXPECT_GT(stats.preemptions, 0u);
    EXPECT_EQ(stats.preemptions, stats.resumptions);
    EXPECT_EQ(stats.failed, 0u);
    ExpectNoBlocks(*engine, *scheduler);
    scheduler.reset();
  }
}

TEST_F(SchedulerTest, ARequestThatFindsNoRoomWaitsForIt) {
  MakeEngine(SmallPool("llama_gqa"));
  ASSERT_EQ(engine->pool().NumFree(kv::SizeClass{0}), 64u);
  Start({.max_running = 4, .buffer_tokens = kSmallBuffer});
  // Two that hold 29 rows each, and are promised 32.
  const auto first = MustSubmit(*scheduler, MakeRequest(RandomTokens(453, 1), 60));
  const auto second = MustSubmit(*scheduler, MakeRequest(RandomTokens(453, 2), 60));
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().paused == 2; }));
  const auto third = MustSubmit(*scheduler, MakeRequest(RandomTokens(20, 3), 10));
  std::vector<Piece> pieces;
  EXPECT_EQ(third->WaitFor(100ms, pieces), Answer::Next::kTimeout);
  EXPECT_EQ(scheduler->Stats().queued, 1u);
  Listen(*first);
  EXPECT_EQ(Listen(*third)[0].tokens.size(), 10u);
  EXPECT_EQ(Listen(*second)[0].tokens.size(), 60u);
  EXPECT_EQ(scheduler->Stats().preemptions, 0u);
}

TEST_F(SchedulerTest, TrimGivesIdleRowsBackAndCriticalPreempts) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  std::vector<Request> requests;
  std::vector<std::vector<Told>> want;
  for (uint32_t i = 0; i < 3; ++i) {
    requests.push_back(MakeRequest(RandomTokens(60, i + 1), 60));
    want.push_back(Expected(*engine, requests.back()));
  }
  std::vector<std::string> log;
  std::mutex mutex;
  Start({.buffer_tokens = kSmallBuffer, .pressure_hold = 50ms, .log = [&](std::string_view line) {
           const std::lock_guard lock(mutex);
           log.emplace_back(line);
         }});
  Listen(*MustSubmit(*scheduler, MakeRequest(RandomTokens(100, 9), 1)));
  EXPECT_GT(engine->pool().Stats().num_blocks_in_use, 0u);
  EXPECT_GT(scheduler->Trim(TrimLevel::kModerate), 0u);
  EXPECT_EQ(engine->pool().Stats().num_slabs_in_use, 0u);  // and the kernel has the pages

  std::vector<std::shared_ptr<Answer>> answers;
  for (const Request& request : requests) answers.push_back(MustSubmit(*scheduler, request));
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().paused == 3; }));
  const uint64_t row = engine->plan().geometry.RowBytes();
  EXPECT_EQ(scheduler->Trim(TrimLevel::kCritical), 2 * 5 * row);
  EXPECT_EQ(scheduler->Stats().running, 1u);
  EXPECT_EQ(scheduler->Stats().preempted, 2u);
  EXPECT_TRUE(scheduler->Stats().under_pressure);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(Listen(*answers[i]), want[i]) << i;
  EXPECT_TRUE(Eventually([&] { return !scheduler->Stats().under_pressure; }));
  scheduler.reset();
  const std::lock_guard lock(mutex);
  EXPECT_THAT(log, testing::Contains(HasSubstr("idle prefix rows")));
  EXPECT_THAT(log, testing::Contains(HasSubstr("preempted")));
  EXPECT_THAT(log, testing::Contains(HasSubstr("trim: critical")));
}

TEST_F(SchedulerTest, AllChoicesGoOnAfterACriticalTrim) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Request request = MakeRequest(RandomTokens(40, 1), 60);
  request.num_choices = 3;
  const auto want = Expected(*engine, request);
  Start({.buffer_tokens = kSmallBuffer, .pressure_hold = 20ms});
  const auto answer = Occupy(request);
  scheduler->Trim(TrimLevel::kCritical);
  EXPECT_EQ(scheduler->Stats().preempted, 2u);
  EXPECT_TRUE(Eventually([&] { return !scheduler->Stats().under_pressure; }));
  std::vector<Piece> pieces;
  ASSERT_EQ(answer->WaitFor(60s, pieces), Answer::Next::kPieces);  // there is room to say more
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().resumptions == 2; }));
  std::vector<Told> told(3);
  Hear(told, pieces);
  while (answer->WaitFor(60s, pieces) == Answer::Next::kPieces) Hear(told, pieces);
  EXPECT_EQ(told, want);
}

TEST_F(SchedulerTest, ATrimMovesWhatIsLeftTogether) {
  EngineOptions options = SchedulerEngine("llama_gqa");
  options.context_length = 512;
  MakeEngine(options);  // two slabs
  const Request small = MakeRequest(RandomTokens(100, 9), 60);
  const auto want = Expected(*engine, small);
  Start({.buffer_tokens = kSmallBuffer});
  std::vector<std::shared_ptr<Answer>> large;
  for (uint32_t i = 0; i < 2; ++i) {
    large.push_back(MustSubmit(*scheduler, MakeRequest(RandomTokens(450, i + 1), 50)));
    EXPECT_TRUE(Eventually([&] { return scheduler->Stats().paused == i + 1; }));
  }
  const auto answer = MustSubmit(*scheduler, small);
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().paused == 3; }));
  ASSERT_EQ(engine->pool().Stats().num_slabs_in_use, 2u);
  large[0]->Cancel();
  Listen(*large[0]);
  scheduler->Trim(TrimLevel::kModerate);
  EXPECT_GT(scheduler->Stats().moved_blocks, 0u);
  EXPECT_EQ(engine->pool().Stats().num_slabs_in_use, 1u);
  EXPECT_EQ(Listen(*answer), want);
  large[1]->Cancel();
  Listen(*large[1]);
  ExpectNoBlocks(*engine, *scheduler);
}

TEST_F(SchedulerTest, ACriticalTrimNarrowsWindowsAndTheirAnswersGoOn) {
  EngineOptions options = SchedulerEngine("llama_gqa");
  options.window = {.tokens = 200, .sinks = 4, .shape = kv::WindowShape::kUniform, .floor = 48};
  MakeEngine(options);
  std::vector<std::string> log;
  std::mutex mutex;
  Start({.prefix_cache = false, .buffer_tokens = kSmallBuffer, .log = [&](std::string_view line) {
           const std::lock_guard lock(mutex);
           log.emplace_back(line);
         }});
  // Longer than the context, which is for texts without a window.
  const size_t length = engine->context_length() + 150;
  const auto answer = Occupy(MakeRequest(RandomTokens(length, 1), 40));
  const uint64_t before = engine->pool().Stats().block_bytes_in_use;
  EXPECT_GT(scheduler->Trim(TrimLevel::kCritical), before / 2);
  EXPECT_EQ(scheduler->Stats().running, 1u);
  EXPECT_EQ(Listen(*answer).at(0).tokens.size(), 40u);
  scheduler.reset();
  const std::lock_guard lock(mutex);
  EXPECT_THAT(log, testing::Contains(HasSubstr("windows")));
}

TEST_F(SchedulerTest, WeightsAreGivenBackWhenThereIsNothingToDo) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  const Request request = MakeRequest(RandomTokens(20, 1), 10);
  const auto want = Expected(*engine, request);
  Start({.idle_release = 20ms});
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().weights_released; }));
  EXPECT_EQ(Listen(*MustSubmit(*scheduler, request)), want);
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().idle_releases == 2; }));
}

}  // namespace
}  // namespace tael::engine
