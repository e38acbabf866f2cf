// `tael bench`: speed and memory of one model, with a check of what it computed.
//
// Memory is sampled during the warm-up run, which is not timed, and read once after each timed run.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cli/bench_run.h"
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

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

struct BenchFigures {
  double prefill_tps = 0;
  double decode_tps = 0;  // of all sessions together
  double ttft_ms = 0;
};

BenchFigures Medians(const BenchOptions& options, const std::vector<RunMeasure>& runs) {
  const auto per_second = [&options](uint32_t tokens, double milliseconds) {
    return tokens == 0 ? 0 : 1000.0 * options.sessions * tokens / milliseconds;
  };
  std::vector<double> prefill, decode, first;
  for (const RunMeasure& run : runs) {
    prefill.push_back(per_second(options.prompt_tokens, run.prefill_ms));
    decode.push_back(per_second(options.max_tokens - 1, run.decode_ms));
    first.push_back(run.ttft_ms);
  }
  return {Median(prefill), Median(decode), Median(first)};
}

std::string OfSessions(const BenchOptions& options) {
  return options.sessions == 1 ? ""
                               : " of each of " + std::to_string(options.sessions) + " sessions";
}

Status PrintReport(const BenchOptions& options, const LoadedEngine& loaded,
                   const BenchFigures& figures, const PeakMemory& peak, size_t weights_bytes) {
  const engine::Engine& engine = *loaded.engine;
  if (options.output.json) {
    Json json = {{"prefill_tps", figures.prefill_tps},
                 {"decode_tps", figures.decode_tps},
                 {"decode_tps_per_session", figures.decode_tps / options.sessions},
                 {"ttft_ms", figures.ttft_ms},
                 {"load_ms", loaded.load_ms},
                 {"peak_rss_anon_bytes", peak.rss_anon_bytes()},
                 {"peak_pss_bytes", peak.pss_bytes()},
                 {"weights_bytes", weights_bytes},
                 {"isa", kernels::Active().isa},
                 {"threads", engine.num_threads()},
                 {"sessions", options.sessions},
                 {"threads_why", engine.cpus().why},
                 {"prompt_tokens", options.prompt_tokens},
                 {"completion_tokens", options.max_tokens},
                 {"repeats", options.repeats},
                 {"context", engine.context_length()},
                 {"memory", MemoryToJson(engine)}};
    AddPolicy(json, options.model.task, engine.plan());
    return PrintJson(json);
  }
  std::string text;
  text += "prefill     " + Format(figures.prefill_tps, 1) + " tokens/s (" +
          std::to_string(options.prompt_tokens) + " tokens" + OfSessions(options) + ")\n";
  text += "decode      " + Format(figures.decode_tps, 1) + " tokens/s (" +
          std::to_string(options.max_tokens) + " tokens" + OfSessions(options) + ")\n";
  text += "first token " + Format(figures.ttft_ms, 1) + " ms, load " + Format(loaded.load_ms, 0) +
          " ms\n";
  text += "memory      " + FormatSize(peak.rss_anon_bytes()) + " anonymous, " +
          FormatSize(peak.pss_bytes()) + " PSS, weights " + FormatSize(weights_bytes) + "\n";
  text += "kernels     " + std::string(kernels::Active().isa) + ", " + engine.cpus().why +
          "; medians of " + std::to_string(options.repeats) + "\n";
  return PrintText(text);
}

}  // namespace

Result<int> Execute(const BenchOptions& options) {
  CatchInterrupts(OnRepeat::kEndProcess);
  PeakMemory peak;
  ModelFlags flags = options.model;
  if (flags.context == 0) flags.context = options.prompt_tokens + options.max_tokens - 1;
  engine::EngineOptions wanted;
  wanted.max_sessions = options.sessions;
  TAEL_ASSIGN_OR_RETURN(const LoadedEngine loaded, LoadEngine(flags, wanted));
  engine::Engine& engine = *loaded.engine;
  const BenchLoad load =
      MakeLoad(engine, options.sessions, options.prompt_tokens, options.max_tokens);

  Progress progress("measuring");
  TAEL_ASSIGN_OR_RETURN(const RunMeasure warm, RunOnce(engine, load));
  // Windows that grow depend on who else is there.
  const bool alike = engine.plan().window.start == 0;
  if (options.sessions > 1 && alike) TAEL_RETURN_IF_ERROR(CheckAlone(engine, load, warm));
  peak.Stop();
  std::vector<RunMeasure> runs;
  for (uint32_t i = 0; i < options.repeats; ++i) {
    progress.Show(i, options.repeats);
    TAEL_ASSIGN_OR_RETURN(RunMeasure run, RunOnce(engine, load));
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
