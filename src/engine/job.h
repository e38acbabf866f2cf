// A request that was taken, and the sequences that answer it: the scheduler thread's own book.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/answer.h"
#include "engine/answer_writer.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace tael::engine {

struct Job;

// One answer to the request.
//
//   kFollows     choices but the first, until that has computed the prompt: then they share its KV
//   kRuns        holds a session
//   kPreempted   held one; goes on when there is room again
//   kDone        said everything
class Choice final : public AnswerListener {
 public:
  enum class State : uint8_t { kFollows, kRuns, kPreempted, kDone };

  Choice(Job& the_job, uint32_t the_index, uint64_t the_serial)
      : job(the_job), index(the_index), serial(the_serial) {}
  Choice(const Choice&) = delete;
  Choice& operator=(const Choice&) = delete;

  // Tokens whose KV is there, and those that have to be computed before the next can be picked.
  uint32_t held() const { return session ? session->length() : 0; }
  uint32_t pending() const { return static_cast<uint32_t>(writer->history().size()) - held(); }
  bool decodes() const { return pending() == 1; }

  // Notes what a window, or compression, has dropped so far. Requires: a session.
  void NoteDropped();
  // Gives the reader what has come; returns how many tokens.
  size_t Flush();

  Job& job;
  const uint32_t index;
  const uint64_t serial;  // names it for ever; never 0
  State state = State::kFollows;
  std::unique_ptr<AnswerWriter> writer;
  std::optional<Session> session;

  // The serial of a choice that started before and computes the first `shared_tokens` of ours right
  // now, so that we wait for it; 0: none.
  uint64_t computes_for_us = 0;
  uint32_t shared_tokens = 0;
  uint32_t num_computed = 0;  // of the history, the most so far: more than held() after preemption
  uint32_t dropped_tokens = 0;  // by a window, the most so far

 private:
  void OnToken(TokenId token, sample::LogProbs* logprobs) override;
  void OnText(std::string_view text) override { piece_.text += text; }

  Piece piece_;
};

struct Job {
  using Clock = std::chrono::steady_clock;

  Job(Request the_request, std::shared_ptr<AnswerSource> the_answer, Clock::time_point now);

  // The choices that hold KV.
  uint32_t CountRunning() const;
  bool done() const;
  // Nobody wants the answer any more.
  bool abandoned() const { return answer->cancelled() || answer.use_count() == 1; }

  const Request request;
  const std::shared_ptr<AnswerSource> answer;
  const Clock::time_point arrival;
  Clock::time_point due;  // who is due first runs first
  Clock::time_point started{};
  bool pin = false;                              // its prompt is to stay
  bool dropped = false;                          // it did not end by itself
  std::vector<std::unique_ptr<Choice>> choices;  // empty until it has started once
  std::optional<Clock::time_point> full_since;   // its reader is slow: since when
};

// Tokens that two texts have in common at the beginning, in whole rows, and at most `most`.
uint32_t CommonRows(std::span<const TokenId> a, std::span<const TokenId> b, size_t most);

}  // namespace tael::engine
