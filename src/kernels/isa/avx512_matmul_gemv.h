// One to four tokens: dot products along k on raw rows, bound by memory.
//
// A thread reads two streams, the two halves of its rows, because hardware prefetchers follow two
// purely sequential streams but not two neighbouring rows of 1 KB (KERNELS: 5-20 % over one
// stream, and neighbouring rows cost 25-50 %); software prefetch runs 2 KB ahead in each.
#pragma once

#include "kernels/isa/avx512_matmul_pack.h"

namespace tael::kernels {
namespace {

constexpr size_t kPrefetchAhead = 2048;

template <size_t kBytes>
TAEL_INLINE void PrefetchAhead(const uint8_t* p) {
#pragma GCC unroll 4
  for (size_t i = 0; i < kBytes; i += kCacheLine) {
    _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchAhead + i), _MM_HINT_T0);
  }
}

// acc + the products of one group of 128 columns. Weights are unsigned, so the sum of activations
// times the bias is taken off by starting the integer sums there.
template <typename Decoder>
TAEL_INLINE __m512 AddGroup(const Group& g, const VectorGroup& act, __m512 acc) {
  using Format = typename Decoder::Format;
  constexpr int kShift = Decoder::kBiasShift;
  const __m512i zero = _mm512_setzero_si512();
  const __m512i q0 = _mm512_load_si512(act.q[0]), q1 = _mm512_load_si512(act.q[1]);
  const __m512 scale = _mm512_load_ps(act.scale);
  const __m512i sum = _mm512_load_si512(act.minus_sum);
  if constexpr (Format::kTwoScales) {
    const __m512i sum1 = _mm512_load_si512(act.minus_sum_high), sum0 = _mm512_sub_epi32(sum, sum1);
    const __m512i start0 = Format::kHasMin ? zero : _mm512_slli_epi32(sum0, kShift);
    const __m512i start1 = Format::kHasMin ? zero : _mm512_slli_epi32(sum1, kShift);
    const __m512 dot0 = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start0, g.q[0], q0));
    const __m512 dot1 = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start1, g.q[1], q1));
    __m512 both = _mm512_fmadd_ps(dot1, g.scale[1], _mm512_mul_ps(dot0, g.scale[0]));
    if constexpr (Format::kHasMin) {
      both = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sum0), g.min[0], both);
      both = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sum1), g.min[1], both);
    }
    return _mm512_fmadd_ps(both, scale, acc);
  } else {
    const __m512i start = Format::kHasMin ? zero : _mm512_slli_epi32(sum, kShift);
    const __m512i dot = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, g.q[0], q0), g.q[1], q1);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(g.scale[0], scale), acc);
    if constexpr (Format::kHasMin) {
      acc = _mm512_fmadd_ps(g.min[0], _mm512_load_ps(act.scaled_sum), acc);
    }
    return acc;
  }
}

// Rows w and, for two streams, w + stream_bytes: y[t * y_stride] and y[t * y_stride + y_step].
template <typename Decoder, size_t kStreams, size_t kTokens>
inline void DotRows(const uint8_t* w, size_t stream_bytes, size_t y_step, const MatmulCall& call,
                    float* y) {
  const auto* act = reinterpret_cast<const VectorGroup*>(call.act);
  const size_t token_groups = VectorGroups(call.k);
  __m512 acc[kStreams][kTokens];
#pragma GCC unroll 2
  for (size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) acc[s][t] = _mm512_setzero_ps();
  }
  ForEachStep<Decoder>(
      call.k, [&](auto source, size_t column, size_t offset) __attribute__((always_inline)) {
        const VectorGroup* groups = act + column / kGroupColumns;
#pragma GCC unroll 2
        for (size_t s = 0; s < kStreams; ++s) {
          const uint8_t* p = w + s * stream_bytes + offset;
          PrefetchAhead<kStepBytes<Decoder>>(p);
          Group g[Decoder::kGroups];
          Decoder::Decode(source, p, g);
#pragma GCC unroll 2
          for (size_t i = 0; i < Decoder::kGroups; ++i) {
#pragma GCC unroll 4
            for (size_t t = 0; t < kTokens; ++t) {
              acc[s][t] = AddGroup<Decoder>(g[i], groups[t * token_groups + i], acc[s][t]);
            }
          }
        }
      });
#pragma GCC unroll 2
  for (size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      y[t * call.y_stride + s * y_step] = _mm512_reduce_add_ps(acc[s][t]);
    }
  }
}

template <typename Decoder, size_t kTokens>
inline void MatmulVectors(const MatmulCall& call) {
  const auto* w = reinterpret_cast<const uint8_t*>(call.w);
  const size_t num_rows = call.row_end - call.row_begin, half = num_rows / 2;
  for (size_t r = call.row_begin; r < call.row_begin + half; ++r) {
    DotRows<Decoder, 2, kTokens>(w + r * call.row_bytes, half * call.row_bytes, half, call,
                                 call.y + r);
  }
  if (num_rows % 2 != 0) {
    const size_t last = call.row_end - 1;
    DotRows<Decoder, 1, kTokens>(w + last * call.row_bytes, 0, 0, call, call.y + last);
  }
}

}  // namespace
}  // namespace tael::kernels
