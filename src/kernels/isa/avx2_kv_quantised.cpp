// Attention over quantised keys and values for AVX2, FMA and F16C.
#include "kernels/isa/avx2_simd.h"
#include "kernels/isa/simd_kv_quantised.h"

namespace tael::kernels {

extern const KvTable kAvx2QuantisedKv[kNumQuantisedKvTypes];

namespace {

// The instruction wants one unsigned side: keys without their signs, which go to the query. Two
// products fit 16 bits: 127 * 127 * 2 = 32258.
struct MaddubsDot {
  // Of 32-bit integers: the untyped __m256i takes two registers for each sum of a long loop.
  using Sum = int32_t __attribute__((vector_size(32)));
  struct Keys {
    __m256i value;
    __m256i magnitude;
  };
  using Quad = __m256i;
  static Keys LoadKeys(const int8_t* p) {
    const __m256i value = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return {value, _mm256_abs_epi8(value)};
  }
  static Quad LoadQuad(const int8_t* q) {
    int32_t four;
    __builtin_memcpy(&four, q, sizeof four);
    return _mm256_set1_epi32(four);
  }
  static Sum Start(int32_t /*sum*/) { return Sum{}; }
  static Sum Dot(Sum sum, Keys keys, Quad quad) {
    const __m256i pairs = _mm256_maddubs_epi16(keys.magnitude, _mm256_sign_epi8(quad, keys.value));
    return sum + Sum(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static Sum Times128Plus(Sum sum, Sum start) { return sum * 128 + start; }
  static __m256 ToFloat(Sum sum) { return _mm256_cvtepi32_ps(__m256i(sum)); }

  // 16 registers: 2 * rows * blocks accumulators, four of keys per block, a query, ones, products.
  static constexpr size_t kMaxScoreRows = 4;
  static constexpr size_t ScoreBlocks(size_t /*rows*/) { return 1; }
};

}  // namespace

const KvTable kAvx2QuantisedKv[kNumQuantisedKvTypes] = {MakeQ8Table<Avx2, MaddubsDot>(),
                                                        MakeQ4Table<Avx2>()};

}  // namespace tael::kernels
