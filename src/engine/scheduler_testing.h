// For tests only: requests, what comes of them, and what Generate() says that should be.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/scheduler.h"
#include "engine/testing.h"

namespace tael::engine {

// f32 activations: products do not depend on how many tokens share a pass, so that answers are
// equal bit by bit. Small passes, so that prompts take several; freed blocks read as NaN.
inline EngineOptions SchedulerEngine(const std::string& name) {
  return {.model_path = Tiny(name),
          .budget_bytes = 256u << 20,
          .num_threads = 2,
          .context_length = 256,
          .max_sessions = 4,
          .chunk_tokens = 32,
          .compute = exec::Compute::kReference,
          .poison_freed = true};
}

class Dice {
 public:
  explicit Dice(uint32_t seed) : rng_(seed) {}
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(rng_() % n); }
  uint32_t Any() { return static_cast<uint32_t>(rng_()); }

 private:
  std::mt19937 rng_;
};

inline Request MakeRequest(std::vector<TokenId> prompt, uint32_t max_tokens) {
  Request request{.prompt = std::move(prompt)};
  request.options.max_tokens = max_tokens;
  request.options.sampler.temperature = 0;
  request.options.ignore_eos = true;
  return request;
}

// Six prompts, each `step` tokens longer than the one before; every third has two choices, drawn.
inline std::vector<Request> MixedRequests(uint32_t shortest, uint32_t step, uint32_t max_tokens) {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) {
    Request request = MakeRequest(RandomTokens(shortest + step * i, 70 + i), max_tokens);
    if (i % 3 == 1) {
      request.num_choices = 2;
      request.options.sampler.temperature = 1;
      request.options.sampler.seed = i;
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

// Everything that came of one choice.
struct Told {
  std::string text = {};
  std::vector<TokenId> tokens = {};
  std::vector<float> logprobs = {};
  std::vector<size_t> num_top = {};
  std::optional<FinishReason> finish = {};
  bool operator==(const Told&) const = default;
};

inline void Hear(std::vector<Told>& told, const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    ASSERT_LT(piece.choice, told.size());
    Told& choice = told[piece.choice];
    EXPECT_FALSE(choice.finish.has_value()) << "something came after the end";
    choice.text += piece.text;
    choice.tokens.insert(choice.tokens.end(), piece.tokens.begin(), piece.tokens.end());
    for (const sample::LogProbs& one : piece.logprobs) {
      choice.logprobs.push_back(one.logprob);
      choice.num_top.push_back(one.top.size());
    }
    choice.finish = piece.finish;
  }
}

// Reads to the end.
inline std::vector<Told> Listen(Answer& answer, uint32_t num_choices = 1) {
  std::vector<Told> told(num_choices);
  std::vector<Piece> pieces;
  while (true) {
    const Answer::Next next = answer.WaitFor(std::chrono::seconds(60), pieces);
    EXPECT_NE(next, Answer::Next::kTimeout) << "nothing comes";
    if (next != Answer::Next::kPieces) return told;
    Hear(told, pieces);
  }
}

// What the request's choices should say. Requires: no scheduler has the engine.
inline std::vector<Told> Expected(Engine& engine, const Request& request) {
  std::vector<Told> all;
  for (uint32_t i = 0; i < request.num_choices; ++i) {
    GenerateOptions options = request.options;
    options.sampler.seed += i;
    Session session = engine.NewSession();
    session.PinFirst(request.system_tokens);
    auto result = Generate(session, request.prompt, options);
    EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().Message());
    if (!result) continue;
    Told told{.text = result->text, .tokens = result->tokens, .finish = result->finish_reason};
    for (const sample::LogProbs& one : result->logprobs) {
      told.logprobs.push_back(one.logprob);
      told.num_top.push_back(one.top.size());
    }
    all.push_back(std::move(told));
  }
  return all;
}

inline std::unique_ptr<Scheduler> StartScheduler(Engine& engine, const SchedulerOptions& options) {
  auto scheduler = Scheduler::Create(engine, options);
  EXPECT_TRUE(scheduler.has_value()) << (scheduler ? "" : scheduler.error().Message());
  return scheduler ? *std::move(scheduler) : nullptr;
}

inline std::shared_ptr<Answer> MustSubmit(Scheduler& scheduler, Request request) {
  auto answer = scheduler.Submit(std::move(request));
  EXPECT_TRUE(answer.has_value()) << (answer ? "" : answer.error().Message());
  return answer ? *std::move(answer) : nullptr;
}

// Statistics follow a pass: waits until they say so, or a while.
template <class Condition>
bool Eventually(Condition condition) {
  for (int i = 0; i < 5000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

// Nothing is lost: after what is idle has been given back no block is in use.
inline void ExpectNoBlocks(Engine& engine, Scheduler& scheduler) {
  scheduler.Trim(TrimLevel::kModerate);
  EXPECT_EQ(engine.pool().Stats().num_blocks_in_use, 0u);
}

// A reader that does not read keeps its answer where it is: after a few tokens, with its blocks.
inline constexpr uint32_t kSmallBuffer = 8;

class SchedulerTest : public testing::Test {
 protected:
  void MakeEngine(const EngineOptions& options) {
    engine = CreateEngine(options);
    ASSERT_NE(engine, nullptr);
  }
  void Start(const SchedulerOptions& options = {}) { scheduler = StartScheduler(*engine, options); }

  // Submits, and waits until the answer stands still because nobody reads it.
  std::shared_ptr<Answer> Occupy(Request request) {
    auto answer = MustSubmit(*scheduler, std::move(request));
    EXPECT_TRUE(Eventually([&] { return scheduler->Stats().paused > 0; }));
    return answer;
  }

  std::unique_ptr<Engine> engine;
  std::unique_ptr<Scheduler> scheduler;
};

// A pool of one slab: 64 rows of 16 tokens, or 43 of qwen3.
inline EngineOptions SmallPool(const std::string& name) {
  EngineOptions options = SchedulerEngine(name);
  options.max_sessions = 1;
  options.context_length = 512;
  return options;
}

}  // namespace tael::engine
