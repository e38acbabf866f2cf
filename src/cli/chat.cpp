// `tael chat`: a conversation. The KV of earlier turns stays: only what is new is computed, as long
// as the template renders earlier turns as it did before.
//
// Ctrl-C stops the answer; at the prompt it ends the program. Standard input may be a file or a
// pipe: each line is a turn. With --json the turns come out as one object at the end.
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/interrupt.h"
#include "cli/loading.h"
#include "cli/prompt.h"
#include "cli/report.h"
#include "cli/sampling.h"
#include "cli/terminal.h"

namespace tael::cli {
namespace {

constexpr const char* kHelp =
    "/mem     what the memory is used for\n"
    "/reset   forget the conversation\n"
    "/help    this list\n"
    "/quit    leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer; at the prompt it leaves.\n";

// A turn that is rendered anew may end a little earlier than it did: less is no break.
constexpr uint32_t kTolerance = 16;

class Conversation {
 public:
  Conversation(const ChatOptions& options, engine::Engine& engine,
               std::unique_ptr<text::ChatTemplate> chat_template, engine::GenerateOptions generate)
      : options_(options),
        engine_(engine),
        template_(std::move(chat_template)),
        generate_(std::move(generate)),
        session_(engine.NewSession()) {
    Reset();
  }

  void Reset() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({"system", options_.system});
    session_.Truncate(0);
    held_.clear();
    rendered_.clear();
  }

  // One turn. After a failure the conversation is as it was before.
  Result<engine::GenerateResult> Answer(std::string text);

  const Json& turns() const { return turns_; }

 private:
  Result<std::vector<TokenId>> Encode();
  void NoteReuse(uint32_t before, uint32_t kept);

  std::vector<TokenId> EncodeWindowed(const text::RenderedChat& chat) const;

  const ChatOptions& options_;
  engine::Engine& engine_;
  std::unique_ptr<text::ChatTemplate> template_;
  engine::GenerateOptions generate_;
  engine::Session session_;
  std::vector<TokenId> held_;  // the session holds the first session_.length() of these
  std::string rendered_;       // what they stand for: the last prompt, and the answer to it
  std::string rendering_;      // of the prompt that is being answered
  std::vector<text::ChatMessage> messages_;
  Json turns_ = Json::array();
};

Result<std::vector<TokenId>> Conversation::Encode() {
  TAEL_ASSIGN_OR_RETURN(auto chat, template_->Render(messages_, true));
  std::vector<TokenId> ids =
      engine_.plan().is_endless() ? EncodeWindowed(chat) : EncodeChat(engine_.tokenizer(), chat);
  if (ids.size() >= engine_.max_length()) {
    return Error{ErrorCode::kContextExceeded, "the conversation does not fit the context any more",
                 std::to_string(ids.size()) + " tokens with this turn, the context has " +
                     std::to_string(engine_.context_length()) +
                     "; /reset starts over, --ctx makes room"};
  }
  rendering_ = std::move(chat.text);
  return ids;
}

// A window cannot go back to where an answer's text would be cut into other tokens than those that
// the model said: the conversation would be computed from its start, and it has no end. So what is
// held stays as it is, and only what the template puts behind it becomes tokens.
std::vector<TokenId> Conversation::EncodeWindowed(const text::RenderedChat& chat) const {
  const bool goes_on = !rendered_.empty() && chat.text.starts_with(rendered_);
  if (!goes_on || !generate_.stop.empty()) return EncodeChat(engine_.tokenizer(), chat);
  std::vector<size_t> breaks;
  for (const size_t at : chat.breaks) {
    if (at > rendered_.size()) breaks.push_back(at - rendered_.size());
  }
  std::vector<TokenId> ids = held_;
  const std::string_view rest = std::string_view(chat.text).substr(rendered_.size());
  const auto added = engine_.tokenizer().Encode(rest, {.parse_control = true, .breaks = breaks});
  ids.insert(ids.end(), added.begin(), added.end());
  return ids;
}

void Conversation::NoteReuse(uint32_t before, uint32_t kept) {
  if (!options_.output.verbose || kept + kTolerance >= before) return;
  Note("template_prefix_break: the template renders earlier turns differently now; " +
       std::to_string(before - kept) + " of " + std::to_string(before) +
       " tokens are computed again");
}

Result<engine::GenerateResult> Conversation::Answer(std::string text) {
  messages_.push_back({"user", text});
  auto ids = Encode();
  if (!ids) {
    messages_.pop_back();
    return std::move(ids).error();
  }
  const uint32_t before = session_.length();
  const uint32_t kept = engine::KeepCommonPrefix(session_, held_, *ids);
  NoteReuse(before, kept);
  if (kept == 0 && engine_.plan().is_endless()) {
    session_.PinFirst(text::CountSystemTokens(engine_.tokenizer(), *template_, messages_, *ids));
  }

  Progress progress("reading");
  const auto callbacks = ShowAnswer(progress, options_.output);
  auto result = engine::Generate(session_, *ids, generate_, callbacks);
  held_ = *std::move(ids);
  if (!result) {
    messages_.pop_back();
    rendered_.clear();
    return result;
  }
  held_.insert(held_.end(), result->tokens.begin(), result->tokens.end());
  rendered_ = std::move(rendering_) + result->text;
  if (result->text.empty() && result->finish_reason == engine::FinishReason::kCancelled) {
    messages_.pop_back();  // stopped before the first word: as if it had not been asked
  } else {
    messages_.push_back({"assistant", result->text});
  }
  turns_.push_back({{"user", std::move(text)},
                    {"text", result->text},
                    {"prompt_tokens", result->prompt_tokens},
                    {"cached_tokens", result->cached_tokens},
                    {"truncated_tokens", result->truncated_tokens},
                    {"compressed_tokens", result->compressed_tokens},
                    {"completion_tokens", result->completion_tokens()},
                    {"finish_reason", ToString(result->finish_reason)},
                    {"timings", TimingsToJson(result->timings)}});
  return result;
}

void ExplainEnd(const engine::GenerateResult& result, const engine::Engine& engine) {
  switch (result.finish_reason) {
    case engine::FinishReason::kCancelled:
      return Note("stopped");
    case engine::FinishReason::kMemory:
      return Note("no memory is left for a longer answer; /reset starts over, --budget makes room");
    case engine::FinishReason::kLength:
      if (result.prompt_tokens + result.completion_tokens() > engine.max_length()) {
        Note("the context of " + std::to_string(engine.context_length()) +
             " tokens is full; /reset starts over, --ctx makes room");
      }
      return;
    case engine::FinishReason::kStop:
      return;
  }
}

enum class Next { kGoOn, kLeave };

Next RunSlashCommand(const std::string& line, const engine::Engine& engine,
                     Conversation& conversation) {
  if (line == "/quit" || line == "/exit") return Next::kLeave;
  if (line == "/mem") {
    Print(MemoryTable(engine));
  } else if (line == "/reset") {
    conversation.Reset();
    Note("the conversation starts over");
  } else if (line == "/help") {
    Print(kHelp);
  } else {
    Note("no such command: " + line + " (/help lists them)");
  }
  return Next::kGoOn;
}

// Fails only for what ends the conversation.
Status RunTurn(const ChatOptions& options, const engine::Engine& engine, Conversation& conversation,
               std::string line) {
  const auto result = conversation.Answer(std::move(line));
  if (!result) {
    // The way out is in the message; the conversation goes on.
    if (result.error().code != ErrorCode::kContextExceeded) return result.error();
    Note(result.error().Message());
    return {};
  }
  if (!options.output.json) Print("\n");
  ExplainEnd(*result, engine);
  if (options.output.verbose) {
    Note(engine.cpus().why);
    Note(MemoryLine(engine));
  }
  ClearInterrupt();
  return {};
}

Result<int> Loop(const ChatOptions& options, const engine::Engine& engine,
                 Conversation& conversation) {
  const bool interactive = isatty(STDIN_FILENO) != 0 && !options.output.json;
  LineReader lines;
  std::string line;
  for (;;) {
    if (interactive) Print("> ");
    switch (lines.Read(line)) {
      case LineReader::Outcome::kEnd:
        if (interactive) Print("\n");
        return kExitOk;
      case LineReader::Outcome::kInterrupted:
        if (interactive) Print("\n");
        return kExitInterrupted;
      case LineReader::Outcome::kLine:
        break;
    }
    if (line.empty()) continue;
    if (line.front() == '/') {
      if (RunSlashCommand(line, engine, conversation) == Next::kLeave) return kExitOk;
      continue;
    }
    TAEL_RETURN_IF_ERROR(RunTurn(options, engine, conversation, line));
  }
}

}  // namespace

Result<int> Execute(const ChatOptions& options) {
  CatchInterrupts(OnRepeat::kCountAgain);
  engine::GenerateOptions generate = MakeGenerateOptions(options.sampling, 0);
  TAEL_RETURN_IF_ERROR(sample::Validate(generate.sampler));
  generate.speculate = options.speculation.when;
  engine::EngineOptions wanted;
  wanted.draft_tokens = options.speculation.max_draft;
  TAEL_ASSIGN_OR_RETURN(const LoadedEngine loaded, LoadEngine(options.model, wanted));
  engine::Engine& engine = *loaded.engine;
  // Without a window the context ends an answer sooner.
  generate.max_tokens = options.max_tokens.value_or(engine.context_length());
  TAEL_ASSIGN_OR_RETURN(auto chat_template, LoadChatTemplate(engine));
  if (!HasChatTemplate(engine)) {
    Note("the model has no chat template: turns are written as \"user:\" and \"assistant:\"");
    generate.stop.push_back(text::kPlainStop);
  }
  Conversation conversation(options, engine, std::move(chat_template), std::move(generate));
  TAEL_ASSIGN_OR_RETURN(const int code, Loop(options, engine, conversation));
  if (options.output.json) {
    Json object = {{"turns", conversation.turns()}, {"memory", MemoryToJson(engine)}};
    AddPolicy(object, options.model.task, engine.plan());
    TAEL_RETURN_IF_ERROR(PrintJson(object));
  }
  return code;
}

}  // namespace tael::cli
