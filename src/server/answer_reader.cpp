#include "server/answer_reader.h"

#include <utility>

namespace tael::server {

AnswerReader::AnswerReader(std::shared_ptr<engine::Answer> answer, const Client& client,
                           Metrics& metrics)
    : answer_(std::move(answer)), metrics_(metrics), hook_(client, [this] {
        if (ended_.load()) return;
        metrics_.clients_gone.fetch_add(1, std::memory_order_relaxed);
        answer_->Cancel();
      }) {}

AnswerReader::~AnswerReader() {
  if (!ended_) answer_->Cancel();
}

bool AnswerReader::Read(std::vector<engine::Piece>& out) {
  // Long: a client that leaves, or a server that stops, ends the wait by Cancel().
  constexpr std::chrono::seconds kPatience{10};
  while (!ended_) {
    switch (answer_->WaitFor(kPatience, out)) {
      case engine::Answer::Next::kPieces:
        Time(out);
        return true;
      case engine::Answer::Next::kTimeout:
        continue;
      case engine::Answer::Next::kEnd:
        ended_ = true;
        break;
    }
  }
  return false;
}

std::optional<ApiError> AnswerReader::Failure() const {
  if (const auto error = answer_->error()) return ApiErrorOf(*error);
  if (!cancelled_) return std::nullopt;
  return ApiErrorOf(Error{ErrorCode::kCancelled, "the answer was cancelled",
                          "the server is stopping, or the client left"});
}

void AnswerReader::Time(const std::vector<engine::Piece>& pieces) {
  const Clock::time_point now = Clock::now();
  const auto since = [now](Clock::time_point before) {
    return std::chrono::duration<double>(now - before).count();
  };
  for (const engine::Piece& piece : pieces) {
    if (piece.finish == engine::FinishReason::kCancelled) cancelled_ = true;
    if (piece.tokens.empty()) continue;
    if (last_.size() <= piece.choice) last_.resize(piece.choice + 1);
    Clock::time_point& last = last_[piece.choice];
    if (last == Clock::time_point{}) {
      metrics_.time_to_first_token.Observe(since(start_));
    } else {
      const size_t count = piece.tokens.size();
      metrics_.inter_token.Observe(since(last) / static_cast<double>(count), count);
    }
    last = now;
  }
}

}  // namespace tael::server
