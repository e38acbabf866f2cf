#include "engine/inbox.h"

#include <string>
#include <utility>

#include "base/check.h"

namespace tael::engine {

void Call::Run() {
  body_();
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_one();
}

void Call::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
}

Status Inbox::Push(std::unique_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    if (contents_.stop) return Error{ErrorCode::kCancelled, "the scheduler stops", ""};
    if (num_queued_ >= max_queued_) {
      return Error{ErrorCode::kBusy, "too many requests wait already",
                   std::to_string(num_queued_) + " of at most " + std::to_string(max_queued_)};
    }
    ++num_queued_;
    contents_.jobs.push_back(std::move(job));
  }
  doorbell_->Ring();
  return {};
}

bool Inbox::Push(std::shared_ptr<Call> call) {
  {
    const std::lock_guard lock(mutex_);
    if (contents_.stop) return false;
    contents_.calls.push_back(std::move(call));
  }
  doorbell_->Ring();
  return true;
}

void Inbox::Stop() {
  {
    const std::lock_guard lock(mutex_);
    contents_.stop = true;
    stops_.store(true, std::memory_order_relaxed);
  }
  doorbell_->Ring();
}

Inbox::Contents Inbox::Take() {
  const std::lock_guard lock(mutex_);
  Contents taken;
  taken.stop = contents_.stop;
  taken.jobs.swap(contents_.jobs);
  taken.calls.swap(contents_.calls);
  return taken;
}

void Inbox::LeavesQueue() {
  const std::lock_guard lock(mutex_);
  TAEL_CHECK(num_queued_ > 0);
  --num_queued_;
}

uint32_t Inbox::num_queued() const {
  const std::lock_guard lock(mutex_);
  return num_queued_;
}

}  // namespace tael::engine
