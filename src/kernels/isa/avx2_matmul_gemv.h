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

// With kHeld, a value that the compiler has to keep in a register: it would rather load it again
// for each row, and loads are what the loop over one token's blocks has most of.
template <bool kHeld>
TAEL_INLINE __m256i InRegister(__m256i v) {
  if constexpr (kHeld) asm("" : "+x"(v));
  return v;
}

// What all rows share of a token's block of 32 columns.
template <typename Decoder, bool kHeld>
struct Columns {
  __m256i q;
  __m256i bias_pairs;  // kBias times the sums of pairs
  __m256 scale;
  TAEL_INLINE explicit Columns(const VectorBlock& block)
      : q(InRegister<kHeld>(Load(block.q))),
        scale(_mm256_castsi256_ps(InRegister<kHeld>(Load(block.scale)))) {
    if constexpr (Decoder::kBias != 0) {
      const __m256i eights = Load(block.eight_pairs);
      constexpr int kShift = Decoder::kBias == 32 ? 2 : Decoder::kBias == 16 ? 1 : 0;
      bias_pairs = InRegister<kHeld>(Decoder::kBias == 4 ? _mm256_srai_epi16(eights, 1)
                                                         : _mm256_slli_epi16(eights, kShift));
    }
  }
  // 16 sums of 2 products, less the bias. Both fit 16 bits: 63 * 127 * 2, and with signed weights,
  // whose sign moves to the activation, 128 * 127 * 2 = 32512.
  TAEL_INLINE __m256i Pairs(__m256i rows) const {
    if constexpr (Decoder::kSigned) {
      return _mm256_maddubs_epi16(_mm256_abs_epi8(rows), _mm256_sign_epi8(q, rows));
    }
    const __m256i pairs = _mm256_maddubs_epi16(rows, q);
    return Decoder::kBias == 0 ? pairs : _mm256_sub_epi16(pairs, bias_pairs);
  }
};

// The running sums of one row and token: of products in 8 lanes, and of minimums, whose lanes that
// count a format knows.
struct RowSum {
  __m256 dots = _mm256_setzero_ps();
  __m256 mins = _mm256_setzero_ps();
};

// A token's activations: its blocks, and behind them the sums of VectorBytes().
struct Vector {
  const VectorBlock* blocks;
  const float* sums;
  size_t num_blocks;
};

// Adds block number i, of 32 columns: f16 scale, then perhaps f16 minimum.
template <typename Decoder, size_t kStreams, size_t kTokens>
TAEL_INLINE void AddBlocks(
    const uint8_t* w, size_t stream_bytes, const Vector (&act)[kTokens], size_t i,
    RowSum (*sum)[kTokens]) requires(kShapeOf<typename Decoder::Format>.elements == kActBlock) {
  __m256i rows[kStreams];
  __m128 floats[kStreams];
#pragma GCC unroll 2
  for (size_t s = 0; s < kStreams; ++s, w += stream_bytes) {
    rows[s] = Decoder::Quants(w);
    floats[s] = _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(w)));
  }
#pragma GCC unroll 2
  for (size_t t = 0; t < kTokens; ++t) {
    const Columns<Decoder, kTokens == 1> columns(act[t].blocks[i]);
#pragma GCC unroll 2
    for (size_t s = 0; s < kStreams; ++s) {
      const __m256i dot = _mm256_madd_epi16(columns.Pairs(rows[s]), _mm256_set1_epi16(1));
      const __m256 scale = _mm256_mul_ps(_mm256_broadcastss_ps(floats[s]), columns.scale);
      sum[s][t].dots = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, sum[s][t].dots);
      if constexpr (Decoder::Format::kHasMin) {
        const __m128 mins = _mm_fmadd_ps(floats[s], _mm_load_ps(act[t].blocks[i].scaled_sum),
                                         _mm256_castps256_ps128(sum[s][t].mins));
        sum[s][t].mins = _mm256_castps128_ps256(mins);
      }
    }
  }
}

// The whole-number scales of 256 columns: what madd multiplies pairs of the i-th 32 by.
template <typename Decoder>
struct Factors {
  static constexpr bool kTwo = Decoder::Format::kTwoScales;
  __m256i words[kTwo ? 2 : 1];
  TAEL_INLINE explicit Factors(const uint8_t* p) {
    const __m128i bytes = Decoder::Scales(p);
    words[0] = _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(bytes));
    if constexpr (kTwo) {
      words[1] = _mm256_broadcastsi128_si256(_mm_cvtepi8_epi16(_mm_unpackhi_epi64(bytes, bytes)));
    }
  }
  TAEL_INLINE __m256i Of(int i) const {
    const int low = kTwo ? i % 4 * 2 : i, high = kTwo ? low + 1 : low;
    const auto copy = [](int word) { return static_cast<int16_t>((2 * word + 1) << 8 | 2 * word); };
    return _mm256_shuffle_epi8(
        words[kTwo ? i / 4 : 0],
        _mm256_set_m128i(_mm_set1_epi16(copy(high)), _mm_set1_epi16(copy(low))));
  }
};

// Whole-number minimums of 256 columns times the sums of a token's blocks from i on.
template <typename Decoder>
TAEL_INLINE __m256 TimesSums(__m128i mins, const Vector& act, size_t i) {
  const __m256 first = _mm256_loadu_ps(act.sums + i);
  const __m256 last = _mm256_loadu_ps(act.sums + act.num_blocks + i);
  if constexpr (!Decoder::Format::kTwoScales) {
    return _mm256_mul_ps(FloatsFromBytes(mins), _mm256_add_ps(first, last));
  }
  const __m128i even = _mm_and_si128(mins, _mm_set1_epi16(0xff)), odd = _mm_srli_epi16(mins, 8);
  const __m256 odds = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(odd)), last);
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(even)), first, odds);
}

// Adds blocks number i to i + 7, which share an f16 scale and perhaps an f16 minimum.
template <typename Decoder, size_t kStreams, size_t kTokens>
TAEL_INLINE void AddBlocks(
    const uint8_t* w, size_t stream_bytes, const Vector (&act)[kTokens], size_t i,
    RowSum (*sum)[kTokens]) requires(kShapeOf<typename Decoder::Format>.elements == kMaxBlock) {
#pragma GCC unroll 2
  for (size_t s = 0; s < kStreams; ++s, w += stream_bytes) {
    const Factors<Decoder> factors(w);
    __m256 dots[kTokens];
#pragma GCC unroll 2
    for (size_t t = 0; t < kTokens; ++t) dots[t] = _mm256_setzero_ps();
#pragma GCC unroll 8
    for (int n = 0; n < 8; ++n) {
      const __m256i rows = Decoder::Quants(w, n), factor = factors.Of(n);
#pragma GCC unroll 2
      for (size_t t = 0; t < kTokens; ++t) {
        const Columns<Decoder, false> columns(act[t].blocks[i + static_cast<size_t>(n)]);
        const __m256i dot = _mm256_madd_epi16(columns.Pairs(rows), factor);
        dots[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), columns.scale, dots[t]);
      }
    }
    const __m256 scale = SplatHalf(w + Decoder::kScale);
#pragma GCC unroll 2
    for (size_t t = 0; t < kTokens; ++t) {
      sum[s][t].dots = _mm256_fmadd_ps(dots[t], scale, sum[s][t].dots);
      if constexpr (Decoder::Format::kHasMin) {
        sum[s][t].mins = _mm256_fnmadd_ps(TimesSums<Decoder>(Decoder::Mins(w), act[t], i),
                                          SplatHalf(w + Decoder::kMin), sum[s][t].mins);
      }
    }
  }
}

template <typename Decoder>
TAEL_INLINE float Total(const RowSum& sum) {
  if constexpr (!Decoder::Format::kHasMin) return SumOf8(sum.dots);
  if constexpr (kShapeOf<typename Decoder::Format>.elements == kMaxBlock) {
    return SumOf8(_mm256_add_ps(sum.dots, sum.mins));
  }
  // The second of the lanes, as the minimum is the second f16 of a block.
  return SumOf8(sum.dots) + _mm_cvtss_f32(_mm_movehdup_ps(_mm256_castps256_ps128(sum.mins)));
}

// y[t * call.y_stride + s * y_step] for kTokens tokens and kStreams rows.
template <typename Decoder, size_t kStreams, size_t kTokens>
inline void DotRows(const uint8_t* w, size_t stream_bytes, size_t y_step, const MatmulCall& call,
                    const std::byte* act, float* y) {
  constexpr BlockShape shape = kShapeOf<typename Decoder::Format>;
  Vector vectors[kTokens];
#pragma GCC unroll 2
  for (size_t t = 0; t < kTokens; ++t) {
    const auto* blocks = reinterpret_cast<const VectorBlock*>(act + t * VectorBytes(call.k));
    const size_t num_blocks = call.k / kActBlock;
    vectors[t] = {blocks, reinterpret_cast<const float*>(blocks + num_blocks), num_blocks};
  }
  constexpr size_t kTogether =
      kTokens == 1 ? kStreams : 1;  // two tokens leave no registers for two
  RowSum sums[kStreams][kTokens];
  for (size_t i = 0; i < call.k / kActBlock; i += shape.elements / kActBlock, w += shape.bytes) {
#pragma GCC unroll 2
    for (size_t s = 0; s < kStreams; ++s) {
      const uint8_t* p = w + s * stream_bytes;
#pragma GCC unroll 4
      for (size_t byte = 0; byte < shape.bytes; byte += kCacheLine) {
        _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchAhead + byte), _MM_HINT_T0);
      }
    }
#pragma GCC unroll 2
    for (size_t s = 0; s < kStreams; s += kTogether) {
      AddBlocks<Decoder, kTogether>(w + s * stream_bytes, stream_bytes, vectors, i, sums + s);
    }
  }
#pragma GCC unroll 2
  for (size_t s = 0; s < kStreams; ++s) {
#pragma GCC unroll 2
    for (size_t t = 0; t < kTokens; ++t) {
      y[t * call.y_stride + s * y_step] = Total<Decoder>(sums[s][t]);
    }
  }
}

template <typename Decoder, size_t kStreams>
inline void DotRowsOfAll(const uint8_t* w, size_t stream_bytes, size_t y_step,
                         const MatmulCall& call, float* y) {
  const size_t token_bytes = VectorBytes(call.k);
  size_t t = 0;
  for (; t + 2 <= call.num_tokens; t += 2) {
    DotRows<Decoder, kStreams, 2>(w, stream_bytes, y_step, call, call.act + t * token_bytes,
                                  y + t * call.y_stride);
  }
  if (t < call.num_tokens) {
    DotRows<Decoder, kStreams, 1>(w, stream_bytes, y_step, call, call.act + t * token_bytes,
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
