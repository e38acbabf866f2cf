// A vector of 16 floats for the simd_*.h files. Private to the avx512 files.
#pragma once

// GCC 12 warns about the deliberately undefined register inside its own intrinsics (bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

struct Avx512 {
  using Vec = __m512;
  static constexpr size_t kLanes = 16;

  static __mmask16 FirstLanes(size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }

  static Vec Set1(float value) { return _mm512_set1_ps(value); }
  static Vec Load(const float* p) { return _mm512_loadu_ps(p); }
  static void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static Vec LoadPart(const float* p, size_t n) { return _mm512_maskz_loadu_ps(FirstLanes(n), p); }
  static void StorePart(float* p, Vec v, size_t n) { _mm512_mask_storeu_ps(p, FirstLanes(n), v); }

  static Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
  static Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec Abs(Vec a) { return _mm512_abs_ps(a); }
  static Vec CopySign(Vec magnitude, Vec sign) {
    const Vec mask = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(mask, magnitude), _mm512_and_ps(mask, sign));
  }
  static Vec Round(Vec a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vec Exp2(Vec n) { return _mm512_scalef_ps(_mm512_set1_ps(1.0f), n); }
  static Vec SelectLess(Vec a, Vec b, Vec if_less, Vec otherwise) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, if_less);
  }
  static float ReduceAdd(Vec v) { return _mm512_reduce_add_ps(v); }
  static float ReduceMax(Vec v) { return _mm512_reduce_max_ps(v); }

  static void RotatePairs(float* x, const float* cos, const float* sin) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const Vec c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cos)));
    const Vec s = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sin)));
    const Vec v = Load(x);
    const Vec swapped = _mm512_permute_ps(v, 0xb1);
    Store(x, _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(swapped, s)));
  }

  static Vec LoadF16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec LoadF16Part(const uint16_t* p, size_t n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanes(n), p));
  }
  // Round to nearest even, saturating; min and max keep a NaN in their second argument.
  static __m256i ToF16(Vec v) {
    const Vec clamped = Max(Set1(-65504.0f), Min(Set1(65504.0f), v));
    return _mm512_cvtps_ph(clamped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static void StoreF16(uint16_t* p, Vec v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), ToF16(v));
  }
  static void StoreF16Part(uint16_t* p, Vec v, size_t n) {
    _mm256_mask_storeu_epi16(p, FirstLanes(n), ToF16(v));
  }

  // Lanes i and i + kHalf of each run of 2 * kHalf become their sum and their difference.
  template <size_t kHalf>
  static Vec Butterfly(Vec v) {
    if constexpr (kHalf == 1) {
      return AddOrSub<0xaaaa>(_mm512_permute_ps(v, 0xb1), v);
    } else if constexpr (kHalf == 2) {
      return AddOrSub<0xcccc>(_mm512_permute_ps(v, 0x4e), v);
    } else if constexpr (kHalf == 4) {
      return AddOrSub<0xf0f0>(_mm512_shuffle_f32x4(v, v, 0xb1), v);
    } else {
      return AddOrSub<0xff00>(_mm512_shuffle_f32x4(v, v, 0x4e), v);
    }
  }
  template <uint16_t kSubtracted>
  static Vec AddOrSub(Vec a, Vec b) {
    return _mm512_mask_sub_ps(_mm512_add_ps(a, b), kSubtracted, a, b);
  }

  // Whole numbers within +-127.
  static void StoreI8(int8_t* p, Vec v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  template <size_t kVecs>
  static void LoadI8(const int8_t* p, Vec (&out)[kVecs]) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kVecs; ++i) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * kLanes));
      out[i] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    }
  }
  static Vec LoadI8Part(const int8_t* p, size_t n) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(FirstLanes(n), p)));
  }
  // The low (shift 0) or high (shift 4) halves of 16 bytes, less 8. The permutation looks at four
  // bits of an index and no more.
  static void LoadI4(const uint8_t* p, int shift, Vec (&out)[1]) {
    const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i index = shift == 0 ? bytes : _mm512_srli_epi32(bytes, 4);
    out[0] = _mm512_permutexvar_ps(index, values);
  }

  // Register tiles (32 registers). Scores: rows x blocks accumulators, a vector of keys per block
  // and a broadcast q; two blocks at least, so that 3 rows fill the latency of an FMA.
  static constexpr size_t kMaxScoreRows = 12;
  static constexpr size_t ScoreBlocks(size_t rows) { return rows <= 2 ? 4 : 2; }
  // Values: rows x vectors accumulators, the vectors of V and a broadcast weight.
  static constexpr size_t kMaxValueRows = 7;
  static constexpr size_t ValueVectors(size_t rows) { return rows <= 7 ? 4 : 2; }
};

}  // namespace
}  // namespace tael::kernels
