// Packed activations of the avx512 matrix products: symmetric int8, one scale per 32 values.
//
// Format kVectors, for one to four tokens. Per token, per 128 columns, in the order of the
// decoders:
//
//   q[0] 64 | q[1] 64 | -sum 16 i32 | -sum of q[1] 16 i32 | scale 16 f32 | scale * sum 16 f32
//
// with one entry per 4-byte lane; sums are over the lane's values of q[0] and q[1]. A row length
// that is no multiple of 128 is filled up with zeros.
//
// Format kTiles, for more tokens. Per 16 tokens (the last tile is filled up with zeros), per 32
// columns:
//
//   q [16][32] | Side: 16 entries, one per token, of each of its members
//
// Both serve every weight type, so that matrices that share an input share its packing.
#pragma once

#include "kernels/isa/avx512_matmul_decode.h"

namespace tael::kernels {
namespace {

constexpr ActFormat kVectors{1};
constexpr ActFormat kTiles{2};

// Dot products along k keep pace with unpacked panels up to four tokens (Zen 4, one thread, G MAC/s
// at 4: Q4_0 65 against 71, Q8_0 64 against 48, Q6_K 45 against 35) and, unlike those, give each
// token the bits it would get alone; so speculation and small batches change no answer.
constexpr size_t kMostVectors = 4;
constexpr size_t kActBlock = 32;  // activations that share a scale
constexpr size_t kTileTokens = 16;
constexpr int kPanelBias = 128;  // panels hold weights + 128, so one start value serves all types

struct alignas(64) VectorGroup {
  int8_t q[2][64];
  int32_t minus_sum[16];
  int32_t minus_sum_high[16];
  float scale[16];
  float scaled_sum[16];
};

// [half]: of the first and last 16 of the 32 columns, for formats with two scales.
struct alignas(64) TileBlock {
  int8_t q[kTileTokens][kActBlock];
  float scale[kTileTokens];
  int32_t start[kTileTokens];  // -kPanelBias * sum
  float scaled_sum[kTileTokens];
  int32_t start_half[2][kTileTokens];
  float scaled_sum_half[2][kTileTokens];
};

constexpr size_t VectorGroups(size_t k) { return (k + kGroupColumns - 1) / kGroupColumns; }

struct QuantisedBlock {
  __m128i half[2];  // 32 values
  float scale;
};

// q = round to nearest even of x / scale: a true division, so that every ISA gets the same bits.
TAEL_INLINE QuantisedBlock Quantise(const float* x) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const float max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  const float scale = max / 127.0f;
  const __mmask16 any = scale > 0 ? 0xffff : 0;
  const __m512 divisor = _mm512_set1_ps(scale), limit = _mm512_set1_ps(127.0f);
  const __m512 minus_limit = _mm512_set1_ps(-127.0f);
  const auto round = [&](__m512 v) __attribute__((always_inline)) {
    const __m512 ratio = _mm512_maskz_div_ps(any, v, divisor);
    const __m512 clamped = _mm512_max_ps(_mm512_min_ps(ratio, limit), minus_limit);
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(clamped));
  };
  return {{round(a), round(b)}, scale};
}

TAEL_INLINE int SumBytes(__m128i v) {
  const __m128i sums = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), v);
  const __m128i pairs = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(pairs, _mm_shuffle_epi32(pairs, 0xb1)));
}

inline void PackVector(const float* x, size_t k, VectorGroup* out) {
  for (size_t g = 0; g < VectorGroups(k); ++g, ++out) {
    for (size_t block = 0; block < 4; ++block) {
      const size_t column = g * kGroupColumns + block * kActBlock;
      QuantisedBlock v{{_mm_setzero_si128(), _mm_setzero_si128()}, 0};
      if (column < k) v = Quantise(x + column);
      for (size_t half = 0; half < 2; ++half) {
        _mm_store_si128(reinterpret_cast<__m128i*>(out->q[half] + 16 * block), v.half[half]);
      }
      _mm_store_ps(out->scale + 4 * block, _mm_set1_ps(v.scale));
    }
    const __m512i zero = _mm512_setzero_si512(), one = Splat(1);
    const __m512i low = _mm512_dpbusd_epi32(zero, one, _mm512_load_si512(out->q[0]));
    const __m512i high = _mm512_dpbusd_epi32(zero, one, _mm512_load_si512(out->q[1]));
    const __m512i sum = _mm512_add_epi32(low, high);
    _mm512_store_si512(out->minus_sum, _mm512_sub_epi32(zero, sum));
    _mm512_store_si512(out->minus_sum_high, _mm512_sub_epi32(zero, high));
    _mm512_store_ps(out->scaled_sum,
                    _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_load_ps(out->scale)));
  }
}

TAEL_INLINE void StoreTileToken(const QuantisedBlock& v, size_t t, TileBlock* out) {
  const int low = SumBytes(v.half[0]), high = SumBytes(v.half[1]);
  _mm_store_si128(reinterpret_cast<__m128i*>(out->q[t]), v.half[0]);
  _mm_store_si128(reinterpret_cast<__m128i*>(out->q[t] + 16), v.half[1]);
  out->scale[t] = v.scale;
  out->start[t] = -kPanelBias * (low + high);
  out->scaled_sum[t] = v.scale * static_cast<float>(low + high);
  out->start_half[0][t] = -kPanelBias * low;
  out->start_half[1][t] = -kPanelBias * high;
  out->scaled_sum_half[0][t] = v.scale * static_cast<float>(low);
  out->scaled_sum_half[1][t] = v.scale * static_cast<float>(high);
}

// One tile of up to 16 tokens.
inline void PackTile(const float* x, size_t x_stride, size_t num_tokens, size_t k, TileBlock* out) {
  for (size_t column = 0; column < k; column += kActBlock, ++out) {
    size_t t = 0;
    for (; t < num_tokens; ++t) StoreTileToken(Quantise(x + t * x_stride + column), t, out);
    for (; t < kTileTokens; ++t) {
      StoreTileToken({{_mm_setzero_si128(), _mm_setzero_si128()}, 0}, t, out);
    }
  }
}

inline void PackAct(ActFormat format, const PackCall& call) {
  const size_t k = call.k;
  if (format == kVectors) {
    auto* vectors = reinterpret_cast<VectorGroup*>(call.out);
    for (size_t t = call.token_begin; t < call.token_end; ++t) {
      PackVector(call.x + t * call.x_stride, k, vectors + t * VectorGroups(k));
    }
    return;
  }
  if (format == kTiles) {
    auto* tiles = reinterpret_cast<TileBlock*>(call.out);
    for (size_t t = call.token_begin; t < call.token_end; t += kTileTokens) {
      const size_t left = call.token_end - t;
      PackTile(call.x + t * call.x_stride, call.x_stride, left < kTileTokens ? left : kTileTokens,
               k, tiles + t / kTileTokens * (k / kActBlock));
    }
    return;
  }
  for (size_t t = call.token_begin; t < call.token_end; ++t) {
    __builtin_memcpy(call.out + t * k * sizeof(float), call.x + t * call.x_stride,
                     k * sizeof(float));
  }
}

inline ActFormat FormatFor(WeightType type, size_t num_tokens) {
  if (IsFloatType(type)) return ActFormat::kF32Rows;
  return num_tokens <= kMostVectors ? kVectors : kTiles;
}

inline size_t TileTokens(ActFormat format) { return format == kTiles ? kTileTokens : 1; }

inline size_t ActBytes(ActFormat format, size_t num_tokens, size_t k) {
  if (format == kVectors) return num_tokens * VectorGroups(k) * sizeof(VectorGroup);
  if (format == kTiles) {
    return (num_tokens + kTileTokens - 1) / kTileTokens * (k / kActBlock) * sizeof(TileBlock);
  }
  return num_tokens * k * sizeof(float);
}

}  // namespace
}  // namespace tael::kernels
