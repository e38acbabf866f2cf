// One to four tokens: dot products along k on raw rows. A thread reads two streams, the two halves
// of its rows, each with a prefetch 2 KB ahead: hardware prefetchers follow sequential streams, but
// not neighbouring rows of 1 KB. Two tokens at a time, as 16 registers allow; the second pair finds
// the rows in L1.
#pragma once

#include "kernels/isa/avx2_matmul_pack.h"

namespace tael::kernels {
namespace {

constexpr size_t kPrefetchAhead = 2048;

TAEL_INLINE float SumOf8(__m256 v) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// 8 sums of 4 products. Two products fit 16 bits: 63 * 127 * 2, and with signed weights, whose sign
// moves to the activation, 128 * 127 * 2 = 32512.
template <bool kSigned>
TAEL_INLINE __m256i DotFours(__m256i w, __m256i act) {
  const __m256i pairs = kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(act, w))
                                : _mm256_maddubs_epi16(w, act);
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

// y[t * call.y_stride + s * y_step] for kTokens tokens from `act` on and kStreams rows.
template <typename Decoder, size_t kStreams, size_t kTokens>
inline void DotRows(const uint8_t* w, size_t stream_bytes, size_t y_step, const MatmulCall& call,
                    const VectorBlock* act, float* y) {
  constexpr BlockShape shape = kShapeOf<typename Decoder::Format>;
  const size_t token_blocks = call.k / kActBlock;
  __m256 dots[kStreams][kTokens], mins[kStreams][kTokens];
#pragma GCC unroll 2
  for (size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 2
    for (size_t t = 0; t < kTokens; ++t) dots[s][t] = mins[s][t] = _mm256_setzero_ps();
  }
  for (size_t i = 0; i < call.k; i += shape.elements, w += shape.bytes) {
#pragma GCC unroll 2
    for (size_t s = 0; s < kStreams; ++s) {
      const uint8_t* p = w + s * stream_bytes;
#pragma GCC unroll 4
      for (size_t byte = 0; byte < shape.bytes; byte += kCacheLine) {
        _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchAhead + byte), _MM_HINT_T0);
      }
      Decoder::Decode(
          p, [&](int n, __m256i q, __m256 scale, __m256 min) __attribute__((always_inline)) {
#pragma GCC unroll 2
            for (size_t t = 0; t < kTokens; ++t) {
              const VectorBlock& block = act[t * token_blocks + static_cast<size_t>(n)];
              const __m256 dot = _mm256_cvtepi32_ps(DotFours<Decoder::kSigned>(q, Load(block.q)));
              const __m256 both = _mm256_mul_ps(scale, _mm256_load_ps(block.scale));
              dots[s][t] = _mm256_fmadd_ps(dot, both, dots[s][t]);
              if constexpr (!Decoder::kSigned) {
                mins[s][t] = _mm256_fmadd_ps(min, _mm256_load_ps(block.scaled_sum), mins[s][t]);
              }
            }
          });
    }
    act += shape.elements / kActBlock;
  }
#pragma GCC unroll 2
  for (size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 2
    for (size_t t = 0; t < kTokens; ++t) {
      y[t * call.y_stride + s * y_step] = SumOf8(_mm256_add_ps(dots[s][t], mins[s][t]));
    }
  }
}

template <typename Decoder, size_t kStreams>
inline void DotRowsOfAll(const uint8_t* w, size_t stream_bytes, size_t y_step,
                         const MatmulCall& call, float* y) {
  const auto* act = reinterpret_cast<const VectorBlock*>(call.act);
  const size_t token_blocks = call.k / kActBlock;
  size_t t = 0;
  for (; t + 2 <= call.num_tokens; t += 2) {
    DotRows<Decoder, kStreams, 2>(w, stream_bytes, y_step, call, act + t * token_blocks,
                                  y + t * call.y_stride);
  }
  if (t < call.num_tokens) {
    DotRows<Decoder, kStreams, 1>(w, stream_bytes, y_step, call, act + t * token_blocks,
                                  y + t * call.y_stride);
  }
}

template <typename Decoder>
void MatmulVectors(const MatmulCall& call) {
  const auto* w = reinterpret_cast<const uint8_t*>(call.w);
  const size_t num_rows = call.row_end - call.row_begin, half = num_rows / 2;
  for (size_t r = call.row_begin; r < call.row_begin + half; ++r) {
    DotRowsOfAll<Decoder, 2>(w + r * call.row_bytes, half * call.row_bytes, half, call, call.y + r);
  }
  if (num_rows % 2 != 0) {
    const size_t last = call.row_end - 1;
    DotRowsOfAll<Decoder, 1>(w + last * call.row_bytes, 0, 0, call, call.y + last);
  }
}

}  // namespace
}  // namespace tael::kernels
