// An answer on its way from the scheduler's thread to one reader: a bounded buffer of pieces.
//
// A reader that does not keep up stops only its own answer: when the buffer is full, the scheduler
// computes other requests until there is room, and gives up after a while.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "engine/doorbell.h"
#include "engine/generation.h"
#include "sample/logprobs.h"

namespace tael::engine {

// What has come of one choice since the piece before. Text and tokens need not belong together:
// text is held back while it may still become a stop string or an unfinished character goes on.
struct Piece {
  uint32_t choice = 0;
  std::string text = {};                        // valid UTF-8
  std::vector<TokenId> tokens = {};             // without the end-of-generation token
  std::vector<sample::LogProbs> logprobs = {};  // one per token, if asked for
  std::optional<FinishReason> finish = {};      // with the last piece of the choice
  // With `finish`: tokens of prompt and answer that a window dropped before the choice was
  // complete.
  uint32_t dropped_tokens = 0;
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;  // of all choices
  uint32_t cached_tokens = 0;      // of the prompt, shared with other requests
  uint32_t truncated_tokens = 0;   // of the prompt, outside the window when its answer began
  uint32_t compressed_tokens = 0;  // of the prompt, let go of when it had been read
};

// The reader's side. Any thread may call anything; one of them reads. An answer that nobody holds
// any more is cancelled, at the next pass.
class Answer {
 public:
  enum class Next : uint8_t {
    kPieces,   // there are some
    kTimeout,  // none yet
    kEnd,      // none will come: every choice has finished, or error() says why not
  };

  // Takes all pieces that are there into `out` (which is emptied first), and waits for the first
  // one if there are none. Blocks: up to `timeout`; 0 only looks.
  Next WaitFor(std::chrono::milliseconds timeout, std::vector<Piece>& out);

  // Ends the answer at once: every choice that has not finished does so as kCancelled. A request
  // that still waits never runs. Does not block.
  void Cancel();

  // Why there is no (whole) answer; none while it goes on, and after one that finished.
  std::optional<Error> error() const;
  Usage usage() const;
  Timings timings() const;  // of choice 0, from Submit() on; complete when it has finished

 protected:
  Answer(std::shared_ptr<Doorbell> scheduler, uint32_t prompt_tokens, uint32_t num_choices)
      : scheduler_(std::move(scheduler)), num_open_(num_choices) {
    usage_.prompt_tokens = prompt_tokens;
  }
  ~Answer() = default;

  const std::shared_ptr<Doorbell> scheduler_;
  std::atomic<bool> cancelled_{false};

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::vector<Piece> pieces_;
  size_t num_buffered_ = 0;  // tokens in pieces_
  uint32_t num_open_ = 0;    // choices without an end
  std::optional<Error> error_;
  Usage usage_;
  Timings timings_;
};

// The scheduler's side: called on its thread only.
class AnswerSource final : public Answer {
 public:
  AnswerSource(std::shared_ptr<Doorbell> scheduler, uint32_t prompt_tokens, uint32_t num_choices)
      : Answer(std::move(scheduler), prompt_tokens, num_choices) {}

  // Adds to the buffer; pieces of a choice that nobody has taken become one.
  void Put(Piece piece);
  // Ends the answer; choices that have not finished never will.
  void Fail(Error error);
  void SetCached(uint32_t tokens);
  void SetTruncated(uint32_t tokens);
  void SetCompressed(uint32_t tokens);
  void SetTimings(const Timings& timings);

  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  size_t num_buffered() const;  // tokens
};

}  // namespace tael::engine
