#include "exec/thread_team.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/checked.h"
#include "base/fault.h"

namespace tael::exec {
namespace {

// What is left of the spinning where it never helps, and how often (every so many barriers) a full
// spin is tried again. It never helps where the thread that is waited for needs this very core, as
// its arrival there shows. Any other wait, however long, is no reason to spin less: it may be the
// skew of a large op, and to count those makes eight times as many context switches on a quiet
// machine and costs decoding up to 8 %.
constexpr uint32_t kFewestSpins = 50;
constexpr uint32_t kProbeEvery = 64;

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

cpu_set_t SetOf(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  return set;
}

bool MayRunElsewhere(const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
  for (int cpu : cpus) CPU_CLR(static_cast<size_t>(cpu), &set);
  return CPU_COUNT(&set) > 0;
}

}  // namespace

void ThreadTeam::Gate::Open() {
  // seq_cst on both words: either the sleeper sees the new generation, or we see the sleeper.
  generation.fetch_add(1);
  if (sleepers.load() == 0) return;
  opener_cpu.store(sched_getcpu(), std::memory_order_relaxed);
  FutexWakeAll(&generation);
}

void ThreadTeam::Gate::WaitWhile(uint32_t old_generation) {
  const uint32_t usual = spins.load(std::memory_order_relaxed);
  const uint32_t limit = old_generation % kProbeEvery == 0 ? kMostSpins : usual;
  for (uint32_t i = 0; i < limit; ++i) {
    if (generation.load(std::memory_order_acquire) != old_generation) {
      // A probe that succeeds says that the others are near after all, only woken late each time.
      const uint32_t longer = limit > usual ? kMostSpins : std::min(kMostSpins, usual * 2);
      if (longer != usual) spins.store(longer, std::memory_order_relaxed);
      return;
    }
    Pause();
  }
  const int cpu = sched_getcpu();
  sleepers.fetch_add(1);
  while (generation.load() == old_generation) FutexWait(&generation, old_generation);
  sleepers.fetch_sub(1);
  if (opener_cpu.load(std::memory_order_relaxed) == cpu) {
    spins.store(std::max(kFewestSpins, usual / 2), std::memory_order_relaxed);
  }
}

Result<std::unique_ptr<ThreadTeam>> ThreadTeam::Create(size_t num_threads, std::vector<int> cpus) {
  if (num_threads == 0 || num_threads > kMaxThreads) {
    return Error{ErrorCode::kInvalidArgument, "number of threads out of range",
                 std::to_string(num_threads) + ", must be 1 to " + std::to_string(kMaxThreads)};
  }
  std::unique_ptr<ThreadTeam> team(new ThreadTeam(num_threads, std::move(cpus)));
  team->confine_caller_ = !team->cpus_.empty() && MayRunElsewhere(team->cpus_);
  team->workers_.reserve(num_threads - 1);
  for (size_t i = 1; i < num_threads; ++i) {
    try {
      if (FaultHere(FaultKind::kThread)) throw std::system_error(EAGAIN, std::generic_category());
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

// A new thread begins on its creator's CPU and may stay there for tens of milliseconds: it moves to
// one of its own first, and is then free to leave it. Best effort: elsewhere is slower, not wrong.
void ThreadTeam::PlaceSelf(size_t thread) const {
  if (cpus_.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpus_[thread % cpus_.size()]), &set);
  sched_setaffinity(0, sizeof set, &set);
  const cpu_set_t all = SetOf(cpus_);
  sched_setaffinity(0, sizeof all, &all);
}

void ThreadTeam::RunErased(Trampoline function, void* context) {
  // The caller's own affinity is not ours to keep.
  cpu_set_t callers;
  const bool confine = confine_caller_ && sched_getaffinity(0, sizeof callers, &callers) == 0;
  if (confine) {
    const cpu_set_t ours = SetOf(cpus_);
    sched_setaffinity(0, sizeof ours, &ours);
  }
  if (num_threads_ == 1) {
    function(context, 0);
  } else {
    function_ = function;
    context_ = context;
    start_.Open();
    function(context, 0);
    Barrier();
  }
  if (confine) sched_setaffinity(0, sizeof callers, &callers);
}

void ThreadTeam::WorkerLoop(size_t thread) {
  PlaceSelf(thread);
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
