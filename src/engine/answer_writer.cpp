#include "engine/answer_writer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/units.h"

namespace tael::engine {
namespace {

using Clock = AnswerWriter::Clock;

double PerSecond(size_t count, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(count) / milliseconds * 1000 : 0;
}

uint32_t MaxTokens(const GenerateOptions& options) {
  return options.force_tokens.empty() ? options.max_tokens
                                      : static_cast<uint32_t>(options.force_tokens.size());
}

// The last token is never fed.
size_t FedTokens(size_t prompt_tokens, size_t answer_tokens) {
  return prompt_tokens + std::max<size_t>(1, answer_tokens) - 1;
}

uint32_t MostHeld(const Engine& engine, size_t prompt_tokens, uint32_t max_tokens) {
  return static_cast<uint32_t>(
      std::min<size_t>(FedTokens(prompt_tokens, max_tokens), engine.max_length()));
}

}  // namespace

double Milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

Status CheckAnswer(const Engine& engine, std::span<const TokenId> prompt,
                   const GenerateOptions& options) {
  const uint32_t context = engine.max_length();
  if (prompt.size() > context) {
    return Error{ErrorCode::kContextExceeded, "the prompt is longer than the context",
                 std::to_string(prompt.size()) + " tokens, the context has " +
                     std::to_string(context) +
                     ": shorten it, choose a larger context (--ctx) or a window (--window)"};
  }
  TAEL_RETURN_IF_ERROR(CheckTokens(engine, prompt));
  if (std::ranges::any_of(options.stop, [](const std::string& stop) { return stop.empty(); })) {
    return Error{ErrorCode::kInvalidArgument, "a stop string is empty", ""};
  }
  TAEL_RETURN_IF_ERROR(sample::Validate(options.sampler));
  for (TokenId id : options.force_tokens) {
    if (engine.tokenizer().IsValid(id)) continue;
    return Error{ErrorCode::kInvalidArgument, "token id outside the vocabulary",
                 std::to_string(ToInt(id))};
  }
  const size_t total = FedTokens(prompt.size(), options.force_tokens.size());
  if (total <= context) return {};
  return Error{ErrorCode::kContextExceeded, "prompt and forced tokens are longer than the context",
               std::to_string(total) + " tokens, the context has " + std::to_string(context)};
}

Result<std::unique_ptr<AnswerWriter>> AnswerWriter::Create(Engine& engine,
                                                           std::span<const TokenId> prompt,
                                                           const GenerateOptions& options,
                                                           uint64_t seed, Clock::time_point start,
                                                           AnswerListener& listener) {
  sample::SamplerOptions sampling = options.sampler;
  sampling.seed = seed;
  const size_t vocab_size = engine.model().description().vocab_size;
  const size_t scratch = sample::Sampler::ScratchBytes(sampling, vocab_size);
  auto reserved = engine.budget().ReserveHeap(mem::MemoryTag::kActivations, scratch);
  if (!reserved) {
    return Error{ErrorCode::kOutOfBudget, "sampling from the whole vocabulary does not fit",
                 "it needs " + FormatSize(scratch) +
                     "; set a top-k, shorten the context or raise the budget"};
  }
  TAEL_ASSIGN_OR_RETURN(auto sampler, sample::Sampler::Create(sampling, vocab_size));
  std::unique_ptr<AnswerWriter> writer(
      new AnswerWriter(engine, prompt, options, start, listener, std::move(sampler)));
  writer->scratch_ = *std::move(reserved);
  writer->MakeSpeculation();
  return writer;
}

AnswerWriter::AnswerWriter(Engine& engine, std::span<const TokenId> prompt,
                           const GenerateOptions& options, Clock::time_point start,
                           AnswerListener& listener, sample::Sampler sampler)
    : engine_(engine),
      options_(options),
      listener_(listener),
      tokenizer_(engine.tokenizer()),
      sampler_(std::move(sampler)),
      detokenizer_(tokenizer_),
      filter_(options.force_tokens.empty() ? options.stop : std::vector<std::string>{}),
      num_prompt_(static_cast<uint32_t>(prompt.size())),
      max_tokens_(MaxTokens(options)),
      most_held_(MostHeld(engine, prompt.size(), max_tokens_)),
      start_(start),
      last_token_(start) {
  TAEL_CHECK(!prompt.empty());
  history_.reserve(size_t{planned_tokens()} + 1);  // decoding allocates nothing
  history_.assign(prompt.begin(), prompt.end());
}

uint32_t AnswerWriter::planned_tokens() const {
  return std::min(most_held_, num_prompt_ + engine_.context_length());
}

// None where there is nothing to guess, or no memory for it: an answer does not need it.
void AnswerWriter::MakeSpeculation() {
  const uint32_t max_draft = engine_.max_draft_tokens();
  if (options_.speculate == Speculate::kOff || forced() || max_draft == 0) return;
  const size_t max_text = size_t{planned_tokens()} + 1;
  const size_t bytes = PromptLookup::Bytes(max_text);
  auto reserved = engine_.budget().ReserveHeap(mem::MemoryTag::kActivations, bytes);
  if (!reserved) return;
  lookup_ = *std::move(reserved);
  speculation_.emplace(options_.speculate, max_text, max_draft);
}

AnswerWriter::Feed AnswerWriter::Next(uint32_t held, uint32_t most, bool draft) {
  TAEL_CHECK(!ended() && held < history_.size() && most > 0);
  if (!first_pass_) first_pass_ = Clock::now();
  right_ = true;
  num_drafted_ = 0;
  const std::span<const TokenId> rest = std::span(history_).subspan(held);
  fed_ = rest.first(std::min<size_t>(rest.size(), most));
  keep_ = static_cast<uint32_t>(fed_.size());
  if (fed_.size() < rest.size()) return {fed_, 0, nullptr};
  // The index of what was said is full.
  if (history_.size() > size_t{planned_tokens()} + 1) {
    speculation_.reset();
    lookup_ = {};
  }
  if (fed_.size() == 1 && draft && speculation_ && num_tokens_ > 0) {
    pass_[0] = rest[0];
    // A draft of n tokens gives n + 1 at most, and its own have to fit the context.
    const size_t room = std::min(max_tokens_ - num_tokens_, engine_.max_length() - held);
    num_drafted_ = Draft(std::min<size_t>(room, most) - 1);
    fed_ = std::span(pass_).first(1 + num_drafted_);
  }
  return {fed_, 1 + num_drafted_, &keep_};
}

uint32_t AnswerWriter::Draft(size_t most) {
  speculation_->Update(history_);
  const std::span<const TokenId> draft = speculation_->Draft(history_, most);
  std::ranges::copy(draft, pass_.begin() + 1);
  return static_cast<uint32_t>(draft.size());
}

// Checks a draft while it picks: a guess that is what would have been picked anyway is accepted,
// and the first that is not ends the draft.
void AnswerWriter::OnLogits(size_t index, std::span<const float> logits) {
  if (!right_) return;
  Pick(logits);
  keep_ = static_cast<uint32_t>(index) + 1;
  const bool guessed = keep_ < fed_.size() && next_ == fed_[keep_] && !end_of_generation_;
  accepted_tokens_ += guessed;
  right_ = guessed && Accept();
}

void AnswerWriter::EndPass(std::optional<double> milliseconds) {
  if (!is_picked_ && !ended()) return;  // a part of the prompt
  const bool decodes = first_token_ && fed_.size() == 1 + size_t{num_drafted_};
  if (decodes && speculation_ && milliseconds) speculation_->Measured(fed_.size(), *milliseconds);
  draft_tokens_ += num_drafted_;
  if (!first_token_) first_token_ = last_token_ = Clock::now();
  if (is_picked_) Accept();
}

void AnswerWriter::Pick(std::span<const float> logits) {
  is_picked_ = true;
  if (num_tokens_ >= max_tokens_) return;
  next_ = forced() ? options_.force_tokens[num_tokens_] : sampler_.Sample(logits, history_);
  end_of_generation_ = !forced() && !options_.ignore_eos && tokenizer_.IsEndOfGeneration(next_);
  if (options_.logprobs && !end_of_generation_) {
    logprobs_ = sample::LogSoftmaxTop(logits, next_, *options_.logprobs);
  }
}

// Takes the token that was picked into the answer. False when the answer is complete.
bool AnswerWriter::Accept() {
  is_picked_ = false;
  if (max_tokens_ == 0) return End(FinishReason::kLength);
  if (end_of_generation_) return End(FinishReason::kStop);
  last_token_ = Clock::now();
  ++num_tokens_;
  history_.push_back(next_);
  listener_.OnToken(next_, logprobs_ ? &*logprobs_ : nullptr);
  Show(filter_.Push(detokenizer_.Push(next_)));
  if (filter_.stopped()) return End(FinishReason::kStop);
  if (num_tokens_ == max_tokens_) return End(FinishReason::kLength);
  // All but the token picked last are held, or will be when this pass is over.
  if (history_.size() > engine_.max_length()) return End(FinishReason::kLength);
  return true;
}

bool AnswerWriter::End(FinishReason reason) {
  finish_reason_ = reason;
  Show(filter_.Push(detokenizer_.Finish()));
  Show(filter_.Finish());
  return false;
}

void AnswerWriter::Finish(FinishReason reason) {
  TAEL_CHECK(!ended());
  End(reason);
}

void AnswerWriter::Show(std::string_view text) {
  if (!text.empty()) listener_.OnText(text);
}

Timings AnswerWriter::MakeTimings(uint32_t cached_tokens) const {
  Timings t{.draft_tokens = draft_tokens_, .accepted_tokens = accepted_tokens_};
  if (!first_token_) return t;
  t.prefill_ms = Milliseconds(*first_token_ - *first_pass_);
  t.prefill_tps = PerSecond(num_prompt_ - std::min(num_prompt_, cached_tokens), t.prefill_ms);
  if (num_tokens_ == 0) return t;
  t.ttft_ms = Milliseconds(*first_token_ - start_);
  t.decode_ms = Milliseconds(last_token_ - *first_token_);
  if (num_tokens_ > 1) t.decode_tps = PerSecond(num_tokens_ - 1, t.decode_ms);
  return t;
}

}  // namespace tael::engine
