// `tael bench`: speed and memory of one model, with a check of what it computed.
//
// A run is a prompt of fixed pseudo-random ids and a greedy answer to it. Memory is sampled during
// the warm-up run, which is not timed, and read once after each timed run.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/loading.h"
#include "cli/peak_memory.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "kernels/kernels.h"

namespace tael::cli {
namespace {

struct RunMeasure {
  std::vector<TokenId> ids;  // the answer
  bool finite = true;        // all logits that were looked at
  double prefill_ms = 0;
  double decode_ms = 0;  // of the tokens after the first
};

// Ordinary tokens, the same on every machine.
std::vector<TokenId> MakePrompt(const tokenizer::Tokenizer& tokenizer, uint32_t count) {
  std::vector<TokenId> normal;
  for (size_t i = 0; i < tokenizer.size(); ++i) {
    const TokenId id{static_cast<int32_t>(i)};
    if (tokenizer.Kind(id) == tokenizer::TokenKind::kNormal) normal.push_back(id);
  }
  if (normal.empty()) normal.push_back(TokenId{0});
  std::vector<TokenId> prompt;
  uint64_t state = 1;
  for (uint32_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX generator
    prompt.push_back(normal[(state >> 33) % normal.size()]);
  }
  return prompt;
}

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

Result<RunMeasure> RunOnce(engine::Engine& engine, std::span<const TokenId> prompt,
                           uint32_t max_tokens) {
  RunMeasure run;
  run.ids.reserve(max_tokens);
  engine::Session session = engine.NewSession();
  const engine::FeedOptions feed{.num_logits = 1, .cancel = &Interrupted()};
  const auto pick = [&run](size_t, std::span<float> logits) {
    run.ids.push_back(Greedy(logits, run.finite));
  };
  const Stopwatch prefill;
  TAEL_RETURN_IF_ERROR(session.Feed(prompt, feed, pick));
  run.prefill_ms = prefill.milliseconds();
  const Stopwatch decode;
  while (run.ids.size() < max_tokens) {
    const TokenId last = run.ids.back();
    TAEL_RETURN_IF_ERROR(session.Feed({&last, 1}, feed, pick));
  }
  run.decode_ms = decode.milliseconds();
  return run;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Status CheckSame(const RunMeasure& first, const RunMeasure& other) {
  if (!first.finite || !other.finite) {
    return Error{ErrorCode::kInternal, "wrong output", "some logits are no finite numbers"};
  }
  if (first.ids != other.ids) {
    return Error{ErrorCode::kInternal, "wrong output",
                 "two runs with the same prompt gave different tokens"};
  }
  return {};
}

struct BenchFigures {
  double prefill_tps = 0;
  double decode_tps = 0;
  double ttft_ms = 0;
};

BenchFigures Medians(const BenchOptions& options, const std::vector<RunMeasure>& runs) {
  std::vector<double> prefill, decode, first;
  for (const RunMeasure& run : runs) {
    prefill.push_back(options.prompt_tokens / run.prefill_ms * 1000);
    decode.push_back(
        run.ids.size() < 2 ? 0 : static_cast<double>(run.ids.size() - 1) / run.decode_ms * 1000);
    first.push_back(run.prefill_ms);
  }
  return {Median(prefill), Median(decode), Median(first)};
}

Status PrintReport(const BenchOptions& options, const LoadedEngine& loaded,
                   const BenchFigures& figures, const PeakMemory& peak, size_t weights_bytes) {
  const engine::Engine& engine = *loaded.engine;
  if (options.output.json) {
    return PrintJson({{"prefill_tps", figures.prefill_tps},
                      {"decode_tps", figures.decode_tps},
                      {"ttft_ms", figures.ttft_ms},
                      {"load_ms", loaded.load_ms},
                      {"peak_rss_anon_bytes", peak.rss_anon_bytes()},
                      {"peak_pss_bytes", peak.pss_bytes()},
                      {"weights_bytes", weights_bytes},
                      {"isa", kernels::Active().isa},
                      {"threads", engine.num_threads()},
                      {"prompt_tokens", options.prompt_tokens},
                      {"completion_tokens", options.max_tokens},
                      {"repeats", options.repeats},
                      {"context", engine.context_length()},
                      {"memory", MemoryToJson(engine)}});
  }
  std::string text;
  text += "prefill     " + Format(figures.prefill_tps, 1) + " tokens/s (" +
          std::to_string(options.prompt_tokens) + " tokens)\n";
  text += "decode      " + Format(figures.decode_tps, 1) + " tokens/s (" +
          std::to_string(options.max_tokens) + " tokens)\n";
  text += "first token " + Format(figures.ttft_ms, 1) + " ms, load " + Format(loaded.load_ms, 0) +
          " ms\n";
  text += "memory      " + FormatSize(peak.rss_anon_bytes()) + " anonymous, " +
          FormatSize(peak.pss_bytes()) + " PSS, weights " + FormatSize(weights_bytes) + "\n";
  text += "kernels     " + std::string(kernels::Active().isa) + ", " +
          std::to_string(engine.num_threads()) + " threads, medians of " +
          std::to_string(options.repeats) + "\n";
  if (!Print(text)) {
    return Error{ErrorCode::kInternal, "standard output could not be written", ""};
  }
  return {};
}

}  // namespace

Result<int> Execute(const BenchOptions& options) {
  CatchInterrupts(OnRepeat::kEndProcess);
  PeakMemory peak;
  ModelFlags flags = options.model;
  if (flags.context == 0) flags.context = options.prompt_tokens + options.max_tokens - 1;
  TAEL_ASSIGN_OR_RETURN(const LoadedEngine loaded, LoadEngine(flags));
  engine::Engine& engine = *loaded.engine;
  const std::vector<TokenId> prompt = MakePrompt(engine.tokenizer(), options.prompt_tokens);

  Progress progress("measuring");
  TAEL_ASSIGN_OR_RETURN(const RunMeasure warm, RunOnce(engine, prompt, options.max_tokens));
  peak.Stop();
  std::vector<RunMeasure> runs;
  for (uint32_t i = 0; i < options.repeats; ++i) {
    progress.Show(i, options.repeats);
    TAEL_ASSIGN_OR_RETURN(RunMeasure run, RunOnce(engine, prompt, options.max_tokens));
    TAEL_RETURN_IF_ERROR(CheckSame(warm, run));
    peak.TakeSample();
    runs.push_back(std::move(run));
  }
  progress.Clear();
  TAEL_RETURN_IF_ERROR(
      PrintReport(options, loaded, Medians(options, runs), peak, engine.model().weights_bytes()));
  if (options.output.verbose) Note(MemoryLine(engine));
  return kExitOk;
}

}  // namespace tael::cli
