// `tael run`: one prompt, one answer.
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
#include "cli/sampling.h"
#include "cli/terminal.h"

namespace tael::cli {
namespace {

Error NoPrompt() {
  return Error{ErrorCode::kInvalidArgument, "no prompt tokens",
               "the prompt is empty; give text with -p, -f or on standard input"};
}

// The prompt of one user, in the form that the model was trained on.
Result<std::vector<TokenId>> EncodePrompt(const RunOptions& options, const engine::Engine& engine,
                                          std::string text) {
  const tokenizer::Tokenizer& tokenizer = engine.tokenizer();
  if (text.empty()) return NoPrompt();
  if (!options.raw && HasChatTemplate(engine)) {
    auto chat_template = LoadChatTemplate(engine);
    if (!chat_template) {
      Error error = std::move(chat_template).error();
      error.detail += "; --raw goes without the template";
      return error;
    }
    TAEL_ASSIGN_OR_RETURN(const auto chat,
                          (*chat_template)->Render({{"user", std::move(text)}}, true));
    return EncodeChat(tokenizer, chat);
  }
  if (!options.raw) Note("the model has no chat template: it continues the prompt as it is");
  std::vector<TokenId> ids = tokenizer.Encode(text, {.parse_control = options.raw});
  if (ids.empty()) return NoPrompt();
  AddBos(tokenizer, ids);
  return ids;
}

struct Prompt {
  std::string text;
  std::vector<TokenId> ids;  // instead of text
};

Result<Prompt> ReadPrompt(const RunOptions& options) {
  Prompt prompt;
  if (options.prompt_tokens) {
    TAEL_ASSIGN_OR_RETURN(prompt.ids, ParseIdArray(*options.prompt_tokens, "--prompt-tokens"));
    if (prompt.ids.empty()) return NoPrompt();
  } else {
    TAEL_ASSIGN_OR_RETURN(prompt.text, ReadText(options.prompt));
    if (prompt.text.empty()) return NoPrompt();
  }
  return prompt;
}

Result<engine::GenerateOptions> GenerateOptionsOf(const RunOptions& options) {
  engine::GenerateOptions generate = MakeGenerateOptions(options.sampling, options.max_tokens);
  TAEL_RETURN_IF_ERROR(sample::Validate(generate.sampler));
  generate.speculate = options.speculation.when;
  generate.logprobs = options.logprobs;
  if (options.force_tokens) {
    TAEL_ASSIGN_OR_RETURN(generate.force_tokens,
                          ParseIdArray(*options.force_tokens, "--force-tokens"));
    if (generate.force_tokens.empty()) {
      return Error{ErrorCode::kInvalidArgument, "--force-tokens", "the array is empty"};
    }
  }
  return generate;
}

Status PrintResult(const RunOptions& options, const LoadedEngine& loaded,
                   const engine::GenerateResult& result, uint64_t seed) {
  if (!options.output.json) return PrintText("\n");
  Json timings = TimingsToJson(result.timings);
  timings["load_ms"] = loaded.load_ms;
  Json object = {{"text", result.text},
                 {"tokens", IdsToJson(result.tokens)},
                 {"prompt_tokens", result.prompt_tokens},
                 {"truncated_tokens", result.truncated_tokens},
                 {"compressed_tokens", result.compressed_tokens},
                 {"completion_tokens", result.completion_tokens()},
                 {"finish_reason", ToString(result.finish_reason)},
                 {"timings", std::move(timings)},
                 {"memory", MemoryToJson(*loaded.engine)},
                 {"seed", seed}};
  AddPolicy(object, options.model.task, loaded.engine->plan());
  if (options.logprobs) object["logprobs"] = LogProbsToJson(result);
  return PrintJson(object);
}

void Summarise(const LoadedEngine& loaded, const engine::GenerateResult& result) {
  const engine::Timings& t = result.timings;
  Note(std::to_string(result.prompt_tokens) + " prompt tokens at " + Format(t.prefill_tps, 1) +
       "/s, " + std::to_string(result.completion_tokens()) + " answer tokens at " +
       Format(t.decode_tps, 1) + "/s, first after " + Format(t.ttft_ms, 0) + " ms, loaded in " +
       Format(loaded.load_ms, 0) + " ms; " + std::to_string(t.accepted_tokens) + " of " +
       std::to_string(t.draft_tokens) + " guessed tokens right; ended by " +
       std::string(ToString(result.finish_reason)));
  Note(loaded.engine->cpus().why);
  Note(MemoryLine(*loaded.engine));
}

}  // namespace

Result<int> Execute(const RunOptions& options) {
  CatchInterrupts(OnRepeat::kEndProcess);
  TAEL_ASSIGN_OR_RETURN(Prompt prompt, ReadPrompt(options));
  TAEL_ASSIGN_OR_RETURN(const engine::GenerateOptions generate, GenerateOptionsOf(options));
  engine::EngineOptions wanted;
  wanted.draft_tokens = options.speculation.max_draft;
  TAEL_ASSIGN_OR_RETURN(const LoadedEngine loaded, LoadEngine(options.model, wanted));
  engine::Engine& engine = *loaded.engine;
  if (prompt.ids.empty()) {
    TAEL_ASSIGN_OR_RETURN(prompt.ids, EncodePrompt(options, engine, std::move(prompt.text)));
  }
  engine::Session session = engine.NewSession();
  Progress progress("reading the prompt");
  const auto callbacks = ShowAnswer(progress, options.output);
  TAEL_ASSIGN_OR_RETURN(const auto result,
                        engine::Generate(session, prompt.ids, generate, callbacks));
  TAEL_RETURN_IF_ERROR(PrintResult(options, loaded, result, generate.sampler.seed));
  if (const std::string why = engine.weight_room().Why(); !why.empty()) Note(why);
  NoteTruncation(result, engine.plan());
  if (options.output.verbose) Summarise(loaded, result);
  return result.finish_reason == engine::FinishReason::kCancelled ? kExitInterrupted : kExitOk;
}

}  // namespace tael::cli
