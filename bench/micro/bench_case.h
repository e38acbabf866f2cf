// What the kernel benchmarks share: threads, memory, inputs, and the roofline beside each speed.
#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <random>
#include <vector>

#include "pinned_team.h"
#include "roofline.h"

namespace tael::bench {

inline constexpr size_t kThreads = 2;
// A run walks over as many copies of its data as no cache holds.
inline constexpr size_t kWorkingSetBytes = size_t{192} << 20;

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t n)
      : data_(static_cast<std::byte*>(std::aligned_alloc(64, (n + 127) / 64 * 64))) {}
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  ~AlignedBytes() { std::free(data_); }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
};

// Any bytes are valid blocks; the top bits of each 16-bit word are kept from forming f16
// infinities, whose arithmetic could be slower.
inline void FillBlocks(std::byte* p, size_t n) {
  std::mt19937_64 rng(1);
  for (size_t i = 0; i + 8 <= n; i += 8) {
    const uint64_t word = rng() & 0xbfffbfffbfffbfffu;
    __builtin_memcpy(p + i, &word, sizeof word);
  }
}

inline std::vector<float> NormalValues(size_t n) {
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// What one iteration of a benchmark does; 0 where that says nothing about its speed.
struct Work {
  size_t bytes = 0;  // read
  size_t macs = 0;   // multiply-accumulates
};

// The threads and the roofline of all benchmarks. One thread uses it: the library's.
class Bench {
 public:
  PinnedTeam& team() { return team_; }

  // Call just before the timed loop. Measures the roofline, unless that was done a moment ago.
  void Begin() {
    if (Now() - measured_ > 2) {
      read_ = roofline_.ReadBandwidth();
      peak_ = roofline_.Int8Peak();
      measured_ = Now();
    }
    begin_ = Now();
  }

  // Call just after the timed loop. Counters: bytes/s and mac/s, and beside them how many per cent
  // that is of what the team reads, and of its int8 peak.
  void End(benchmark::State& state, Work work) const {
    const double rate = static_cast<double>(state.iterations()) / (Now() - begin_);
    Count(state, "bytes/s", "%read", rate * static_cast<double>(work.bytes), read_);
    Count(state, "mac/s", "%int8", rate * static_cast<double>(work.macs), peak_);
  }

 private:
  static double Now() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
  }

  static void Count(benchmark::State& state, const char* name, const char* share, double rate,
                    double most) {
    if (rate == 0) return;
    state.counters[name] = benchmark::Counter(rate);
    if (most > 0) state.counters[share] = benchmark::Counter(rate / most * 100);
  }

  PinnedTeam team_{kThreads};
  Roofline roofline_{team_};
  double read_ = 0, peak_ = 0;
  double measured_ = -1e9, begin_ = 0;  // seconds
};

// Each of these names its benchmarks ISA/kernel/... and registers them for every ISA of this CPU.
void RegisterMatmul(Bench& bench);
void RegisterAttention(Bench& bench);
void RegisterVector(Bench& bench);

}  // namespace tael::bench
