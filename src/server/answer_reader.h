// Reads one answer for one client: cancels it when the client leaves, and times its tokens.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "engine/answer.h"
#include "server/api_error.h"
#include "server/http_message.h"
#include "server/metrics.h"

namespace tael::server {

class AnswerReader {
 public:
  AnswerReader(std::shared_ptr<engine::Answer> answer, const Client& client, Metrics& metrics);
  ~AnswerReader();  // nobody reads on: what still runs is cancelled

  // Waits for the next pieces; false when there are no more.
  bool Read(std::vector<engine::Piece>& out);

  // Why the answer is not whole; none if it is. After the last Read().
  std::optional<ApiError> Failure() const;
  engine::Usage usage() const { return answer_->usage(); }

 private:
  using Clock = std::chrono::steady_clock;
  void Time(const std::vector<engine::Piece>& pieces);

  const std::shared_ptr<engine::Answer> answer_;
  Metrics& metrics_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Clock::time_point> last_;  // by choice: when its last token came
  std::atomic<bool> ended_{false};
  bool cancelled_ = false;
  GoneHook hook_;  // last: it refers to answer_
};

}  // namespace tael::server
