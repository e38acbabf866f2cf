// Quantised rows to f32, with the bits of the scalar definition: an exact integer, one product, and
// for formats with a minimum one sum. Private to the avx2 matrix products.
#pragma once

#include "kernels/isa/avx2_matmul_decode.h"

namespace tael::kernels {
namespace {

template <typename Decoder>
TAEL_INLINE void StoreBlock(__m256i q, __m256 scale, __m256 min, float* out) {
  const __m128i halves[2] = {_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1)};
  const __m256 scales[2] = {_mm256_permute2f128_ps(scale, scale, 0x00),
                            _mm256_permute2f128_ps(scale, scale, 0x11)};
  const __m256 mins[2] = {_mm256_permute2f128_ps(min, min, 0x00),
                          _mm256_permute2f128_ps(min, min, 0x11)};
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    const __m128i eight = i % 2 == 0 ? halves[i / 2] : _mm_srli_si128(halves[i / 2], 8);
    __m256i wide;
    if constexpr (Decoder::kSigned) {
      wide = _mm256_cvtepi8_epi32(eight);
    } else {
      wide = _mm256_sub_epi32(_mm256_cvtepu8_epi32(eight), _mm256_set1_epi32(Decoder::kBias));
    }
    __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(wide), scales[i / 2]);
    if constexpr (Decoder::Format::kHasMin) v = _mm256_add_ps(v, mins[i / 2]);
    _mm256_storeu_ps(out + 8 * i, v);
  }
}

template <typename Decoder>
void DequantizeDecoded(const std::byte* row, size_t k, float* out) {
  constexpr BlockShape shape = kShapeOf<typename Decoder::Format>;
  const auto* p = reinterpret_cast<const uint8_t*>(row);
  for (size_t i = 0; i < k; i += shape.elements, p += shape.bytes) {
    Decoder::Decode(
        p, [&](int n, __m256i q, __m256 scale, __m256 min) __attribute__((always_inline)) {
          StoreBlock<Decoder>(q, scale, min, out + i + 32 * static_cast<size_t>(n));
        });
  }
}

inline void DequantizeHalves(const std::byte* bytes, size_t k, float* out) {
  size_t i = 0;
  for (; i + 8 <= k; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(LoadHalfRegister(bytes + 2 * i)));
  }
  DequantizeF16(bytes + 2 * i, k - i, out + i);
}

}  // namespace
}  // namespace tael::kernels
