#include "cli/bench_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>

#include "cli/interrupt.h"
#include "cli/loading.h"
#include "engine/batch.h"

namespace tael::cli {
namespace {

// Share of the distance from the largest to the mean logit by which rounding may change an order.
// 8-bit activations move logits by a few hundredths of it; a token of somebody else's answer lies
// about one whole distance down.
constexpr double kRoundingShare = 0.25;

// The likeliest token; notes logits that are no numbers.
TokenId Greedy(std::span<const float> logits, bool& finite) {
  size_t best = 0;
  float sum = 0;  // NaN or infinite as soon as one logit is
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += logits[i] * 0.0f;
    if (logits[i] > logits[best]) best = i;
  }
  finite = finite && std::isfinite(sum);
  return TokenId{static_cast<int32_t>(best)};
}

bool IsNearlyLargest(std::span<const float> logits, TokenId token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  const double mean =
      std::accumulate(logits.begin(), logits.end(), 0.0) / static_cast<double>(logits.size());
  const double distance = largest - double{logits[static_cast<size_t>(ToInt(token))]};
  return distance <= kRoundingShare * (largest - mean);
}

// Every prompt by itself, so that it is cut into the same passes whoever else is there.
Result<std::vector<engine::Session>> Prefill(engine::Engine& engine, const BenchLoad& load,
                                             RunMeasure& run) {
  std::vector<engine::Session> sessions;
  const Stopwatch watch;
  for (size_t i = 0; i < load.prompts.size(); ++i) {
    sessions.push_back(engine.NewSession());
    TAEL_RETURN_IF_ERROR(sessions[i].Feed(load.prompts[i], {.cancel = &Interrupted()},
                                          [&](size_t, std::span<float> logits) {
                                            run.answers[i].push_back(Greedy(logits, run.finite));
                                          }));
    run.ttft_ms += watch.milliseconds() / static_cast<double>(load.prompts.size());
  }
  run.prefill_ms = watch.milliseconds();
  return sessions;
}

}  // namespace

BenchLoad MakeLoad(const engine::Engine& engine, uint32_t sessions, uint32_t prompt_tokens,
                   uint32_t max_tokens) {
  const tokenizer::Tokenizer& tokenizer = engine.tokenizer();
  std::vector<TokenId> normal;
  for (size_t i = 0; i < tokenizer.size(); ++i) {
    const TokenId id{static_cast<int32_t>(i)};
    if (tokenizer.Kind(id) == tokenizer::TokenKind::kNormal) normal.push_back(id);
  }
  if (normal.empty()) normal.push_back(TokenId{0});
  BenchLoad load{.prompts = std::vector<std::vector<TokenId>>(sessions), .max_tokens = max_tokens};
  uint64_t state = 1;
  for (std::vector<TokenId>& prompt : load.prompts) {
    for (uint32_t i = 0; i < prompt_tokens; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
      prompt.push_back(normal[(state >> 33) % normal.size()]);
    }
  }
  return load;
}

Result<RunMeasure> RunOnce(engine::Engine& engine, const BenchLoad& load) {
  RunMeasure run;
  run.answers.resize(load.prompts.size());
  for (std::vector<TokenId>& answer : run.answers) answer.reserve(load.max_tokens);
  TAEL_ASSIGN_OR_RETURN(std::vector<engine::Session> sessions, Prefill(engine, load, run));
  const auto pick = [&run](size_t item, size_t, std::span<float> logits) {
    run.answers[item].push_back(Greedy(logits, run.finite));
  };
  std::vector<engine::BatchItem> items(sessions.size());
  const Stopwatch decode;
  while (run.answers[0].size() < load.max_tokens) {
    if (Interrupted()) return Error{ErrorCode::kCancelled, "cancelled", ""};
    for (size_t i = 0; i < items.size(); ++i) {
      items[i] = {.session = &sessions[i], .tokens = {&run.answers[i].back(), 1}};
    }
    TAEL_RETURN_IF_ERROR(engine::FeedBatch(engine, items, pick));
  }
  run.decode_ms = decode.milliseconds();
  return run;
}

Status CheckSame(const RunMeasure& first, const RunMeasure& other) {
  if (!first.finite || !other.finite) {
    return Error{ErrorCode::kInternal, "wrong output", "some logits are no finite numbers"};
  }
  if (first.answers != other.answers) {
    return Error{ErrorCode::kInternal, "wrong output",
                 "two runs with the same prompts gave different tokens"};
  }
  return {};
}

Status CheckAlone(engine::Engine& engine, const BenchLoad& load, const RunMeasure& together) {
  for (size_t i = 0; i < load.prompts.size(); ++i) {
    const std::vector<TokenId>& answer = together.answers[i];
    std::vector<TokenId> tokens = load.prompts[i];
    tokens.insert(tokens.end(), answer.begin(), answer.end() - 1);  // the last is never fed
    size_t next = 0, wrong = 0;
    engine::Session session = engine.NewSession();
    TAEL_RETURN_IF_ERROR(session.Feed(
        tokens, {.num_logits = static_cast<uint32_t>(answer.size()), .cancel = &Interrupted()},
        [&](size_t, std::span<float> logits) {
          wrong += !IsNearlyLargest(logits, answer[next++]);
        }));
    if (wrong == 0) continue;
    return Error{ErrorCode::kInternal, "wrong output",
                 "session " + std::to_string(i + 1) + " of " + std::to_string(load.prompts.size()) +
                     " got " + std::to_string(wrong) + " of " + std::to_string(answer.size()) +
                     " tokens that it would not get alone"};
  }
  return {};
}

}  // namespace tael::cli
