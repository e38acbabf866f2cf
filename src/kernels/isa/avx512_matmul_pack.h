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
// Format kTiles, for more tokens. Per 16 tokens (the last tile is filled up with zeros):
//
//   TileBlock [k / 32] | TileHalves [k / 32]
//
// The halves serve formats with two scales per 32 columns; the others do not read them.
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
constexpr int kPanelBiasShift = 7;  // panels hold weights + 128: one start value for all types

struct alignas(64) VectorGroup {
  int8_t q[2][64];
  int32_t minus_sum[16];
  int32_t minus_sum_high[16];
  float scale[16];
  float scaled_sum[16];
};

struct alignas(64) TileBlock {
  int8_t q[kTileTokens][kActBlock];
  float scale[kTileTokens];
  int32_t start[kTileTokens];  // -128 * sum
  float scaled_sum[kTileTokens];
};

// [half]: of the first and last 16 of the 32 columns.
struct alignas(64) TileHalves {
  int32_t start[2][kTileTokens];
  float scaled_sum[2][kTileTokens];
};

struct TileView {
  const TileBlock* block;
  const TileHalves* halves;
};

constexpr size_t TileBytes(size_t num_blocks) {
  return num_blocks * (sizeof(TileBlock) + sizeof(TileHalves));
}

TAEL_INLINE TileView TileOf(const std::byte* act, size_t tile, size_t num_blocks) {
  const std::byte* at = act + tile * TileBytes(num_blocks);
  return {reinterpret_cast<const TileBlock*>(at),
          reinterpret_cast<const TileHalves*>(at + num_blocks * sizeof(TileBlock))};
}

constexpr size_t VectorGroups(size_t k) { return (k + kGroupColumns - 1) / kGroupColumns; }

struct QuantisedBlock {
  __m128i half[2];  // 32 values
  float scale;
};

// scale = max|x| / 127; q = x * (127 / max|x|), rounded to nearest even: the same operations on
// every ISA, so the same bits.
TAEL_INLINE QuantisedBlock Quantise(const float* x) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const float max = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(a), _mm512_abs_ps(b)));
  const bool any = max >= kLeastActivation;
  const __m512 factor = _mm512_set1_ps(any ? 127.0f / max : 0.0f);
  const __m512 limit = _mm512_set1_ps(127.0f), minus_limit = _mm512_set1_ps(-127.0f);
  const auto round = [&](__m512 v) __attribute__((always_inline)) {
    const __m512 ratio = _mm512_min_ps(_mm512_mul_ps(v, factor), limit);
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_max_ps(ratio, minus_limit)));
  };
  return {{round(a), round(b)}, any ? max / 127.0f : 0.0f};
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

// Sums of the 16 bytes of each of four registers.
TAEL_INLINE __m128i SumBytes(const __m128i (&v)[4]) {
  __m128i sums[4];
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    sums[i] = _mm_dpbusd_epi32(_mm_setzero_si128(), _mm_set1_epi8(1), v[i]);
  }
  return _mm_hadd_epi32(_mm_hadd_epi32(sums[0], sums[1]), _mm_hadd_epi32(sums[2], sums[3]));
}

// Four tokens from t on, of which the first num_tokens exist.
TAEL_INLINE void PackFour(const float* x, size_t x_stride, size_t num_tokens, size_t t,
                          TileBlock* block, TileHalves* halves) {
  __m128i low[4], high[4];
  alignas(16) float scale[4];
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    QuantisedBlock v{{_mm_setzero_si128(), _mm_setzero_si128()}, 0};
    if (i < num_tokens) v = Quantise(x + i * x_stride);
    low[i] = v.half[0];
    high[i] = v.half[1];
    scale[i] = v.scale;
    _mm_store_si128(reinterpret_cast<__m128i*>(block->q[t + i]), low[i]);
    _mm_store_si128(reinterpret_cast<__m128i*>(block->q[t + i] + 16), high[i]);
  }
  const __m128 scales = _mm_load_ps(scale);
  const __m128i sum[2] = {SumBytes(low), SumBytes(high)};
  const auto store = [&](__m128i of, int32_t * start, float* scaled)
      __attribute__((always_inline)) {
    const __m128i minus = _mm_sub_epi32(_mm_setzero_si128(), of);
    _mm_store_si128(reinterpret_cast<__m128i*>(start + t), _mm_slli_epi32(minus, kPanelBiasShift));
    _mm_store_ps(scaled + t, _mm_mul_ps(scales, _mm_cvtepi32_ps(of)));
  };
  _mm_store_ps(block->scale + t, scales);
  store(_mm_add_epi32(sum[0], sum[1]), block->start, block->scaled_sum);
#pragma GCC unroll 2
  for (size_t half = 0; half < 2; ++half) {
    store(sum[half], halves->start[half], halves->scaled_sum[half]);
  }
}

// One tile of up to 16 tokens.
inline void PackTile(const float* x, size_t x_stride, size_t num_tokens, size_t k, std::byte* out) {
  const size_t num_blocks = k / kActBlock;
  auto* block = reinterpret_cast<TileBlock*>(out);
  auto* halves = reinterpret_cast<TileHalves*>(out + num_blocks * sizeof(TileBlock));
  for (size_t i = 0; i < num_blocks; ++i, ++block, ++halves, x += kActBlock) {
    for (size_t t = 0; t < kTileTokens; t += 4) {
      const size_t left = t < num_tokens ? num_tokens - t : 0;
      PackFour(x + t * x_stride, x_stride, left, t, block, halves);
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
    for (size_t t = call.token_begin; t < call.token_end; t += kTileTokens) {
      const size_t left = call.token_end - t;
      PackTile(call.x + t * call.x_stride, call.x_stride, left < kTileTokens ? left : kTileTokens,
               k, call.out + t / kTileTokens * TileBytes(k / kActBlock));
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
    return (num_tokens + kTileTokens - 1) / kTileTokens * TileBytes(k / kActBlock);
  }
  return num_tokens * k * sizeof(float);
}

}  // namespace
}  // namespace tael::kernels
