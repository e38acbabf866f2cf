#include "engine/generation.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/units.h"
#include "engine/batch.h"
#include "engine/stop_filter.h"

namespace tael::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Smaller allocations are part of what the ledger calls runtime.
constexpr size_t kLedgerThreshold = 64 * 1024;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double PerSecond(size_t count, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(count) / milliseconds * 1000 : 0;
}

Status CheckPrompt(const Session& session, std::span<const TokenId> prompt) {
  if (prompt.empty()) {
    return Error{ErrorCode::kInvalidArgument, "no prompt tokens", "give at least one token"};
  }
  const uint32_t context = session.engine().context_length();
  if (prompt.size() > context) {
    return Error{ErrorCode::kContextExceeded, "the prompt is longer than the context",
                 std::to_string(prompt.size()) + " tokens, the context has " +
                     std::to_string(context) + ": shorten it or choose a larger context (--ctx)"};
  }
  if (prompt.size() <= session.length()) {
    return Error{ErrorCode::kInvalidArgument, "the prompt has no tokens that are new",
                 "the session holds " + std::to_string(session.length()) + ", the prompt has " +
                     std::to_string(prompt.size())};
  }
  return {};
}

Status CheckOptions(const Session& session, std::span<const TokenId> prompt,
                    const GenerateOptions& options) {
  if (std::any_of(options.stop.begin(), options.stop.end(),
                  [](const std::string& stop) { return stop.empty(); })) {
    return Error{ErrorCode::kInvalidArgument, "a stop string is empty", ""};
  }
  for (TokenId id : options.force_tokens) {
    if (!session.engine().tokenizer().IsValid(id)) {
      return Error{ErrorCode::kInvalidArgument, "token id outside the vocabulary",
                   std::to_string(ToInt(id))};
    }
  }
  // The last token is never fed.
  const size_t total = prompt.size() + std::max<size_t>(1, options.force_tokens.size()) - 1;
  if (total > session.engine().context_length()) {
    return Error{ErrorCode::kContextExceeded,
                 "prompt and forced tokens are longer than the context",
                 std::to_string(total) + " tokens, the context has " +
                     std::to_string(session.engine().context_length())};
  }
  return {};
}

// Tokens of prompt and answer at most.
size_t MostTokens(const Session& session, std::span<const TokenId> prompt,
                  const GenerateOptions& options) {
  const size_t answer = std::max<size_t>(options.max_tokens, options.force_tokens.size());
  return prompt.size() + std::min<size_t>(session.remaining(), answer) + 1;
}

// Nothing where there is nothing to guess, or no memory for it: an answer does not need it.
std::optional<Speculation> MakeSpeculation(const Session& session, std::span<const TokenId> prompt,
                                           const GenerateOptions& options,
                                           mem::Reservation& reservation) {
  const uint32_t max_draft = session.engine().max_draft_tokens();
  const bool off = options.speculate == Speculate::kOff || !options.force_tokens.empty();
  if (off || max_draft == 0) return std::nullopt;
  const size_t max_tokens = MostTokens(session, prompt, options);
  const size_t bytes = PromptLookup::Bytes(max_tokens);
  if (bytes > kLedgerThreshold) {
    auto reserved = session.engine().budget().Reserve(mem::MemoryTag::kActivations, bytes);
    if (!reserved) return std::nullopt;
    reservation = *std::move(reserved);
    reservation.SetUsed(bytes);
  }
  return Speculation(options.speculate, max_tokens, max_draft);
}

class Generation {
 public:
  Generation(Session& session, const GenerateOptions& options, const GenerateCallbacks& callbacks,
             sample::Sampler sampler, std::optional<Speculation> speculation)
      : session_(session),
        options_(options),
        callbacks_(callbacks),
        tokenizer_(session.engine().tokenizer()),
        sampler_(std::move(sampler)),
        speculation_(std::move(speculation)),
        detokenizer_(tokenizer_),
        filter_(options.force_tokens.empty() ? options.stop : std::vector<std::string>{}),
        max_tokens_(forced() ? static_cast<uint32_t>(options.force_tokens.size())
                             : options.max_tokens) {}

  Result<GenerateResult> Run(std::span<const TokenId> prompt) {
    const uint32_t most = session_.remaining();
    history_.reserve(MostTokens(session_, prompt, options_));
    history_.assign(prompt.begin(), prompt.end());
    result_.tokens.reserve(std::min(most, max_tokens_) + 1);
    result_.prompt_tokens = static_cast<uint32_t>(prompt.size());
    result_.cached_tokens = session_.length();

    const Status status = FeedAndPick(prompt);
    if (!status && !Ended(status.error())) return status.error();
    ShowRest();
    FillTimings();
    return std::move(result_);
  }

 private:
  bool forced() const { return !options_.force_tokens.empty(); }

  // Prefill, then one token after the other until something ends it.
  Status FeedAndPick(std::span<const TokenId> prompt) {
    const uint32_t cached = session_.length();
    const auto pick = [this](size_t, std::span<float> logits) { Pick(logits); };
    const FeedOptions feed{.num_logits = 1, .cancel = options_.cancel};
    TAEL_RETURN_IF_ERROR(session_.Feed(prompt.subspan(cached), feed, pick, [&](uint32_t done) {
      if (callbacks_.on_prefill) callbacks_.on_prefill(cached + done, result_.prompt_tokens);
    }));
    result_.timings.prefill_ms = result_.timings.ttft_ms = MillisecondsSince(start_);
    first_token_ = last_token_ = Clock::now();
    while (!ended_ && Accept()) TAEL_RETURN_IF_ERROR(FeedNext());
    return {};
  }

  // The token accepted last and, behind it, what the text suggests.
  Status FeedNext() {
    if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, "cancelled", ""};
    }
    pass_[0] = next_;
    const size_t num_drafted = Draft();
    Status status = FeedPass(1 + num_drafted);
    // Room for a guess must not be what ends an answer.
    if (!status && status.error().code == ErrorCode::kNoFreeBlocks && num_drafted > 0) {
      status = FeedPass(1);
    }
    return status;
  }

  size_t Draft() {
    if (!speculation_) return 0;
    speculation_->Update(history_);
    // A draft of n tokens gives n + 1 at most, and its own have to fit the context.
    const size_t most = std::min<size_t>(max_tokens_ - result_.tokens.size(), session_.remaining());
    const std::span<const TokenId> draft = speculation_->Draft(history_, most - 1);
    std::copy(draft.begin(), draft.end(), pass_.begin() + 1);
    return draft.size();
  }

  // Checks pass_[1..count) while it picks: a guess that is what would have been picked anyway is
  // accepted, and the first that is not ends the draft.
  Status FeedPass(size_t count) {
    uint32_t keep = 0;
    bool right = true;
    const BatchItem item{.session = &session_,
                         .tokens = std::span(pass_).first(count),
                         .num_logits = static_cast<uint32_t>(count),
                         .keep = &keep};
    const Clock::time_point start = Clock::now();
    TAEL_RETURN_IF_ERROR(FeedBatch(
        session_.engine(), {&item, 1}, [&](size_t, size_t index, std::span<float> logits) {
          if (!right) return;
          Pick(logits);
          keep = static_cast<uint32_t>(index) + 1;
          right = keep < count && next_ == pass_[keep] && !end_of_generation_;
          result_.timings.accepted_tokens += right;
          right = right && Accept();
        }));
    if (speculation_) speculation_->Measured(count, MillisecondsSince(start));
    result_.timings.draft_tokens += static_cast<uint32_t>(count) - 1;
    return {};
  }

  void Pick(std::span<const float> logits) {
    const size_t index = result_.tokens.size();
    if (index >= max_tokens_) return;
    next_ = forced() ? options_.force_tokens[index] : sampler_.Sample(logits, history_);
    end_of_generation_ = !forced() && !options_.ignore_eos && tokenizer_.IsEndOfGeneration(next_);
    if (options_.logprobs && !end_of_generation_) {
      result_.logprobs.push_back(sample::LogSoftmaxTop(logits, next_, *options_.logprobs));
    }
  }

  // Takes the token that was picked into the answer. False when the answer is complete.
  bool Accept() {
    if (max_tokens_ == 0) return Finish(FinishReason::kLength);
    if (end_of_generation_) return Finish(FinishReason::kStop);
    last_token_ = Clock::now();
    result_.tokens.push_back(next_);
    history_.push_back(next_);
    if (callbacks_.on_token) callbacks_.on_token(next_);
    Show(filter_.Push(detokenizer_.Push(next_)));
    if (filter_.stopped()) return Finish(FinishReason::kStop);
    if (result_.tokens.size() == max_tokens_) return Finish(FinishReason::kLength);
    // All but the token picked last are held, or will be when this pass is over.
    if (history_.size() > session_.engine().context_length()) return Finish(FinishReason::kLength);
    return true;
  }

  bool Finish(FinishReason reason) {
    ended_ = true;
    result_.finish_reason = reason;
    return false;
  }

  // Errors that end an answer but do not spoil it.
  bool Ended(const Error& error) {
    if (error.code == ErrorCode::kCancelled) return !Finish(FinishReason::kCancelled);
    if (error.code == ErrorCode::kNoFreeBlocks) return !Finish(FinishReason::kMemory);
    return false;
  }

  void Show(std::string_view text) {
    if (text.empty()) return;
    result_.text += text;
    if (callbacks_.on_text) callbacks_.on_text(text);
  }

  void ShowRest() {
    Show(filter_.Push(detokenizer_.Finish()));
    Show(filter_.Finish());
  }

  void FillTimings() {
    Timings& t = result_.timings;
    if (result_.tokens.empty()) t.ttft_ms = 0;
    t.prefill_tps = PerSecond(result_.prompt_tokens - result_.cached_tokens, t.prefill_ms);
    t.decode_ms = std::chrono::duration<double, std::milli>(last_token_ - first_token_).count();
    if (result_.tokens.size() > 1) {
      t.decode_tps = PerSecond(result_.tokens.size() - 1, t.decode_ms);
    }
  }

  Session& session_;
  const GenerateOptions& options_;
  const GenerateCallbacks& callbacks_;
  const tokenizer::Tokenizer& tokenizer_;
  sample::Sampler sampler_;
  std::optional<Speculation> speculation_;
  tokenizer::Detokenizer detokenizer_;
  StopFilter filter_;
  const uint32_t max_tokens_;

  const Clock::time_point start_ = Clock::now();
  Clock::time_point first_token_ = start_;
  Clock::time_point last_token_ = start_;
  std::vector<TokenId> history_;  // prompt and answer: what the repeat penalty looks at
  TokenId next_{-1};
  bool end_of_generation_ = false;
  bool ended_ = false;
  std::array<TokenId, 1 + Speculation::kMostDraft> pass_{};  // the next token and a draft
  GenerateResult result_;
};

}  // namespace

std::string_view ToString(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kMemory:
      return "memory";
  }
  return "unknown";
}

Result<GenerateResult> Generate(Session& session, std::span<const TokenId> prompt,
                                const GenerateOptions& options,
                                const GenerateCallbacks& callbacks) {
  TAEL_RETURN_IF_ERROR(CheckPrompt(session, prompt));
  TAEL_RETURN_IF_ERROR(CheckOptions(session, prompt, options));
  const size_t vocab_size = session.engine().model().description().vocab_size;
  const size_t scratch = sample::Sampler::ScratchBytes(options.sampler, vocab_size);
  mem::Reservation reservation;
  if (scratch > kLedgerThreshold) {
    auto reserved = session.engine().budget().Reserve(mem::MemoryTag::kActivations, scratch);
    if (!reserved) {
      return Error{ErrorCode::kOutOfBudget, "sampling from the whole vocabulary does not fit",
                   "it needs " + FormatSize(scratch) +
                       "; set a top-k, shorten the context or raise the budget"};
    }
    reservation = *std::move(reserved);
    reservation.SetUsed(scratch);
  }
  TAEL_ASSIGN_OR_RETURN(auto sampler, sample::Sampler::Create(options.sampler, vocab_size));
  mem::Reservation index;
  std::optional<Speculation> speculation = MakeSpeculation(session, prompt, options, index);
  return Generation(session, options, callbacks, std::move(sampler), std::move(speculation))
      .Run(prompt);
}

uint32_t KeepCommonPrefix(Session& session, std::span<const TokenId> held,
                          std::span<const TokenId> prompt) {
  const size_t most = std::min<size_t>(session.length(), prompt.empty() ? 0 : prompt.size() - 1);
  uint32_t common = 0;
  while (common < std::min(most, held.size()) && held[common] == prompt[common]) ++common;
  // A sliding window may have moved past the keys that the next token would look at.
  if (!session.CanTruncate(common)) common = 0;
  session.Truncate(common);
  return common;
}

}  // namespace tael::engine
