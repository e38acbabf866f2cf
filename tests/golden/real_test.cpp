// Real models against transformers in f32, teacher-forced (tests/data/golden): how far the engine's
// log probabilities are from those of the same weights without any rounding of activations.
//
// The models come from `scripts/get-model`; TAEL_TEST_MODELS names the folder. TAEL_FULL_GOLDENS=1
// runs the longest prompts on the reference path too (minutes).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/engine.h"
#include "testing.h"

namespace tael {
namespace {

using nlohmann::json;

struct Closeness {
  double sum = 0;
  size_t count = 0;
  size_t same_top = 0;
  double mean() const { return sum / static_cast<double>(count); }
  double top1() const { return static_cast<double>(same_top) / static_cast<double>(count); }
};

void Compare(const json& step, std::span<const float> logits, Closeness& out) {
  const double got = static_cast<double>(logits[step["id"].get<size_t>()]) - LogSumExp(logits);
  out.sum += std::abs(got - step["logprob"].get<double>());
  const auto top = std::max_element(logits.begin(), logits.end()) - logits.begin();
  out.same_top += top == step["top"][0][0].get<long>();
  ++out.count;
}

// Feeds the prompt and then the forced ids, one by one as decoding does.
void RunPrompt(engine::Engine& engine, const json& prompt, Closeness& out) {
  engine::Session session = engine.NewSession();
  std::vector<TokenId> tokens;
  for (int id : prompt["prompt_tokens"]) tokens.push_back(TokenId{id});
  for (const json& step : prompt["steps"]) {
    const Status status = session.Feed(
        tokens, {}, [&](size_t, std::span<float> logits) { Compare(step, logits, out); });
    ASSERT_TRUE(status.has_value()) << status.error().Message();
    tokens = {TokenId{step["id"].get<int>()}};
  }
}

Closeness RunGolden(const std::string& model, exec::Compute compute, size_t longest_prompt) {
  Closeness closeness;
  auto engine = engine::Engine::Create(
      {.model_path = RealModel(model), .context_length = 2304, .compute = compute});
  EXPECT_TRUE(engine.has_value()) << engine.error().Message();
  std::ifstream file(std::string(TAEL_TEST_DATA) + "/golden/" + model + "-f32.json");
  for (const json& prompt : json::parse(file)) {
    if (prompt["prompt_tokens"].size() > longest_prompt) continue;
    RunPrompt(**engine, prompt, closeness);
  }
  std::printf("%s: mean |delta logprob| %.4f, top-1 agreement %.4f over %zu steps\n", model.c_str(),
              closeness.mean(), closeness.top1(), closeness.count);
  return closeness;
}

size_t LongestOnReferencePath() {
  return std::getenv("TAEL_FULL_GOLDENS") != nullptr ? 10000 : 100;
}

class RealModelTest : public testing::Test {
 protected:
  void Need(const char* name) {
    if (RealModel(name).empty()) {
      GTEST_SKIP() << "needs " << name << ".gguf in TAEL_TEST_MODELS: scripts/get-model " << name;
    }
  }
};

// llama.cpp is 0.0341 away on these prompts with top-1 agreement 0.962: the price of 8-bit
// activations. Ours may be at most 10 % more.
TEST_F(RealModelTest, SmolLM2FastPathIsNoFurtherFromF32ThanItsPeer) {
  ASSERT_NO_FATAL_FAILURE(Need("smollm2"));
  if (IsSkipped()) return;
  const Closeness closeness = RunGolden("smollm2", exec::Compute::kFast, 10000);
  EXPECT_LE(closeness.mean(), 0.038);
  EXPECT_GE(closeness.top1(), 0.955);
}

TEST_F(RealModelTest, Gemma3FastPathIsNoFurtherFromF32ThanItsPeer) {
  ASSERT_NO_FATAL_FAILURE(Need("gemma3"));
  if (IsSkipped()) return;
  const Closeness closeness = RunGolden("gemma3", exec::Compute::kFast, 10000);
  EXPECT_LE(closeness.mean(), 0.033);
  EXPECT_GE(closeness.top1(), 0.97);
}

TEST_F(RealModelTest, SmolLM2ReferencePathEqualsF32) {
  ASSERT_NO_FATAL_FAILURE(Need("smollm2"));
  if (IsSkipped()) return;
  EXPECT_LE(RunGolden("smollm2", exec::Compute::kReference, LongestOnReferencePath()).mean(),
            0.003);
}

TEST_F(RealModelTest, Gemma3ReferencePathEqualsF32) {
  ASSERT_NO_FATAL_FAILURE(Need("gemma3"));
  if (IsSkipped()) return;
  EXPECT_LE(RunGolden("gemma3", exec::Compute::kReference, LongestOnReferencePath()).mean(), 0.003);
}

}  // namespace
}  // namespace tael
