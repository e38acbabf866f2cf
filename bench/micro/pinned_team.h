// Threads of a benchmark: one per CPU, pinned, spinning for a while after each job, so that the
// next starts within a microsecond on all of them. Two unpinned threads can share one CPU for tens
// of milliseconds after they start, which halves a short measurement.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace tael::bench {

// Used by the thread that made it, and by no other. That thread works, too.
class PinnedTeam {
 public:
  explicit PinnedTeam(size_t num_threads) : num_threads_(num_threads) {
    for (size_t i = 1; i < num_threads; ++i) workers_.emplace_back([this, i] { Work(i); });
    Pin(0);
  }
  PinnedTeam(const PinnedTeam&) = delete;
  PinnedTeam& operator=(const PinnedTeam&) = delete;
  ~PinnedTeam() {
    stop_ = true;
    for (std::thread& worker : workers_) worker.join();
  }

  size_t size() const { return num_threads_; }

  // Calls job(0) here and job(1) ... on the workers; returns when all are done.
  template <typename Job>
  void Run(const Job& job) {
    context_ = &job;
    call_ = [](const void* context, size_t i) { (*static_cast<const Job*>(context))(i); };
    const uint64_t ticket = started_ + 1;
    started_.store(ticket, std::memory_order_release);
    job(size_t{0});
    while (finished_.load(std::memory_order_acquire) != ticket * workers_.size()) {
    }
  }

 private:
  // About 100 us; then a worker lets others have its CPU, for benchmarks of one thread.
  static constexpr size_t kSpins = 100'000;

  static void Pin(size_t thread) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(thread % std::thread::hardware_concurrency(), &set);
    sched_setaffinity(0, sizeof set, &set);
  }

  void Work(size_t i) {
    Pin(i);
    size_t idle = 0;
    for (uint64_t seen = 0; !stop_;) {
      if (started_.load(std::memory_order_acquire) == seen) {
        if (++idle > kSpins) std::this_thread::yield();
        continue;
      }
      idle = 0;
      ++seen;
      call_(context_, i);
      finished_.fetch_add(1, std::memory_order_release);
    }
  }

  const size_t num_threads_;
  const void* context_ = nullptr;
  void (*call_)(const void*, size_t) = nullptr;
  std::atomic<uint64_t> started_{0}, finished_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace tael::bench
