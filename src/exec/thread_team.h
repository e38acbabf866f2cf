// A fixed team of threads that run one function together, with barriers inside it.
//
// The caller is thread 0; the others sleep on a futex between runs. A barrier spins for a moment,
// since the others are usually microseconds away, and then sleeps. Where the other thread waits for
// the very core that spins, as with more threads than cores, the team soon hands the core over at
// once. Threads start on a CPU each but are not pinned to it: the kernel moves them away from a
// busy neighbour. Between two Run() calls the team holds no lock and uses no CPU.
//
// One Run() at a time; Barrier() only from inside the function. Run() allocates nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"

namespace tael::exec {

class ThreadTeam {
 public:
  // The threads that are started may run on `cpus` (none given: wherever the caller may) and begin
  // on one each. How many are wise is ChooseCpus' business (cpu_set.h).
  // Fails: kInvalidArgument for 0 or more than kMaxThreads; kIo if a thread cannot be started.
  static Result<std::unique_ptr<ThreadTeam>> Create(size_t num_threads, std::vector<int> cpus = {});
  static constexpr size_t kMaxThreads = 256;

  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  size_t size() const { return num_threads_; }

  // Calls body(thread index) on every thread and returns when all have returned.
  template <class Body>
  void Run(Body&& body) {
    RunErased([](void* context, size_t thread) { (*static_cast<Body*>(context))(thread); }, &body);
  }

  // Every thread waits here until all have arrived.
  void Barrier();

 private:
  // 2,000 pauses are about 20 microseconds: longer than the skew of a balanced op, shorter than a
  // time slice.
  static constexpr uint32_t kMostSpins = 2000;

  using Trampoline = void (*)(void* context, size_t thread);

  ThreadTeam(size_t num_threads, std::vector<int> cpus)
      : num_threads_(num_threads), cpus_(std::move(cpus)) {}
  void RunErased(Trampoline function, void* context);
  void WorkerLoop(size_t thread);
  void PlaceSelf(size_t thread) const;

  // A word that threads wait on, with a count of those asleep so that nobody wakes in vain, and
  // how long to spin before sleeping.
  struct alignas(64) Gate {
    std::atomic<uint32_t> generation{0};
    std::atomic<uint32_t> sleepers{0};
    std::atomic<uint32_t> spins{kMostSpins};
    std::atomic<int> opener_cpu{-1};  // of whoever woke the sleepers last
    void Open();
    void WaitWhile(uint32_t old_generation);
  };

  const size_t num_threads_;
  const std::vector<int> cpus_;  // empty: wherever the kernel puts them
  bool confine_caller_ = false;  // it may run on CPUs that are not the team's
  Gate start_;
  Gate barrier_;
  alignas(64) std::atomic<uint32_t> arrived_{0};
  Trampoline function_ = nullptr;
  void* context_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

// The part of [0, total) that thread `thread` of `num_threads` works on, cut at multiples of
// `granule`.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};
Range SplitRange(size_t total, size_t granule, size_t thread, size_t num_threads);

}  // namespace tael::exec
