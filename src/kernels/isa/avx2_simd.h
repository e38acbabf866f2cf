// A vector of 8 floats for the simd_*.h files. Private to the avx2 files.
#pragma once

#include <immintrin.h>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

struct Avx2 {
  using Vec = __m256;
  static constexpr size_t kLanes = 8;

  static __m256i FirstLanes(size_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
  }

  static Vec Set1(float value) { return _mm256_set1_ps(value); }
  static Vec Load(const float* p) { return _mm256_loadu_ps(p); }
  static void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static Vec LoadPart(const float* p, size_t n) { return _mm256_maskload_ps(p, FirstLanes(n)); }
  static void StorePart(float* p, Vec v, size_t n) { _mm256_maskstore_ps(p, FirstLanes(n), v); }

  static Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec Div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec Min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
  static Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec Abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
  static Vec CopySign(Vec magnitude, Vec sign) {
    const Vec mask = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(mask, magnitude), _mm256_and_ps(mask, sign));
  }
  static Vec Round(Vec a) {
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec Exp2(Vec n) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  static Vec SelectLess(Vec a, Vec b, Vec if_less, Vec otherwise) {
    return _mm256_blendv_ps(otherwise, if_less, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  static float ReduceAdd(Vec v) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
  }
  static float ReduceMax(Vec v) {
    __m128 best = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    best = _mm_max_ps(best, _mm_movehl_ps(best, best));
    return _mm_cvtss_f32(_mm_max_ss(best, _mm_movehdup_ps(best)));
  }

  static void RotatePairs(float* x, const float* cos, const float* sin) {
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    const Vec c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos)), twice);
    const Vec s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin)), twice);
    const Vec v = Load(x);
    const Vec swapped = _mm256_permute_ps(v, 0xb1);
    Store(x, _mm256_fmaddsub_ps(v, c, _mm256_mul_ps(swapped, s)));
  }

  static Vec LoadF16(const uint16_t* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Round to nearest even, saturating; min and max keep a NaN in their second argument.
  static void StoreF16(uint16_t* p, Vec v) {
    const Vec clamped = Max(Set1(-65504.0f), Min(Set1(65504.0f), v));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }

  // Lanes i and i + kHalf of each run of 2 * kHalf become their sum and their difference.
  template <size_t kHalf>
  static Vec Butterfly(Vec v) {
    if constexpr (kHalf == 1) {
      return Fma(v, _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1), _mm256_permute_ps(v, 0xb1));
    } else if constexpr (kHalf == 2) {
      return Fma(v, _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1), _mm256_permute_ps(v, 0x4e));
    } else {
      return Fma(v, _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1), _mm256_permute2f128_ps(v, v, 1));
    }
  }

  // Whole numbers within +-127.
  static void StoreI8(int8_t* p, Vec v) {
    const __m256i wide = _mm256_cvtps_epi32(v);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
  }
  template <size_t kVecs>
  static void LoadI8(const int8_t* p, Vec (&out)[kVecs]) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kVecs; ++i) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * kLanes));
      out[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
  }
  // The low (shift 0) or high (shift 4) halves of 16 bytes, less 8.
  static void LoadI4(const uint8_t* p, int shift, Vec (&out)[2]) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i halves =
        _mm_and_si128(_mm_srl_epi16(bytes, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(15));
    const __m128i values = _mm_sub_epi8(halves, _mm_set1_epi8(8));
    out[0] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(values));
    out[1] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(values, 8)));
  }

  // Register tiles (16 registers). Scores: 2 * rows * blocks accumulators, two vectors of keys per
  // block and a broadcast q.
  static constexpr size_t kMaxScoreRows = 6;
  static constexpr size_t ScoreBlocks(size_t rows) { return rows <= 2 ? 2 : 1; }
  // Values: rows x vectors accumulators and the weights of a token, or the vectors of V.
  static constexpr size_t kMaxValueRows = 6;
  static constexpr size_t ValueVectors(size_t rows) { return rows <= 3 ? 4 : 2; }
};

}  // namespace
}  // namespace tael::kernels
