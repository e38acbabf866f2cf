// Attention over quantised keys and values for AVX-512 VNNI.
#include "kernels/isa/avx512_simd.h"
#include "kernels/isa/simd_kv_quantised.h"

namespace tael::kernels {

extern const KvTable kAvx512QuantisedKv[kNumQuantisedKvTypes];

namespace {

// The instruction wants one unsigned side: keys plus 128, taken off again where sums start.
struct VnniDot {
  // Of 32-bit integers: the untyped __m512i takes two registers for each sum of a long loop.
  using Sum = int32_t __attribute__((vector_size(64)));
  using Keys = __m512i;
  using Quad = __m512i;
  static Keys LoadKeys(const int8_t* p) {
    return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
  }
  static Quad LoadQuad(const int8_t* q) {
    int32_t four;
    __builtin_memcpy(&four, q, sizeof four);
    return _mm512_set1_epi32(four);
  }
  static Sum Start(int32_t sum) { return Sum(_mm512_set1_epi32(-128 * sum)); }
  static Sum Dot(Sum sum, Keys keys, Quad quad) {
    return Sum(_mm512_dpbusd_epi32(__m512i(sum), keys, quad));
  }
  static Sum Times128Plus(Sum sum, Sum start) { return sum * 128 + start; }
  static __m512 ToFloat(Sum sum) { return _mm512_cvtepi32_ps(__m512i(sum)); }

  // The registers hold what they do for f16 keys, and the offset of the keys.
  static constexpr size_t kMaxScoreRows = Avx512::kMaxScoreRows;
  static constexpr size_t ScoreBlocks(size_t rows) { return Avx512::ScoreBlocks(rows); }
};

}  // namespace

const KvTable kAvx512QuantisedKv[kNumQuantisedKvTypes] = {MakeQ8Table<Avx512, VnniDot>(),
                                                          MakeQ4Table<Avx512>()};

}  // namespace tael::kernels
