#include "engine/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/fault.h"
#include "engine/scheduler_testing.h"

namespace tael::engine {
namespace {

using testing::HasSubstr;
using namespace std::chrono_literals;

Request RandomRequest(Dice& dice) {
  Request request = MakeRequest(RandomTokens(1 + dice.Below(120), dice.Any()), 1 + dice.Below(60));
  if (dice.Below(2) == 0) {  // a system prompt that some share
    const auto system = RandomTokens(70, 99);
    request.prompt.insert(request.prompt.begin(), system.begin(), system.end());
  }
  GenerateOptions& options = request.options;
  options.sampler.temperature = dice.Below(2) == 0 ? 0.0f : 1.2f;
  options.sampler.seed = dice.Any();
  options.ignore_eos = dice.Below(3) != 0;
  if (dice.Below(3) == 0) options.logprobs = dice.Below(4);
  if (dice.Below(3) == 0) options.stop = {"e", "th"};
  if (dice.Below(3) == 0) request.num_choices = 2 + dice.Below(2);
  if (dice.Below(3) == 0) request.priority = Priority::kBackground;
  request.salt = dice.Below(2);
  return request;
}

TEST_F(SchedulerTest, AnswersAreThoseThatEachRequestGetsAlone) {
  for (const char* name : {"llama_gqa", "gemma3", "qwen2_tied", "mistral_swa24"}) {
    MakeEngine(SchedulerEngine(name));
    Dice dice(11);
    std::vector<Request> requests;
    std::vector<std::vector<Told>> want;
    for (int i = 0; i < 24; ++i) {
      requests.push_back(RandomRequest(dice));
      want.push_back(Expected(*engine, requests.back()));
    }
    Start();
    std::vector<std::shared_ptr<Answer>> answers;
    for (const Request& request : requests) {
      answers.push_back(MustSubmit(*scheduler, request));
      if (dice.Below(3) == 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(dice.Below(20)));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      EXPECT_EQ(Listen(*answers[i], requests[i].num_choices), want[i]) << name << ", request " << i;
      EXPECT_FALSE(answers[i]->error().has_value());
      const Usage usage = answers[i]->usage();
      EXPECT_EQ(usage.prompt_tokens, requests[i].prompt.size());
      size_t completion = 0;
      for (const Told& told : want[i]) completion += told.tokens.size();
      EXPECT_EQ(usage.completion_tokens, completion);
      EXPECT_LT(usage.cached_tokens, usage.prompt_tokens);
    }
    ExpectNoBlocks(*engine, *scheduler);
    EXPECT_TRUE(Eventually([&] { return scheduler->Stats().finished == requests.size(); }));
    scheduler.reset();
    EXPECT_TRUE(engine->pool().CheckInvariants());
  }
}

TEST_F(SchedulerTest, AnAnswerAloneIsDraftedAsByGenerate) {
  EngineOptions options = SchedulerEngine("qwen2_tied");
  options.draft_tokens = Speculation::kMostDraft;
  options.compute = exec::Compute::kFast;
  MakeEngine(options);
  Request request = MakeRequest(RandomTokens(40, 3, 4), 100);
  request.options.speculate = Speculate::kAlways;
  const auto want = Expected(*engine, request);
  Start();
  const auto answer = MustSubmit(*scheduler, request);
  EXPECT_EQ(Listen(*answer), want);
  EXPECT_GT(answer->timings().accepted_tokens, 0u);
  EXPECT_GE(answer->timings().draft_tokens, answer->timings().accepted_tokens);
  EXPECT_GT(answer->timings().ttft_ms, 0);
}

TEST_F(SchedulerTest, ChoicesSampleWithSeedsOfTheirOwn) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Request request = MakeRequest(RandomTokens(50, 1), 30);
  request.options.sampler.temperature = 1;
  request.options.sampler.seed = 5;
  request.num_choices = 3;
  const auto want = Expected(*engine, request);
  Start();
  const auto told = Listen(*MustSubmit(*scheduler, request), 3);
  EXPECT_EQ(told, want);
  EXPECT_NE(told[0].tokens, told[1].tokens);
  EXPECT_NE(told[1].tokens, told[2].tokens);
}

TEST_F(SchedulerTest, ChoicesHoldThePromptOnceAndATailEach) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start({.buffer_tokens = 3 * 20});
  Request request = MakeRequest(RandomTokens(70, 1), 100);
  request.options.sampler.temperature = 1;
  request.num_choices = 3;
  const auto answer = Occupy(request);
  // 4 whole rows of the prompt; tails hold its last 6 tokens and 19 more.
  const size_t groups = engine->plan().geometry.groups.size();
  EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, groups * (4 + 3 * 2));
  answer->Cancel();
  Listen(*answer, 3);
  ExpectNoBlocks(*engine, *scheduler);
}

TEST_F(SchedulerTest, PromptsThatAreEqualAreComputedOnce) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start();
  const auto prompt = RandomTokens(200, 7);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(MustSubmit(*scheduler, MakeRequest(prompt, 5)));
  std::vector<Told> first = Listen(*answers[0]);
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(Listen(*answers[i]), first);
    EXPECT_EQ(answers[i]->usage().cached_tokens, 192u);
  }
  EXPECT_EQ(answers[0]->usage().cached_tokens, 0u);
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().finished == 4; }));
  EXPECT_EQ(scheduler->Stats().prompt_tokens, 200u + 3 * 8);
}

TEST_F(SchedulerTest, WhoeverWaitedForAPrefixComputesItWhenItsOwnerIsGone) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  const auto prompt = RandomTokens(240, 7);
  const auto want = Expected(*engine, MakeRequest(prompt, 5));
  Start();
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 4; ++i) answers.push_back(MustSubmit(*scheduler, MakeRequest(prompt, 5)));
  answers[0]->Cancel();
  answers[1]->Cancel();
  EXPECT_EQ(Listen(*answers[2]), want);
  EXPECT_EQ(Listen(*answers[3]), want);
}

TEST_F(SchedulerTest, OtherTenantsShareNothing) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start();
  Request request = MakeRequest(RandomTokens(100, 7), 5);
  Listen(*MustSubmit(*scheduler, request));
  request.salt = 1;
  const auto answer = MustSubmit(*scheduler, request);
  Listen(*answer);
  EXPECT_EQ(answer->usage().cached_tokens, 0u);
}

TEST_F(SchedulerTest, TheNextTurnFindsPromptAndAnswer) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start();
  Request request = MakeRequest(RandomTokens(60, 7), 40);
  const auto told = Listen(*MustSubmit(*scheduler, request));
  request.prompt.insert(request.prompt.end(), told[0].tokens.begin(), told[0].tokens.end());
  request.prompt.push_back(TokenId{9});
  const auto answer = MustSubmit(*scheduler, request);
  Listen(*answer);
  EXPECT_EQ(answer->usage().cached_tokens, 96u);  // of 99 held
}

TEST_F(SchedulerTest, WithoutAPrefixCacheNothingIsSharedOrKept) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  const Request request = MakeRequest(RandomTokens(100, 7), 5);
  const auto want = Expected(*engine, request);
  Start({.prefix_cache = false});
  for (int i = 0; i < 2; ++i) {
    const auto answer = MustSubmit(*scheduler, request);
    EXPECT_EQ(Listen(*answer), want);
    EXPECT_EQ(answer->usage().cached_tokens, 0u);
  }
  EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, 0u);
  EXPECT_EQ(scheduler->Pin(request.prompt, 0).error().code, ErrorCode::kInvalidArgument);
}

TEST_F(SchedulerTest, WhatCanNeverRunIsRefusedAtOnce) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start();
  const auto refused = [&](const Request& request, ErrorCode code, const std::string& named) {
    const auto answer = scheduler->Submit(request);
    ASSERT_FALSE(answer.has_value()) << named;
    EXPECT_EQ(answer.error().code, code) << named;
    EXPECT_THAT(answer.error().Message(), HasSubstr(named));
  };
  refused(MakeRequest({}, 5), ErrorCode::kInvalidArgument, "no prompt");
  refused(MakeRequest({TokenId{100000}}, 5), ErrorCode::kInvalidArgument, "100000");
  refused(MakeRequest(RandomTokens(512, 1), 5), ErrorCode::kContextExceeded, "512");
  refused(MakeRequest(RandomTokens(250, 1), 8), ErrorCode::kContextExceeded, "at most 7");
  refused(MakeRequest(RandomTokens(250, 1), 8), ErrorCode::kContextExceeded, "256");
  Request request = MakeRequest(RandomTokens(5, 1), 5);
  request.num_choices = 5;
  refused(request, ErrorCode::kInvalidArgument, "1 to 4");
  request.num_choices = 0;
  refused(request, ErrorCode::kInvalidArgument, "1 to 4");
  request.num_choices = 1;
  request.options.sampler.top_p = -1;
  refused(request, ErrorCode::kInvalidArgument, "");
  request = MakeRequest(RandomTokens(5, 1), 5);
  request.options.stop = {""};
  refused(request, ErrorCode::kInvalidArgument, "stop");

  EXPECT_EQ(scheduler->MostNewTokens(250), 7u);
  EXPECT_EQ(scheduler->MostNewTokens(257), 0u);
  request = MakeRequest(RandomTokens(250, 1), scheduler->MostNewTokens(250));
  EXPECT_EQ(Listen(*MustSubmit(*scheduler, request))[0].tokens.size(), 7u);
}

TEST_F(SchedulerTest, AFullQueueSaysBusyAndWhenToComeBack) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start({.max_queued = 2, .max_running = 1, .buffer_tokens = kSmallBuffer});
  const Request request = MakeRequest(RandomTokens(20, 1), 40);
  const auto first = Occupy(request);
  const auto second = MustSubmit(*scheduler, request), third = MustSubmit(*scheduler, request);
  const auto fourth = scheduler->Submit(request);
  ASSERT_FALSE(fourth.has_value());
  EXPECT_EQ(fourth.error().code, ErrorCode::kBusy);
  EXPECT_THAT(fourth.error().Message(), HasSubstr("2 of at most 2"));
  EXPECT_GE(scheduler->RetryAfterSeconds(), 1u);
  EXPECT_EQ(scheduler->Stats().refused_busy, 1u);
  // The queue has a place again as soon as one of them is gone.
  second->Cancel();
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().queued == 1; }));
  const auto fifth = MustSubmit(*scheduler, request);
  for (const auto& answer : {first, third, fifth}) {
    EXPECT_EQ(Listen(*answer)[0].tokens.size(), 40u);
  }
}

TEST_F(SchedulerTest, ARequestThatIsCancelledInTheQueueNeverRuns) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start({.max_running = 1, .buffer_tokens = kSmallBuffer});
  const auto first = Occupy(MakeRequest(RandomTokens(20, 1), 40));
  Request request = MakeRequest(RandomTokens(100, 2), 40);
  const auto second = MustSubmit(*scheduler, request);
  second->Cancel();
  const auto told = Listen(*second);
  EXPECT_EQ(told[0].finish, FinishReason::kCancelled);
  EXPECT_TRUE(told[0].tokens.empty());
  EXPECT_EQ(Listen(*first)[0].tokens.size(), 40u);
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().finished == 1; }));
  EXPECT_EQ(scheduler->Stats().prompt_tokens, 20u);
}

TEST_F(SchedulerTest, CancellingKeepsWhatWasSaidAndGivesTheBlocksBack) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  const Request request = MakeRequest(RandomTokens(20, 1), 200);
  const auto want = Expected(*engine, request);
  Start({.prefix_cache = false, .buffer_tokens = kSmallBuffer});
  const auto answer = Occupy(request);
  const auto start = std::chrono::steady_clock::now();
  answer->Cancel();
  EXPECT_TRUE(Eventually([&] { return engine->pool().Stats().num_blocks_in_use == 0; }));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 200ms);
  const auto told = Listen(*answer);
  EXPECT_EQ(told[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(told[0].tokens.size(), kSmallBuffer);
  EXPECT_TRUE(std::equal(told[0].tokens.begin(), told[0].tokens.end(), want[0].tokens.begin()));
  answer->Cancel();  // again is fine
}

TEST_F(SchedulerTest, AnAnswerThatNobodyHoldsIsCancelled) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start({.prefix_cache = false});
  MustSubmit(*scheduler, MakeRequest(RandomTokens(20, 1), 230));
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().cancelled == 1; }));
  EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, 0u);
}

TEST_F(SchedulerTest, ASlowReaderStopsNobodyElse) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  const Request slow = MakeRequest(RandomTokens(20, 1), 100);
  const Request fast = MakeRequest(RandomTokens(30, 2), 100);
  const auto want_slow = Expected(*engine, slow), want_fast = Expected(*engine, fast);
  Start({.buffer_tokens = kSmallBuffer});
  const auto answer = Occupy(slow);
  EXPECT_EQ(Listen(*MustSubmit(*scheduler, fast)), want_fast);
  EXPECT_EQ(answer->usage().completion_tokens, kSmallBuffer);
  EXPECT_EQ(Listen(*answer), want_slow);  // it goes on where it was
}

TEST_F(SchedulerTest, AReaderThatIsTooSlowLosesItsAnswer) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start({.prefix_cache = false, .buffer_tokens = kSmallBuffer, .slow_reader_timeout = 50ms});
  const auto answer = Occupy(MakeRequest(RandomTokens(20, 1), 100));
  ASSERT_TRUE(Eventually([&] { return answer->error().has_value(); }));
  EXPECT_EQ(answer->error()->code, ErrorCode::kCancelled);
  EXPECT_THAT(answer->error()->Message(), HasSubstr("slow"));
  EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, 0u);
  const auto told = Listen(*answer);
  EXPECT_EQ(told[0].tokens.size(), kSmallBuffer);  // what came can still be read
  EXPECT_FALSE(told[0].finish.has_value());
  EXPECT_TRUE(Eventually([&] { return scheduler->Stats().slow_readers == 1; }));
}

TEST_F(SchedulerTest, InteractiveRequestsOvertakeBackgroundOnesInTheQueue) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start({.max_running = 1, .buffer_tokens = kSmallBuffer});
  const auto first = Occupy(MakeRequest(RandomTokens(20, 1), 20));
  Request background = MakeRequest(RandomTokens(20, 2), 20);
  background.priority = Priority::kBackground;
  const auto later = MustSubmit(*scheduler, background);
  const auto sooner = MustSubmit(*scheduler, MakeRequest(RandomTokens(20, 3), 20));
  std::vector<Piece> pieces;
  Listen(*first);
  EXPECT_EQ(sooner->WaitFor(10s, pieces), Answer::Next::kPieces);
  EXPECT_EQ(later->WaitFor(0ms, pieces), Answer::Next::kTimeout);
  Listen(*sooner);
  EXPECT_EQ(Listen(*later)[0].tokens.size(), 20u);
}

TEST_F(SchedulerTest, AnswersOutliveTheSchedulerAndEndWithIt) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start({.max_running = 1, .buffer_tokens = kSmallBuffer});
  const auto running = Occupy(MakeRequest(RandomTokens(20, 1), 100));
  const auto queued = MustSubmit(*scheduler, MakeRequest(RandomTokens(20, 2), 100));
  scheduler.reset();
  EXPECT_EQ(Listen(*running)[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(Listen(*queued)[0].finish, FinishReason::kCancelled);
  running->Cancel();
  EXPECT_EQ(engine->pool().Stats().num_blocks_in_use, 0u);
}

TEST_F(SchedulerTest, AnAnswerOfNoTokensEnds) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  Start();
  const auto told = Listen(*MustSubmit(*scheduler, MakeRequest(RandomTokens(20, 1), 0)));
  EXPECT_EQ(told[0].finish, FinishReason::kLength);
  EXPECT_TRUE(told[0].tokens.empty());
}

TEST_F(SchedulerTest, WithoutAThreadThereIsNoScheduler) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  const FaultInjection fault(FaultKind::kThread, 1);
  const auto made = Scheduler::Create(*engine, {});
  ASSERT_FALSE(made.has_value());
  EXPECT_EQ(made.error().code, ErrorCode::kIo);
}

TEST_F(SchedulerTest, BadOptionsAreRefused) {
  MakeEngine(SchedulerEngine("llama_gqa"));
  EXPECT_EQ(Scheduler::Create(*engine, {.max_queued = 0}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Scheduler::Create(*engine, {.buffer_tokens = 0}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Scheduler::Create(*engine, {.max_running = 33}).error().code,
            ErrorCode::kInvalidArgument);
}

TEST_F(SchedulerTest, WhenTheModelFileIsCutEveryAnswerSaysSo) {
  const std::string path =
      testing::TempDir() + "scheduler-cut-" + std::to_string(::getpid()) + ".gguf";
  std::filesystem::copy_file(Tiny("llama_gqa"), path,
                             std::filesystem::copy_options::overwrite_existing);
  EngineOptions options = SchedulerEngine("llama_gqa");
  options.model_path = path;
  MakeEngine(options);
  Start({.buffer_tokens = kSmallBuffer});
  const auto answer = Occupy(MakeRequest(RandomTokens(20, 1), 100));
  std::filesystem::resize_file(path, 4096);
  Listen(*answer);
  ASSERT_TRUE(answer->error().has_value());
  EXPECT_EQ(answer->error()->code, ErrorCode::kIo);
  scheduler.reset();
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tael::engine
