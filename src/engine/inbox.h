// How other threads talk to the scheduler's: a bounded queue of requests, and calls that it makes
// for them between two passes. Everything here may be called from any thread but where it says
// otherwise.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/doorbell.h"
#include "engine/job.h"

namespace tael::engine {

// Something that the scheduler's thread does while the caller waits.
class Call {
 public:
  explicit Call(std::function<void()> body) : body_(std::move(body)) {}
  void Run();   // the scheduler's thread
  void Wait();  // until it has run

 private:
  const std::function<void()> body_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

class Inbox {
 public:
  explicit Inbox(uint32_t max_queued) : max_queued_(max_queued) {}

  // Fails: kBusy where as many wait as may; kCancelled after Stop().
  Status Push(std::unique_ptr<Job> job);
  // False after Stop(); then it never runs.
  bool Push(std::shared_ptr<Call> call);
  void Stop();

  // The scheduler's thread. A job that it took counts as waiting until it LeavesQueue().
  struct Contents {
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<std::shared_ptr<Call>> calls;
    bool stop = false;
  };
  Contents Take();
  void LeavesQueue();

  bool stops() const { return stops_.load(std::memory_order_relaxed); }
  uint32_t num_queued() const;
  const std::shared_ptr<Doorbell>& doorbell() const { return doorbell_; }

 private:
  const uint32_t max_queued_;
  // Answers ring it, too, and may outlive the scheduler.
  const std::shared_ptr<Doorbell> doorbell_ = std::make_shared<Doorbell>();

  std::atomic<bool> stops_{false};  // contents_.stop, without the lock
  mutable std::mutex mutex_;        // guards all below
  Contents contents_;
  uint32_t num_queued_ = 0;
};

}  // namespace tael::engine
