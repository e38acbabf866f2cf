// `tael eval`: perplexity.
//
// The text is tokenised once, whole, with BOS first where the file asks for it. Chunk k is the ids
// [k * ctx, (k + 1) * ctx), evaluated alone (its first id replaced by BOS, again where the file
// asks for it) and scored on the positions from ctx / 2 to ctx - 2, each predicting the next id.
// Ids that are given (--ids) are fed as they are. A last chunk that is not full is left out.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/input.h"
#include "cli/interrupt.h"
#include "cli/loading.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/terminal.h"
#include "sample/logprobs.h"

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

struct Score {
  double nll = 0;  // sum of -ln p
  uint64_t count = 0;
  uint64_t kv_bytes_peak = 0;
  double perplexity() const { return std::exp(nll / static_cast<double>(count)); }
};

Status ScoreChunk(engine::Engine& engine, std::span<const TokenId> ids, uint32_t score_from,
                  Score& score) {
  engine::Session session = engine.NewSession();
  const auto fed = ids.first(ids.size() - 1);  // the last id is only predicted
  const engine::FeedOptions feed{.num_logits = static_cast<uint32_t>(fed.size() - score_from),
                                 .cancel = &Interrupted()};
  const Status status = session.Feed(fed, feed, [&](size_t position, std::span<float> logits) {
    score.nll -= static_cast<double>(sample::LogSoftmax(logits, ids[position + 1]));
    ++score.count;
  });
  score.kv_bytes_peak = std::max(score.kv_bytes_peak, session.sequence().bytes_in_use());
  return status;
}

Result<std::vector<TokenId>> EncodeInput(const EvalOptions& options, const Plan& plan,
                                         const engine::Engine& engine, Input input) {
  const tokenizer::Tokenizer& tokenizer = engine.tokenizer();
  std::vector<TokenId> ids = std::move(input.ids);
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

Status PrintReport(const EvalOptions& options, const Plan& plan, const Score& score,
                   uint64_t num_chunks, double seconds) {
  const uint64_t tokens = num_chunks * plan.context;
  if (options.output.json) {
    return PrintJson({{"ppl", score.perplexity()},
                      {"tokens", tokens},
                      {"scored_tokens", score.count},
                      {"nll_mean", score.nll / static_cast<double>(score.count)},
                      {"ctx", plan.context},
                      {"score_from", plan.score_from},
                      {"chunks", num_chunks},
                      {"kv_bytes_peak", score.kv_bytes_peak},
                      {"seconds", seconds}});
  }
  const std::string text = "perplexity " + Format(score.perplexity(), 4) + " over " +
                           std::to_string(score.count) + " of " + std::to_string(tokens) +
                           " tokens (" + std::to_string(num_chunks) + " chunks of " +
                           std::to_string(plan.context) + ")\n";
  if (!Print(text)) {
    return Error{ErrorCode::kInternal, "standard output could not be written", ""};
  }
  return {};
}

}  // namespace

Result<int> Execute(const EvalOptions& options) {
  CatchInterrupts(OnRepeat::kEndProcess);
  TAEL_ASSIGN_OR_RETURN(Input input, ReadInput(options));
  TAEL_ASSIGN_OR_RETURN(const Plan plan, MakePlan(options, input));
  engine::EngineOptions engine_options;
  engine_options.context_length = plan.context;
  engine_options.logit_rows = kLogitRows;
  TAEL_ASSIGN_OR_RETURN(const LoadedEngine loaded,
                        LoadEngine(options.model, std::move(engine_options)));
  engine::Engine& engine = *loaded.engine;
  TAEL_ASSIGN_OR_RETURN(std::vector<TokenId> ids,
                        EncodeInput(options, plan, engine, std::move(input)));

  const Stopwatch watch;
  const bool with_bos = !options.ids_file && engine.tokenizer().add_bos();
  const uint64_t num_chunks = ids.size() / plan.context;
  Progress progress("evaluating");
  Score score;
  for (uint64_t i = 0; i < num_chunks; ++i) {
    const auto chunk = std::span(ids).subspan(i * plan.context, plan.context);
    if (with_bos) chunk.front() = engine.tokenizer().bos();
    TAEL_RETURN_IF_ERROR(ScoreChunk(engine, chunk, plan.score_from, score));
    progress.Show(i + 1, num_chunks, ", perplexity " + Format(score.perplexity(), 3));
  }
  progress.Clear();
  if (!std::isfinite(score.perplexity())) {
    return Error{ErrorCode::kInternal, "the perplexity is no finite number", ""};
  }
  TAEL_RETURN_IF_ERROR(PrintReport(options, plan, score, num_chunks, watch.milliseconds() / 1000));
  if (options.output.verbose) {
    Note(engine.cpus().why);
    Note(MemoryLine(engine));
  }
  return kExitOk;
}

}  // namespace tael::cli
