// The loops of roofline.h. The accumulators of the int8 loops must stay in registers: a loop that
// spills them shows 170-213 GMAC/s where the hardware gives 465, and passes for its limit.
#include "roofline.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace tael::bench {
namespace {

constexpr size_t kReadBytes = size_t{512} << 20;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// First word of a thread's part, a multiple of the loop's step.
size_t PartBegin(size_t thread, const PinnedTeam& team) {
  return kReadBytes / sizeof(uint64_t) / 16 * thread / team.size() * 16;
}

// Sixteen sums: the loop must wait for memory, not for its own additions.
void ReadWords(const uint64_t* words, size_t begin, size_t end) {
  uint64_t sum[16] = {};
  for (size_t w = begin; w < end; w += 16) {
    for (size_t j = 0; j < 16; ++j) sum[j] += words[w + j];
  }
  for (uint64_t& s : sum) asm volatile("" : "+r"(s));
}

struct Int8Loop {
  const char* instruction;
  size_t macs;  // of one iteration
  void (*run)(size_t iterations);
};

#if defined(__x86_64__)

// Twelve chains cover the latency (4 or 5 cycles) of one or two instructions per cycle. The empty
// asm hides that the chains start equal: they would be folded into one.
__attribute__((target("avx512f,avx512vnni"))) void Avx512Vnni(size_t iterations) {
  __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5), sum[12];
#pragma GCC unroll 12
  for (__m512i& s : sum) {
    s = _mm512_setzero_si512();
    asm volatile("" : "+v"(s));
  }
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (__m512i& s : sum) s = _mm512_dpbusd_epi32(s, a, b);
  }
#pragma GCC unroll 12
  for (__m512i& s : sum) asm volatile("" : "+v"(s));
}

__attribute__((target("avx2"))) void Avx2(size_t iterations) {
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1), sum[8];
#pragma GCC unroll 8
  for (__m256i& s : sum) {
    s = _mm256_setzero_si256();
    asm volatile("" : "+x"(s));
  }
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 8
    for (__m256i& s : sum) {
      asm volatile("" : "+x"(a));  // or the first product would be computed once for all chains
      s = _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), one));
    }
  }
#pragma GCC unroll 8
  for (__m256i& s : sum) asm volatile("" : "+x"(s));
}

Int8Loop BestLoop() {
  if (__builtin_cpu_supports("avx512vnni")) return {"vpdpbusd zmm", 12 * 64, Avx512Vnni};
  if (__builtin_cpu_supports("avx2")) return {"vpmaddubsw + vpmaddwd ymm", 8 * 32, Avx2};
  return {"none", 0, nullptr};
}

#elif defined(__aarch64__)

__attribute__((target("arch=armv8.2-a+dotprod"))) void Dotprod(size_t iterations) {
  int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
  int32x4_t sum[16];
#pragma GCC unroll 16
  for (int32x4_t& s : sum) {
    s = vdupq_n_s32(0);
    asm volatile("" : "+w"(s));
  }
  for (size_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int32x4_t& s : sum) s = vdotq_s32(s, a, b);
  }
#pragma GCC unroll 16
  for (int32x4_t& s : sum) asm volatile("" : "+w"(s));
}

Int8Loop BestLoop() {
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) return {"sdot", 16 * 16, Dotprod};
  return {"none", 0, nullptr};
}

#else

Int8Loop BestLoop() { return {"none", 0, nullptr}; }

#endif

}  // namespace

Roofline::Roofline(PinnedTeam& team) : team_(team) {
  void* p = mmap(nullptr, kReadBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    std::fprintf(stderr, "roofline: no %zu bytes of memory to read\n", kReadBytes);
    std::exit(1);
  }
  madvise(p, kReadBytes, MADV_NOHUGEPAGE);
  words_ = static_cast<uint64_t*>(p);
  team_.Run([this](size_t i) {
    std::fill(words_ + PartBegin(i, team_), words_ + PartBegin(i + 1, team_), i);
  });
}

Roofline::~Roofline() { munmap(words_, kReadBytes); }

double Roofline::ReadBandwidth() {
  constexpr size_t kPasses = 9;
  std::vector<double> seconds;
  for (size_t pass = 0; pass < kPasses; ++pass) {
    const double start = Now();
    team_.Run(
        [this](size_t i) { ReadWords(words_, PartBegin(i, team_), PartBegin(i + 1, team_)); });
    seconds.push_back(Now() - start);
  }
  std::sort(seconds.begin(), seconds.end());
  return static_cast<double>(kReadBytes) / seconds[kPasses / 2];
}

double Roofline::Int8Peak() {
  constexpr size_t kIterations = 500'000, kPasses = 15;
  const Int8Loop loop = BestLoop();
  if (loop.run == nullptr) return 0;
  double best = 0;
  for (size_t pass = 0; pass < kPasses; ++pass) {
    const double start = Now();
    team_.Run([&loop](size_t) { loop.run(kIterations); });
    best = std::max(best,
                    static_cast<double>(kIterations * loop.macs * team_.size()) / (Now() - start));
  }
  return best;
}

const char* Int8Instruction() { return BestLoop().instruction; }

}  // namespace tael::bench
