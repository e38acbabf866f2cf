#include "engine/generation.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/answer_writer.h"
#include "engine/batch.h"

namespace tael::engine {
namespace {

using Clock = AnswerWriter::Clock;

Status CheckNew(const Session& session, std::span<const TokenId> prompt) {
  if (prompt.size() > session.length()) return {};
  return Error{ErrorCode::kInvalidArgument, "the prompt has no tokens that are new",
               "the session holds " + std::to_string(session.length()) + ", the prompt has " +
                   std::to_string(prompt.size())};
}

// Writes one answer with one session, pass by pass.
class Generation final : private AnswerListener {
 public:
  Generation(Session& session, const GenerateOptions& options, const GenerateCallbacks& callbacks)
      : session_(session), options_(options), callbacks_(callbacks) {}

  Result<GenerateResult> Run(std::span<const TokenId> prompt) {
    TAEL_ASSIGN_OR_RETURN(
        writer_, AnswerWriter::Create(session_.engine(), prompt, options_, options_.sampler.seed,
                                      Clock::now(), *this));
    result_.tokens.reserve(writer_->planned_tokens() + 1 - prompt.size() + 1);
    result_.prompt_tokens = static_cast<uint32_t>(prompt.size());
    session_.PlanCompression(result_.prompt_tokens);
    result_.cached_tokens = session_.length();
    while (!writer_->ended()) {
      const Status status = FeedNext();
      if (!status && !Ended(status.error())) return status.error();
    }
    result_.finish_reason = *writer_->finish_reason();
    result_.timings = writer_->MakeTimings(result_.cached_tokens);
    return std::move(result_);
  }

 private:
  // A chunk of the prompt, or the token accepted last and, behind it, what the text suggests.
  Status FeedNext() {
    if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
      return Error{ErrorCode::kCancelled, "cancelled", ""};
    }
    const uint32_t held = session_.length();
    const uint32_t most = session_.MostAtOnce();
    AnswerWriter::Feed feed = writer_->Next(held, most, session_.MayDraft());
    Status status = FeedPass(feed);
    // Room for a guess must not be what ends an answer.
    if (!status && status.error().code == ErrorCode::kNoFreeBlocks && feed.num_logits > 1) {
      feed = writer_->Next(held, most, false);
      status = FeedPass(feed);
    }
    if (!status && status.error().code == ErrorCode::kNoFreeBlocks && session_.NarrowWindow()) {
      if (callbacks_.on_window) callbacks_.on_window(session_.sequence().window_limit());
      status = FeedPass(feed);
    }
    return status;
  }

  Status FeedPass(const AnswerWriter::Feed& feed) {
    const BatchItem item{.session = &session_,
                         .tokens = feed.tokens,
                         .num_logits = feed.num_logits,
                         .keep = feed.keep};
    const auto window = session_.AdaptWindow(static_cast<uint32_t>(feed.tokens.size()));
    if (window && callbacks_.on_window) callbacks_.on_window(*window);
    const Clock::time_point start = Clock::now();
    TAEL_RETURN_IF_ERROR(FeedBatch(
        session_.engine(), {&item, 1},
        [&](size_t, size_t index, std::span<float> logits) { writer_->OnLogits(index, logits); }));
    const double took = Milliseconds(Clock::now() - start);
    if (session_.length() == result_.prompt_tokens) {
      session_.Compress();
      result_.compressed_tokens = session_.compressed_tokens();
      result_.truncated_tokens = session_.dropped_tokens();
    }
    if (callbacks_.on_prefill && session_.length() <= result_.prompt_tokens &&
        result_.tokens.empty()) {
      callbacks_.on_prefill(session_.length(), result_.prompt_tokens);
    }
    writer_->EndPass(took);
    return {};
  }

  // Errors that end an answer but do not spoil it.
  bool Ended(const Error& error) {
    const bool cancelled = error.code == ErrorCode::kCancelled;
    if (!cancelled && error.code != ErrorCode::kNoFreeBlocks) return false;
    writer_->Finish(cancelled ? FinishReason::kCancelled : FinishReason::kMemory);
    return true;
  }

  void OnToken(TokenId token, sample::LogProbs* logprobs) override {
    result_.tokens.push_back(token);
    if (logprobs != nullptr) result_.logprobs.push_back(std::move(*logprobs));
    if (callbacks_.on_token) callbacks_.on_token(token);
  }

  void OnText(std::string_view text) override {
    result_.text += text;
    if (callbacks_.on_text) callbacks_.on_text(text);
  }

  Session& session_;
  const GenerateOptions& options_;
  const GenerateCallbacks& callbacks_;
  std::unique_ptr<AnswerWriter> writer_;
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
  TAEL_RETURN_IF_ERROR(CheckAnswer(session.engine(), prompt, options));
  TAEL_RETURN_IF_ERROR(CheckNew(session, prompt));
  return Generation(session, options, callbacks).Run(prompt);
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
