// Wakes the one thread that sleeps on it; a ring that comes while it is awake is not lost.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace tael::engine {

class Doorbell {
 public:
  using Clock = std::chrono::steady_clock;

  // Any thread. Does not block.
  void Ring() {
    {
      const std::lock_guard lock(mutex_);
      rung_ = true;
    }
    changed_.notify_one();
  }

  // Returns at once when it was rung since the last call. Blocks: until it rings, or `until`.
  void Wait(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    if (until == Clock::time_point::max()) {
      changed_.wait(lock, [this] { return rung_; });
    } else {
      changed_.wait_until(lock, until, [this] { return rung_; });
    }
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};

}  // namespace tael::engine
