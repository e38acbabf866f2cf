// Requests in a window: what was dropped is told, and a system prompt is not.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scheduler_testing.h"

namespace tael::engine {
namespace {

constexpr uint32_t kWindow = 100;

struct Dropped {
  uint32_t of_prompt = 0;           // when the answer began
  std::vector<uint32_t> by_choice;  // when it was complete
  bool operator==(const Dropped&) const = default;
};

class WindowedScheduler : public SchedulerTest {
 protected:
  void Make(const std::string& name, uint32_t window) {
    scheduler.reset();
    EngineOptions options = SchedulerEngine(name);
    options.window = {.tokens = window, .sinks = 4, .shape = kv::WindowShape::kUniform};
    MakeEngine(options);
  }
  Dropped Serve(const Request& request) {
    const auto answer = MustSubmit(*scheduler, request);
    Dropped dropped;
    dropped.by_choice.resize(request.num_choices);
    std::vector<Piece> pieces;
    uint32_t num_finished = 0;
    while (answer->WaitFor(std::chrono::seconds(60), pieces) == Answer::Next::kPieces) {
      for (const Piece& piece : pieces) {
        if (!piece.finish) continue;
        dropped.by_choice[piece.choice] = piece.dropped_tokens;
        ++num_finished;
      }
    }
    EXPECT_EQ(num_finished, request.num_choices);
    EXPECT_FALSE(answer->error().has_value());
    dropped.of_prompt = answer->usage().truncated_tokens;
    return dropped;
  }
};

TEST_F(WindowedScheduler, TellsWhatOfThePromptWasDroppedAndWhatUntilTheEnd) {
  for (const bool cache : {true, false}) {
    Make("llama_gqa", kWindow);
    Start({.prefix_cache = cache});
    // The answer's last token is not fed: 300 + 19 tokens, of which 100 are seen.
    EXPECT_EQ(Serve(MakeRequest(RandomTokens(300, 1), 20)), (Dropped{200, {219}}));
    EXPECT_EQ(Serve(MakeRequest(RandomTokens(90, 2), 30)), (Dropped{0, {19}}));
    EXPECT_EQ(Serve(MakeRequest(RandomTokens(50, 3), 20)), (Dropped{0, {0}}));
    // From the cache, if there is one.
    EXPECT_EQ(Serve(MakeRequest(RandomTokens(300, 1), 20)), (Dropped{200, {219}}));
  }
}

TEST_F(WindowedScheduler, TellsItForEveryChoice) {
  Make("llama_gqa", kWindow);
  Start();
  Request request = MakeRequest(RandomTokens(120, 1), 10);
  request.options.sampler.temperature = 1;
  request.num_choices = 3;
  const Dropped dropped = Serve(request);
  EXPECT_EQ(dropped.of_prompt, 20u);
  EXPECT_EQ(dropped.by_choice, std::vector<uint32_t>(3, 29));
  request.options.max_tokens = 1;
  EXPECT_EQ(Serve(request).by_choice, std::vector<uint32_t>(3, 20));
}

// Its layers see 24 tokens each, and were trained so: nothing is lost that they would look at.
TEST_F(WindowedScheduler, AModelsOwnWindowsDropNothing) {
  Make("mistral_swa24", 0);
  Start();
  EXPECT_EQ(Serve(MakeRequest(RandomTokens(200, 1), 10)), (Dropped{0, {0}}));
  scheduler.reset();
  Session session = engine->NewSession();
  const Request request = MakeRequest(RandomTokens(200, 1), 10);
  EXPECT_EQ(Generate(session, request.prompt, request.options)->truncated_tokens, 0u);
}

TEST_F(WindowedScheduler, ASystemPromptIsKeptWhateverTheCacheHolds) {
  Make("llama_gqa", kWindow);
  Request kept = MakeRequest(RandomTokens(320, 1), 12);
  kept.system_tokens = 40;
  Request plain = kept;
  plain.system_tokens = 0;
  const Told want = Expected(*engine, kept).at(0), want_plain = Expected(*engine, plain).at(0);
  ASSERT_NE(want.tokens, want_plain.tokens);  // or nothing could be seen here
  Start();
  // In turn: either finds what the other has published.
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(Listen(*MustSubmit(*scheduler, plain)).at(0), want_plain) << round;
    EXPECT_EQ(Listen(*MustSubmit(*scheduler, kept)).at(0), want) << round;
  }
  kept.num_choices = 2;
  EXPECT_EQ(Listen(*MustSubmit(*scheduler, kept), 2).at(1), want);
  EXPECT_EQ(Serve(kept).of_prompt, 220u);
  ExpectNoBlocks(*engine, *scheduler);
}

// Room for one wide window, or for four narrow ones.
TEST_F(WindowedScheduler, WhatHasGrownMakesRoomForOthers) {
  EngineOptions options = SchedulerEngine("llama_gqa");
  options.max_sessions = 1;
  options.window = {.tokens = 512, .shape = kv::WindowShape::kUniform, .start = 48};
  MakeEngine(options);
  std::vector<std::string> lines;
  SchedulerOptions scheduling{.max_running = 4};
  scheduling.log = [&lines](std::string_view line) { lines.emplace_back(line); };
  Start(scheduling);
  std::vector<std::shared_ptr<Answer>> answers;
  for (uint32_t i = 0; i < 6; ++i) {
    answers.push_back(MustSubmit(*scheduler, MakeRequest(RandomTokens(700, i), 60)));
  }
  for (const auto& answer : answers) {
    const Told told = Listen(*answer).at(0);
    EXPECT_EQ(told.finish, FinishReason::kLength);
    EXPECT_EQ(told.tokens.size(), 60u);
  }
  EXPECT_EQ(scheduler->Stats().failed, 0u);
  ExpectNoBlocks(*engine, *scheduler);
  scheduler.reset();
  EXPECT_GT(
      std::ranges::count_if(
          lines, [](const std::string& line) { return line.find("window") != std::string::npos; }),
      0);
}

}  // namespace
}  // namespace tael::engine
