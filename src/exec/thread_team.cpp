#include "exec/thread_team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

#include "base/checked.h"

namespace tael::exec {
namespace {

// About 20 microseconds of pauses: longer than the skew of a balanced op, shorter than a time
// slice.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void FutexWait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr,
          nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr,
          nullptr, 0);
}

std::vector<int> UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

size_t NumUsableCpus() { return std::max<size_t>(1, UsableCpus().size()); }

void ThreadTeam::Gate::Open() {
  // seq_cst on both words: either the sleeper sees the new generation, or we see the sleeper.
  generation.fetch_add(1);
  if (sleepers.load() != 0) FutexWakeAll(&generation);
}

void ThreadTeam::Gate::WaitWhile(uint32_t old_generation) {
  for (int i = 0; i < kSpins; ++i) {
    if (generation.load(std::memory_order_acquire) != old_generation) return;
    Pause();
  }
  sleepers.fetch_add(1);
  while (generation.load() == old_generation) FutexWait(&generation, old_generation);
  sleepers.fetch_sub(1);
}

Result<std::unique_ptr<ThreadTeam>> ThreadTeam::Create(size_t num_threads) {
  if (num_threads == 0 || num_threads > kMaxThreads) {
    return Error{ErrorCode::kInvalidArgument, "number of threads out of range",
                 std::to_string(num_threads) + ", must be 1 to " + std::to_string(kMaxThreads)};
  }
  std::unique_ptr<ThreadTeam> team(new ThreadTeam(num_threads));
  std::vector<int> cpus = UsableCpus();
  if (num_threads <= cpus.size()) team->cpus_ = std::move(cpus);
  team->workers_.reserve(num_threads - 1);
  for (size_t i = 1; i < num_threads; ++i) {
    try {
      team->workers_.emplace_back([raw = team.get(), i] { raw->WorkerLoop(i); });
    } catch (const std::system_error&) {
      return Error{ErrorCode::kIo, "cannot start a thread",
                   "number " + std::to_string(i) + "; try fewer with --threads"};
    }
  }
  return team;
}

ThreadTeam::~ThreadTeam() {
  stopping_.store(true);
  start_.Open();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadTeam::PinSelf(size_t thread) const {
  if (cpus_.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpus_[thread], &set);
  sched_setaffinity(0, sizeof set, &set);  // best effort: unpinned is slower, not wrong
}

void ThreadTeam::RunErased(Trampoline function, void* context) {
  if (num_threads_ == 1) {
    function(context, 0);
    return;
  }
  // The caller is pinned only while it works for the team: its own affinity is not ours to keep.
  cpu_set_t callers;
  const bool restore = !cpus_.empty() && sched_getaffinity(0, sizeof callers, &callers) == 0;
  PinSelf(0);
  function_ = function;
  context_ = context;
  start_.Open();
  function(context, 0);
  Barrier();
  if (restore) sched_setaffinity(0, sizeof callers, &callers);
}

void ThreadTeam::WorkerLoop(size_t thread) {
  PinSelf(thread);
  uint32_t seen = 0;
  while (true) {
    start_.WaitWhile(seen);
    ++seen;
    if (stopping_.load()) return;
    function_(context_, thread);
    Barrier();
  }
}

void ThreadTeam::Barrier() {
  if (num_threads_ == 1) return;
  const uint32_t generation = barrier_.generation.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    barrier_.Open();
  } else {
    barrier_.WaitWhile(generation);
  }
}

Range SplitRange(size_t total, size_t granule, size_t thread, size_t num_threads) {
  const size_t pieces = CeilDiv(total, granule);
  const size_t begin = pieces * thread / num_threads * granule;
  const size_t end = pieces * (thread + 1) / num_threads * granule;
  return {std::min(begin, total), std::min(end, total)};
}

}  // namespace tael::exec
