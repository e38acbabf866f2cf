// `tael eval`: what a model makes of a text, and what a window or a KV type changes of that.
//
// The text is tokenised once, whole, with BOS first where the file asks for it. Chunk k is the ids
// [k * ctx, (k + 1) * ctx), evaluated alone (its first id replaced by BOS, again where the file
// asks for it) and scored on the positions from ctx / 2 to ctx - 2, each predicting the next id.
// Ids that are given (--ids) are fed as they are. A last chunk that is not full is left out.
//
// With a window or a KV type of its own, the same ids go through a second engine that keeps all of
// the KV in f16, and the distance of the two is the measure: perplexity hides damage.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "cli/commands.h"
#include "cli/eval_probes.h"
#include "cli/eval_safety.h"
#include "cli/eval_score.h"
#include "cli/exit_code.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/kv_safety_file.h"
#include "cli/loading.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "engine/model_identity.h"

namespace tael::cli {
namespace {

constexpr uint32_t kDefaultContext = 512;
constexpr uint32_t kLogitRows = 16;

struct Input {
  std::string text;
  std::vector<TokenId> ids;  // instead of text
};

Result<Input> ReadInput(const EvalOptions& options) {
  Input input;
  if (options.ids_file) {
    if (options.needle) {
      return Error{ErrorCode::kInvalidArgument, "needles are hidden in text", "give one with -f"};
    }
    TAEL_ASSIGN_OR_RETURN(const std::string json, ReadFile(*options.ids_file));
    TAEL_ASSIGN_OR_RETURN(input.ids, ParseIdArray(json, *options.ids_file));
  } else if (options.text_file) {
    TAEL_ASSIGN_OR_RETURN(input.text, ReadFile(*options.text_file));
  } else {
    return Error{ErrorCode::kInvalidArgument, "nothing to evaluate",
                 "give a text with -f, or ids with --ids"};
  }
  return input;
}

struct Plan {
  uint32_t context = 0;
  uint32_t score_from = 0;  // position in a chunk
};

Result<Plan> MakePlan(const EvalOptions& options, const Input& input) {
  Plan plan;
  plan.context = options.model.context;
  if (plan.context == 0) {
    plan.context = options.ids_file ? static_cast<uint32_t>(input.ids.size()) : kDefaultContext;
  }
  plan.score_from = options.score_from.value_or(plan.context / 2);
  if (plan.context < 2 || plan.score_from > plan.context - 2) {
    return Error{ErrorCode::kInvalidArgument, "no position is scored",
                 "chunks of " + std::to_string(plan.context) + " tokens, scored from " +
                     std::to_string(plan.score_from) + "; the last one is the length minus 2"};
  }
  return plan;
}

Result<std::vector<TokenId>> EncodeInput(const EvalOptions& options, const Plan& plan,
                                         const engine::Engine& engine, const Input& input) {
  const tokenizer::Tokenizer& tokenizer = engine.tokenizer();
  std::vector<TokenId> ids = input.ids;
  if (!options.ids_file) {
    ids = tokenizer.Encode(input.text, {});
    AddBos(tokenizer, ids);
  }
  TAEL_RETURN_IF_ERROR(CheckIds(tokenizer, ids));
  if (options.max_tokens && *options.max_tokens < ids.size()) ids.resize(*options.max_tokens);
  if (ids.size() < plan.context) {
    return Error{ErrorCode::kInvalidArgument, "the text is shorter than one chunk",
                 std::to_string(ids.size()) + " tokens, --ctx is " + std::to_string(plan.context)};
  }
  return ids;
}

struct Engines {
  LoadedEngine own;
  LoadedEngine full;  // empty where there is nothing to compare

  engine::Engine& engine() const { return *own.engine; }
};

// The second engine shares the mapped weights with the first and gets what is left of the budget.
Result<LoadedEngine> LoadFull(const EvalOptions& options, engine::EngineOptions engine_options,
                              const engine::MemoryPlan& own) {
  ModelFlags flags = options.model;
  flags.window = {};
  flags.compress = {};
  flags.task = std::nullopt;
  flags.kv_type = kernels::KvType::kF16;
  flags.kv_type_k = flags.kv_type_v = std::nullopt;
  if (flags.budget_bytes != 0) {
    const uint64_t taken = own.needed_bytes - own.part(mem::MemoryTag::kWeights);
    flags.budget_bytes -= std::min(flags.budget_bytes - 1, taken);
  }
  auto loaded = LoadEngine(flags, std::move(engine_options));
  if (loaded || loaded.error().code != ErrorCode::kOutOfBudget) return loaded;
  Error error = std::move(loaded).error();
  error.detail = "to compare, the text is also run with all of its KV in f16: " + error.detail;
  return error;
}

Result<Engines> LoadEngines(const EvalOptions& options, const Plan& plan,
                            engine::EngineOptions engine_options = {}) {
  engine_options.context_length = plan.context;
  engine_options.logit_rows = kLogitRows;
  Engines engines;
  TAEL_ASSIGN_OR_RETURN(engines.own, LoadEngine(options.model, engine_options));
  const ModelFlags& flags = options.model;
  const bool has_types =
      flags.kv_type || flags.kv_type_k || flags.kv_type_v || options.kv_safety || flags.task;
  if (flags.window.tokens != 0 || has_types) {
    TAEL_ASSIGN_OR_RETURN(engines.full, LoadFull(options, engine_options, engines.engine().plan()));
  }
  return engines;
}

struct Report {
  Score score;
  uint64_t num_chunks = 0;
  std::map<uint32_t, double> needle;  // empty: not asked for
  std::optional<double> repetition;
  double seconds = 0;
};

Status RunChunks(const EvalOptions& options, const Plan& plan, const Engines& engines,
                 std::span<TokenId> ids, Report& report) {
  const tokenizer::Tokenizer& tokenizer = engines.engine().tokenizer();
  const bool with_bos = !options.ids_file && tokenizer.add_bos();
  report.num_chunks = ids.size() / plan.context;
  Progress progress("evaluating");
  for (uint64_t i = 0; i < report.num_chunks; ++i) {
    const auto chunk = ids.subspan(i * plan.context, plan.context);
    if (with_bos) chunk.front() = tokenizer.bos();
    TAEL_RETURN_IF_ERROR(ScoreChunk(engines.engine(), engines.full.engine.get(), chunk,
                                    plan.score_from, report.score));
    progress.Show(i + 1, report.num_chunks, ", perplexity " + Format(report.score.perplexity(), 3));
  }
  if (std::isfinite(report.score.perplexity())) return {};
  return Error{ErrorCode::kInternal, "the perplexity is no finite number", ""};
}

Status RunProbes(const EvalOptions& options, const Plan& plan, const Engines& engines,
                 const Input& input, std::span<const TokenId> ids, Report& report) {
  engine::Engine& engine = engines.engine();
  if (options.needle) {
    const uint32_t room = std::min(kNeedleAnswerTokens, plan.context);
    const NeedleOptions needle{.text = input.text,
                               .prompts = *options.needle,
                               .prompt_tokens = plan.context - room,
                               .seed = options.seed};
    TAEL_ASSIGN_OR_RETURN(report.needle, FindNeedles(engine, needle));
  }
  if (options.generate) {
    const auto prompt = ids.first(plan.context / 2);
    TAEL_ASSIGN_OR_RETURN(report.repetition,
                          MeasureRepetition(engine, prompt, *options.generate, options.seed));
  }
  return {};
}

// Before anything is scored: an answer that is cut would be measured over fewer tokens.
Status CheckGenerate(const EvalOptions& options, const Plan& plan, const engine::Engine& engine) {
  if (!options.generate) return {};
  const uint64_t fed = uint64_t{plan.context} / 2 + *options.generate - 1;
  if (fed <= engine.max_length()) return {};
  return Error{ErrorCode::kContextExceeded, "--generate does not fit the context",
               std::to_string(*options.generate) + " tokens behind half of it, the context has " +
                   std::to_string(engine.max_length()) + ": --ctx makes room, --window goes on"};
}

Json ToJson(const EvalOptions& options, const Plan& plan, const Engines& engines,
            const Report& report) {
  const Score& score = report.score;
  Json json = {
      {"ppl", score.perplexity()},    {"tokens", report.num_chunks * plan.context},
      {"scored_tokens", score.count}, {"nll_mean", score.nll / static_cast<double>(score.count)},
      {"ctx", plan.context},          {"score_from", plan.score_from},
      {"chunks", report.num_chunks},  {"kv_bytes_peak", score.kv_bytes_peak}};
  if (!score.kl.empty()) {
    json["kl_mean"] = score.MeanKl();
    json["kl_median"] = score.KlQuantile(0.5);
    json["kl_p99"] = score.KlQuantile(0.99);
    json["top1_agreement"] = score.top1_agreement();
    json["full_ppl"] = score.full_perplexity();
    json["full_kv_bytes_peak"] = score.full_kv_bytes_peak;
  }
  if (!report.needle.empty()) {
    Json rates = Json::object();
    for (const auto& [depth, rate] : report.needle) rates[std::to_string(depth)] = rate;
    json["needle"] = std::move(rates);
  }
  if (report.repetition) json["repetition"] = *report.repetition;
  json["seconds"] = report.seconds;
  AddPolicy(json, options.model.task, engines.engine().plan());
  return json;
}

std::string ToText(const Plan& plan, const Report& report) {
  const Score& score = report.score;
  std::string text =
      "perplexity " + Format(score.perplexity(), 4) + " over " + std::to_string(score.count) +
      " of " + std::to_string(report.num_chunks * plan.context) + " tokens (" +
      std::to_string(report.num_chunks) + " chunks of " + std::to_string(plan.context) + ")\n";
  if (!score.kl.empty()) {
    text += "against all KV in f16: perplexity " + Format(score.full_perplexity(), 4) +
            ", KL mean " + Format(score.MeanKl(), 5) + " median " +
            Format(score.KlQuantile(0.5), 5) + " p99 " + Format(score.KlQuantile(0.99), 4) +
            ", same top token " + Format(100 * score.top1_agreement(), 1) + " %, KV " +
            FormatSize(score.kv_bytes_peak) + " of " + FormatSize(score.full_kv_bytes_peak) + "\n";
  }
  for (const auto& [depth, rate] : report.needle) {
    text += "needle at " + std::to_string(depth) + " %: found " + Format(100 * rate, 0) + " %\n";
  }
  if (report.repetition) text += "repetition " + Format(*report.repetition, 4) + "\n";
  return text;
}

// The text in these types (none: those of --kv-type auto, without any table) beside f16.
Result<TypeScore> ScoreOneType(EvalOptions options, const Plan& plan, const Input& input,
                               std::optional<kernels::KvTypes> types) {
  // Activations of 8 bits have a noise that is larger than what q8 costs.
  options.model.compute = exec::Compute::kReference;
  options.model.window = {};
  options.model.task = std::nullopt;
  options.model.kv_type = types;
  options.model.kv_auto = !types;
  options.model.kv_type_k = options.model.kv_type_v = std::nullopt;
  engine::EngineOptions engine_options;
  engine_options.auto_on_reference = !types;
  TAEL_ASSIGN_OR_RETURN(const Engines engines,
                        LoadEngines(options, plan, std::move(engine_options)));
  TAEL_ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                        EncodeInput(options, plan, engines.engine(), input));
  Report report;
  TAEL_RETURN_IF_ERROR(RunChunks(options, plan, engines, ids, report));
  return TypeScore{.score = std::move(report.score),
                   .bytes_per_token = engines.engine().plan().geometry.BytesPerToken(),
                   .full_bytes_per_token = engines.full.engine->plan().geometry.BytesPerToken(),
                   .model = engine::IdentityOf(engines.engine().model())};
}

Result<int> RunKvSafety(const EvalOptions& options, const Plan& plan, const Input& input) {
  const Stopwatch watch;
  TAEL_ASSIGN_OR_RETURN(Json table, MeasureKvSafety([&](std::optional<kernels::KvTypes> types) {
                          return ScoreOneType(options, plan, input, types);
                        }));
  TAEL_ASSIGN_OR_RETURN(const std::string path, WriteKvSafety(options.model.path, table));
  if (!options.output.json) {
    TAEL_RETURN_IF_ERROR(PrintText(KvSafetyText(table) + "written to " + path + "\n"));
    return kExitOk;
  }
  table["file"] = path;
  TAEL_RETURN_IF_ERROR(PrintJson({{"kv_safety", std::move(table)},
                                  {"ctx", plan.context},
                                  {"seconds", watch.milliseconds() / 1000}}));
  return kExitOk;
}

}  // namespace

Result<int> Execute(const EvalOptions& options) {
  CatchInterrupts(OnRepeat::kEndProcess);
  TAEL_ASSIGN_OR_RETURN(const Input input, ReadInput(options));
  TAEL_ASSIGN_OR_RETURN(const Plan plan, MakePlan(options, input));
  if (options.kv_safety) return RunKvSafety(options, plan, input);
  TAEL_ASSIGN_OR_RETURN(const Engines engines, LoadEngines(options, plan));
  TAEL_RETURN_IF_ERROR(CheckGenerate(options, plan, engines.engine()));
  TAEL_ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                        EncodeInput(options, plan, engines.engine(), input));
  const Stopwatch watch;
  Report report;
  TAEL_RETURN_IF_ERROR(RunChunks(options, plan, engines, ids, report));
  TAEL_RETURN_IF_ERROR(RunProbes(options, plan, engines, input, ids, report));
  report.seconds = watch.milliseconds() / 1000;
  TAEL_RETURN_IF_ERROR(options.output.json ? PrintJson(ToJson(options, plan, engines, report))
                                           : PrintText(ToText(plan, report)));
  if (options.output.verbose) {
    Note(engines.engine().cpus().why);
    Note(MemoryLine(engines.engine()));
  }
  return kExitOk;
}

}  // namespace tael::cli
