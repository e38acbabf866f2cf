// Requests in a window: what was dropped is told, and a system prompt is not.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/scheduler_testing.h"

namespace tael::engine {
namespace {

constexpr uint32_t kWindow = 100;

struct Dropped {
  uint32_t of_prompt = 0;           // when the answer began
  std::vector<uint32_t> by_choice;  // when it was complete
};

class WindowedScheduler : public testing::Test {
 protected:
  void Make(const std::string& name, uint32_t window, bool with_cache = true) {
    scheduler.reset();
    EngineOptions options = SchedulerEngine(name);
    options.window = {.tokens = window, .sinks = 4, .shape = kv::WindowShape::kUniform};
    engine = CreateEngine(options);
    ASSERT_NE(engine, nullptr);
    prefix_cache = with_cache;
  }
  void Start() { scheduler = StartScheduler(*engine, {.prefix_cache = prefix_cache}); }
  Dropped Serve(const Request& request) {
    const auto answer = MustSubmit(*scheduler, request);
    Dropped dropped;
    dropped.by_choice.resize(request.num_choices);
    std::vector<Piece> pieces;
    while (answer->WaitFor(std::chrono::seconds(60), pieces) == Answer::Next::kPieces) {
      for (const Piece& piece : pieces) {
        if (piece.finish) dropped.by_choice[piece.choice] = piece.dropped_tokens;
      }
    }
    EXPECT_FALSE(answer->error().has_value());
    dropped.of_prompt = answer->usage().truncated_tokens;
    return dropped;
  }
  // What Generate() makes of the request in a session that keeps its system prompt.
  Told Alone(const Request& request) {
    Session session = engine->NewSession();
    session.PinFirst(request.system_tokens);
    const auto result = Generate(session, request.prompt, request.options);
    EXPECT_TRUE(result.has_value());
    return {.text = result->text, .tokens = result->tokens, .finish = result->finish_reason};
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<Scheduler> scheduler;
  bool prefix_cache = true;
};

TEST_F(WindowedScheduler, TellsWhatOfThePromptWasDroppedAndWhatUntilTheEnd) {
  for (const bool cache : {true, false}) {
    Make("llama_gqa", kWindow, cache);
    Start();
    // The answer's last token is not fed: 300 + 19 tokens, of which 100 are seen.
    const Dropped both = Serve(MakeRequest(RandomTokens(300, 1), 20));
    EXPECT_EQ(both.of_prompt, 200u);
    EXPECT_EQ(both.by_choice[0], 219u);
    const Dropped answer = Serve(MakeRequest(RandomTokens(90, 2), 30));
    EXPECT_EQ(answer.of_prompt, 0u);
    EXPECT_EQ(answer.by_choice[0], 19u);
    const Dropped nothing = Serve(MakeRequest(RandomTokens(50, 3), 20));
    EXPECT_EQ(nothing.of_prompt, 0u);
    EXPECT_EQ(nothing.by_choice[0], 0u);
    // From the cache, if there is one.
    const Dropped again = Serve(MakeRequest(RandomTokens(300, 1), 20));
    EXPECT_EQ(again.of_prompt, 200u);
    EXPECT_EQ(again.by_choice[0], 219u);
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
  const Dropped dropped = Serve(MakeRequest(RandomTokens(200, 1), 10));
  EXPECT_EQ(dropped.of_prompt, 0u);
  EXPECT_EQ(dropped.by_choice[0], 0u);
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
  const Told want = Alone(kept), want_plain = Alone(plain);
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

}  // namespace
}  // namespace tael::engine
