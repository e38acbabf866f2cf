#include "engine/answer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tael::engine {
namespace {

void Append(Piece& to, Piece&& from) {
  to.text += from.text;
  to.tokens.insert(to.tokens.end(), from.tokens.begin(), from.tokens.end());
  std::move(from.logprobs.begin(), from.logprobs.end(), std::back_inserter(to.logprobs));
  to.finish = from.finish;
  to.dropped_tokens = from.dropped_tokens;
}

}  // namespace

Answer::Next Answer::WaitFor(std::chrono::milliseconds timeout, std::vector<Piece>& out) {
  out.clear();
  {
    std::unique_lock lock(mutex_);
    const auto over = [this] { return num_open_ == 0 || error_.has_value(); };
    const auto ready = [&] { return !pieces_.empty() || over(); };
    if (!changed_.wait_for(lock, timeout, ready)) return Next::kTimeout;
    if (pieces_.empty()) return Next::kEnd;
    out.swap(pieces_);
    num_buffered_ = 0;
    if (over()) return Next::kPieces;  // nobody waits for room
  }
  scheduler_->Ring();
  return Next::kPieces;
}

void Answer::Cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  scheduler_->Ring();
}

std::optional<Error> Answer::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

Usage Answer::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_;
}

Timings Answer::timings() const {
  const std::lock_guard lock(mutex_);
  return timings_;
}

void AnswerSource::Put(Piece piece) {
  {
    const std::lock_guard lock(mutex_);
    num_buffered_ += piece.tokens.size();
    usage_.completion_tokens += static_cast<uint32_t>(piece.tokens.size());
    if (piece.finish) --num_open_;
    const auto same = std::ranges::find(pieces_, piece.choice, &Piece::choice);
    if (same != pieces_.end()) {
      Append(*same, std::move(piece));
    } else {
      pieces_.push_back(std::move(piece));
    }
  }
  changed_.notify_all();
}

void AnswerSource::Fail(Error error) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  changed_.notify_all();
}

void AnswerSource::SetCached(uint32_t tokens) {
  const std::lock_guard lock(mutex_);
  usage_.cached_tokens = tokens;
}

void AnswerSource::SetTruncated(uint32_t tokens) {
  const std::lock_guard lock(mutex_);
  usage_.truncated_tokens = tokens;
}

void AnswerSource::SetCompressed(uint32_t tokens) {
  const std::lock_guard lock(mutex_);
  usage_.compressed_tokens = tokens;
}

void AnswerSource::SetTimings(const Timings& timings) {
  const std::lock_guard lock(mutex_);
  timings_ = timings;
}

size_t AnswerSource::num_buffered() const {
  const std::lock_guard lock(mutex_);
  return num_buffered_;
}

}  // namespace tael::engine
