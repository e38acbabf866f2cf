// One answer: feeds a prompt, samples token by token, and says how it ended.
//
// Nothing of a stop string ever comes out, text is valid UTF-8 at every step, and the pieces given
// to on_text, put together, are the result's text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/engine.h"
#include "engine/speculation.h"
#include "sample/logprobs.h"
#include "sample/sampler.h"

namespace tael::engine {

enum class FinishReason : uint8_t {
  kStop,       // an end-of-generation token or a stop string
  kLength,     // max_tokens, or the context is full
  kCancelled,  // the caller's flag
  kMemory,     // no KV block was left
};
std::string_view ToString(FinishReason reason);  // "stop", "length", ...

struct GenerateOptions {
  uint32_t max_tokens = 128;
  sample::SamplerOptions sampler;
  std::vector<std::string> stop;  // none of them empty
  bool ignore_eos = false;        // end-of-generation tokens are tokens like others
  // Whether to check several likely tokens in one pass, where the engine has room for drafts. The
  // answer is the same, token by token, at every temperature: each is sampled from the logits and
  // the state that it would have without.
  Speculate speculate = Speculate::kWhereItPays;
  // How many of the likeliest tokens to report for each token of the answer; none: no report.
  std::optional<uint32_t> logprobs;
  // Teacher forcing: when not empty, these are the answer, whatever the model prefers; nothing but
  // the last of them (or `cancel`) ends it.
  std::vector<TokenId> force_tokens;
  const std::atomic<bool>* cancel = nullptr;
};

// What is told while it happens; each may be empty. Called on the caller's thread, while the pass
// that gave the token may still be under way: the session is not to be touched.
struct GenerateCallbacks {
  std::function<void(uint32_t done, uint32_t total)> on_prefill;  // tokens of the prompt
  std::function<void(TokenId)> on_token;
  std::function<void(std::string_view)> on_text;
  // A window that grows has as many tokens now as it may get without a new decision.
  std::function<void(uint32_t tokens)> on_window = {};
};

struct Timings {
  double prefill_ms = 0;
  double decode_ms = 0;  // from the first token to the last
  double ttft_ms = 0;    // until the first token was there
  double prefill_tps = 0;
  double decode_tps = 0;         // 0 for an answer of fewer than two tokens
  uint32_t draft_tokens = 0;     // guessed and checked
  uint32_t accepted_tokens = 0;  // of them, right
};

struct GenerateResult {
  std::vector<TokenId> tokens;  // without the end-of-generation token
  std::string text;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt, found in the session
  // Of the prompt, so old that a window showed them in no layer when the answer began.
  uint32_t truncated_tokens = 0;
  uint32_t compressed_tokens = 0;  // of the prompt, let go of when it had been read
  FinishReason finish_reason = FinishReason::kStop;
  Timings timings;
  std::vector<sample::LogProbs> logprobs;  // one per token, if asked for

  uint32_t completion_tokens() const { return static_cast<uint32_t>(tokens.size()); }
};

// Answers `prompt`, of which the session holds the first session.length() tokens already.
// Compresses it where the engine's options say so; a session that answers again compresses all of
// its text anew, and what is gone stays gone. Afterwards the session holds the prompt and the
// answer's tokens but the last, so that `prompt + tokens` is what it knows and session.length() how
// much of that. Fails: kInvalidArgument (options; no prompt tokens, or none that the session does
// not hold yet; ids outside the vocabulary); kContextExceeded, naming both numbers; kOutOfBudget.
Result<GenerateResult> Generate(Session& session, std::span<const TokenId> prompt,
                                const GenerateOptions& options,
                                const GenerateCallbacks& callbacks = {});

// Makes the session hold a prefix of `prompt`, at most all tokens but the last, given what it
// holds: the first session.length() of `held`. Returns the number of tokens kept.
uint32_t KeepCommonPrefix(Session& session, std::span<const TokenId> held,
                          std::span<const TokenId> prompt);

}  // namespace tael::engine
