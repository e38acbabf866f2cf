// Quantised rows to f32, with the bits of the scalar definition: an exact integer, one product, and
// for formats with a minimum one sum. Private to the avx512 matrix products.
#pragma once

#include "kernels/isa/avx512_matmul_decode.h"

namespace tael::kernels {
namespace {

// 32 columns: block `kBlock` of a group.
template <typename Decoder, int kBlock>
TAEL_INLINE void StoreBlock(const Group& g, float* out) {
  using Format = typename Decoder::Format;
  constexpr int kBias = Format::kHasMin ? 0 : 1 << Decoder::kBiasShift;
  const __m512i lane = _mm512_set1_epi32(4 * kBlock);
#pragma GCC unroll 2
  for (size_t half = 0; half < 2; ++half) {
    const size_t set = Format::kTwoScales ? half : 0;
    const __m512i q = _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(g.q[half], kBlock));
    const __m512 exact = _mm512_cvtepi32_ps(_mm512_sub_epi32(q, _mm512_set1_epi32(kBias)));
    __m512 v = _mm512_mul_ps(exact, _mm512_permutexvar_ps(lane, g.scale[set]));
    if constexpr (Format::kHasMin) {
      v = _mm512_add_ps(v, _mm512_permutexvar_ps(lane, g.min[set]));
    }
    _mm512_storeu_ps(out + 16 * half, v);
  }
}

template <typename Decoder>
void DequantizeDecoded(const std::byte* row, size_t k, float* out) {
  ForEachStep<Decoder>(
      k, [&](auto source, size_t column, size_t offset) __attribute__((always_inline)) {
        Group groups[Decoder::kGroups];
        Decoder::Decode(source, reinterpret_cast<const uint8_t*>(row) + offset, groups);
#pragma GCC unroll 2
        for (size_t g = 0; g < Decoder::kGroups; ++g) {
          const size_t first = column + g * kGroupColumns;
          StoreBlock<Decoder, 0>(groups[g], out + first);
          if (first + 32 < k) StoreBlock<Decoder, 1>(groups[g], out + first + 32);
          if (first + 64 < k) StoreBlock<Decoder, 2>(groups[g], out + first + 64);
          if (first + 96 < k) StoreBlock<Decoder, 3>(groups[g], out + first + 96);
        }
      });
}

inline void DequantizeHalves(const std::byte* bytes, size_t k, float* out) {
  for (size_t i = 0; i < k; i += 16) {
    const size_t left = k - i;
    const auto live = static_cast<__mmask16>(left < 16 ? (1u << left) - 1 : 0xffff);
    const __m256i halves = _mm256_maskz_loadu_epi16(live, bytes + 2 * i);
    _mm512_mask_storeu_ps(out + i, live, _mm512_cvtph_ps(halves));
  }
}

}  // namespace
}  // namespace tael::kernels
