#include "engine/job.h"

#include <algorithm>
#include <utility>

#include "kernels/kernels.h"

namespace tael::engine {
namespace {

// Prompts that come together are taken shortest first, which makes the mean wait shortest, but a
// long one waits for no more than what came within a millisecond per token of it.
constexpr std::chrono::milliseconds kPerToken{1};
constexpr std::chrono::seconds kBackground{30};

Job::Clock::time_point Due(const Request& request, Job::Clock::time_point arrival) {
  const auto due = arrival + kPerToken * request.prompt.size();
  return request.priority == Priority::kBackground ? due + kBackground : due;
}

}  // namespace

void Choice::NoteDropped() {
  const uint32_t dropped = session->dropped_tokens();
  dropped_tokens = std::max(dropped_tokens, dropped);
  if (index != 0 || held() != job.request.prompt.size()) return;
  job.answer->SetTruncated(dropped);
  job.answer->SetCompressed(session->compressed_tokens());
}

size_t Choice::Flush() {
  if (writer->ended()) {
    piece_.finish = writer->finish_reason();
    piece_.dropped_tokens = dropped_tokens;
    if (index == 0) job.answer->SetTimings(writer->MakeTimings(job.answer->usage().cached_tokens));
  }
  if (piece_.tokens.empty() && piece_.text.empty() && !piece_.finish) return 0;
  piece_.choice = index;
  const size_t num_tokens = piece_.tokens.size();
  job.answer->Put(std::exchange(piece_, {}));
  return num_tokens;
}

void Choice::OnToken(TokenId token, sample::LogProbs* logprobs) {
  piece_.tokens.push_back(token);
  if (logprobs != nullptr) piece_.logprobs.push_back(std::move(*logprobs));
}

Job::Job(Request the_request, std::shared_ptr<AnswerSource> the_answer, Clock::time_point now)
    : request(std::move(the_request)),
      answer(std::move(the_answer)),
      arrival(now),
      due(Due(request, now)) {}

uint32_t Job::CountRunning() const {
  return static_cast<uint32_t>(std::ranges::count_if(
      choices, [](const auto& choice) { return choice->state == Choice::State::kRuns; }));
}

bool Job::done() const {
  return std::ranges::all_of(
      choices, [](const auto& choice) { return choice->state == Choice::State::kDone; });
}

uint32_t CommonRows(std::span<const TokenId> a, std::span<const TokenId> b, size_t most) {
  const size_t end = std::min({a.size(), b.size(), most});
  const auto mismatch = std::ranges::mismatch(a.first(end), b.first(end));
  const auto common = static_cast<size_t>(mismatch.in1 - a.first(end).begin());
  return static_cast<uint32_t>(common - common % kernels::kBlockTokens);
}

}  // namespace tael::engine
