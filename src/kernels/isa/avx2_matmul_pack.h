// Packed activations of the avx2 matrix products: symmetric int8, one scale per 32 values.
//
// Format kVectors, for one to four tokens: per token, a VectorBlock per 32 columns, and sums. For
// more, per 4 tokens (the last tile is filled up with zeros) and 32 columns, a TileBlock (kTiles),
// or a WideTileBlock (kWideTiles) for weights of signed bytes. Matrices that share an input and a
// format share its packing.
#pragma once

#include "kernels/isa/avx2_matmul_decode.h"

namespace tael::kernels {
namespace {

constexpr ActFormat kVectors{1};
constexpr ActFormat kTiles{2};
constexpr ActFormat kWideTiles{3};

constexpr size_t kMostVectors = 4;  // tokens that get the bits each would get alone
constexpr size_t kActBlock = 32;    // activations that share a scale
constexpr size_t kTileTokens = 4;

struct alignas(32) VectorBlock {
  int8_t q[kActBlock];
  float scale[8];  // all the same
  // Eight times the sums of columns 2n and 2n + 1: what a row of eights would get from maddubs.
  int16_t eight_pairs[kActBlock / 2];
  float scaled_sum[4];  // of all columns, all the same
};

// After a token's VectorBlocks, its scaled sums once more: of the first 16 columns of each block,
// then of the last 16 of each.
TAEL_INLINE size_t VectorBytes(size_t k) {
  const size_t sums = 2 * (k / kActBlock) * sizeof(float);
  return k / kActBlock * sizeof(VectorBlock) +
         (sums + alignof(VectorBlock) - 1) / alignof(VectorBlock) * alignof(VectorBlock);
}

// [half]: of the first and last 16 of the 32 columns, for formats with two scales.
struct alignas(32) TileBlock {
  int8_t q[kTileTokens][kActBlock];
  float scale[kTileTokens];
  float scaled_sum[kTileTokens];
  float scaled_sum_half[2][kTileTokens];
  // Of all columns and of the first 16, the sum of columns 4n and 4n + 1 and that of 4n + 2 and
  // 4n + 3, negated: what a row of ones would get from maddubs.
  int16_t minus_pairs[2][kTileTokens][2];
};

// In each group of four, columns 0, 2, 1, 3.
struct alignas(32) WideTileBlock {
  int16_t q[kTileTokens][kActBlock];
  float scale[kTileTokens];
};

template <bool kSigned>
struct TileBlockFor {
  using Type = TileBlock;
};
template <>
struct TileBlockFor<true> {
  using Type = WideTileBlock;
};

TAEL_INLINE float MaxOf8(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// scale = max|x| / 127; q = x * (127 / max|x|), rounded to nearest even: the same operations on
// every ISA, so the same bits. Returns the scale.
TAEL_INLINE float Quantise(const float* x, __m256i* q) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  __m256 v[4], max = _mm256_setzero_ps();
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    max = _mm256_max_ps(max, _mm256_andnot_ps(sign, v[i]));
  }
  const float most = MaxOf8(max);
  if (!(most >= kLeastActivation)) {
    *q = _mm256_setzero_si256();
    return 0;
  }
  const __m256 factor = _mm256_set1_ps(127.0f / most), limit = _mm256_set1_ps(127.0f);
  __m256i n[4];
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    const __m256 ratio = _mm256_min_ps(_mm256_mul_ps(v[i], factor), limit);
    n[i] = _mm256_cvtps_epi32(_mm256_max_ps(ratio, _mm256_xor_ps(limit, sign)));
  }
  // The packs interleave 128-bit halves; the permute puts groups of four back in order.
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
  *q = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  return most / 127.0f;
}

// The sum of the even 16-bit lanes and that of the odd ones.
struct PairSums {
  int16_t v[2];
};
TAEL_INLINE PairSums SumEvenAndOdd(__m128i v) {
  v = _mm_add_epi16(v, _mm_shuffle_epi32(v, 0x4e));
  const int both = _mm_cvtsi128_si32(_mm_add_epi16(v, _mm_shuffle_epi32(v, 0xb1)));
  PairSums sums;
  __builtin_memcpy(&sums, &both, sizeof sums);
  return sums;
}

// One token.
inline void PackVector(const float* x, size_t k, std::byte* out) {
  auto* blocks = reinterpret_cast<VectorBlock*>(out);
  const size_t num_blocks = k / kActBlock;
  auto* sums = reinterpret_cast<float*>(blocks + num_blocks);
  for (size_t i = 0; i < num_blocks; ++i) {
    __m256i q;
    const float scale = Quantise(x + i * kActBlock, &q);
    const __m256i pairs = _mm256_maddubs_epi16(Splat(1), q);
    const PairSums first = SumEvenAndOdd(_mm256_castsi256_si128(pairs));
    const PairSums last = SumEvenAndOdd(_mm256_extracti128_si256(pairs, 1));
    sums[i] = scale * static_cast<float>(first.v[0] + first.v[1]);
    sums[num_blocks + i] = scale * static_cast<float>(last.v[0] + last.v[1]);
    VectorBlock& block = blocks[i];
    _mm256_store_si256(reinterpret_cast<__m256i*>(block.q), q);
    _mm256_store_ps(block.scale, _mm256_set1_ps(scale));
    _mm256_store_si256(reinterpret_cast<__m256i*>(block.eight_pairs), _mm256_slli_epi16(pairs, 3));
    _mm_store_ps(block.scaled_sum, _mm_set1_ps(scale * static_cast<float>(first.v[0] + first.v[1] +
                                                                          last.v[0] + last.v[1])));
  }
}

inline void PackToken(__m256i q, float scale, size_t t, TileBlock* out) {
  const __m256i pairs = _mm256_maddubs_epi16(Splat(1), q);
  const PairSums first = SumEvenAndOdd(_mm256_castsi256_si128(pairs));
  const PairSums last = SumEvenAndOdd(_mm256_extracti128_si256(pairs, 1));
  int sums[2] = {};
  for (size_t i = 0; i < 2; ++i) {
    out->minus_pairs[0][t][i] = static_cast<int16_t>(-(first.v[i] + last.v[i]));
    out->minus_pairs[1][t][i] = static_cast<int16_t>(-first.v[i]);
    sums[0] += first.v[i];
    sums[1] += last.v[i];
  }
  _mm256_store_si256(reinterpret_cast<__m256i*>(out->q[t]), q);
  out->scale[t] = scale;
  out->scaled_sum[t] = scale * static_cast<float>(sums[0] + sums[1]);
  out->scaled_sum_half[0][t] = scale * static_cast<float>(sums[0]);
  out->scaled_sum_half[1][t] = scale * static_cast<float>(sums[1]);
}

inline void PackToken(__m256i q, float scale, size_t t, WideTileBlock* out) {
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  q = _mm256_shuffle_epi8(q, order);
  auto* to = reinterpret_cast<__m256i*>(out->q[t]);
  _mm256_store_si256(to, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(q)));
  _mm256_store_si256(to + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(q, 1)));
  out->scale[t] = scale;
}

// The tiles of PackCall's tokens.
template <typename Block>
inline void PackTiles(const PackCall& call) {
  const size_t num_blocks = call.k / kActBlock;
  for (size_t token = call.token_begin; token < call.token_end; token += kTileTokens) {
    Block* out = reinterpret_cast<Block*>(call.out) + token / kTileTokens * num_blocks;
    for (size_t i = 0; i < num_blocks; ++i, ++out) {
      for (size_t t = 0; t < kTileTokens; ++t) {
        __m256i q = _mm256_setzero_si256();
        float scale = 0;
        if (token + t < call.token_end) {
          scale = Quantise(call.x + (token + t) * call.x_stride + i * kActBlock, &q);
        }
        PackToken(q, scale, t, out);
      }
    }
  }
}

inline void PackAct(ActFormat format, const PackCall& call) {
  const size_t k = call.k;
  if (format == kVectors) {
    for (size_t t = call.token_begin; t < call.token_end; ++t) {
      PackVector(call.x + t * call.x_stride, k, call.out + t * VectorBytes(k));
    }
    return;
  }
  if (format == kTiles) return PackTiles<TileBlock>(call);
  if (format == kWideTiles) return PackTiles<WideTileBlock>(call);
  for (size_t t = call.token_begin; t < call.token_end; ++t) {
    __builtin_memcpy(call.out + t * k * sizeof(float), call.x + t * call.x_stride,
                     k * sizeof(float));
  }
}

// Of weights in signed bytes.
inline bool IsSigned(WeightType type) {
  bool is_signed = false;
  ForEachDecoder([&]<typename Decoder>() {
    if (Decoder::Format::kType == type) is_signed = Decoder::kSigned;
  });
  return is_signed;
}

inline ActFormat FormatFor(WeightType type, size_t num_tokens) {
  if (IsFloatType(type)) return ActFormat::kF32Rows;
  if (num_tokens <= kMostVectors) return kVectors;
  return IsSigned(type) ? kWideTiles : kTiles;
}

inline size_t TileTokens(ActFormat format) {
  return format == kTiles || format == kWideTiles ? kTileTokens : 1;
}

inline size_t ActBytes(ActFormat format, size_t num_tokens, size_t k) {
  const size_t tiles = (num_tokens + kTileTokens - 1) / kTileTokens, blocks = k / kActBlock;
  if (format == kVectors) return num_tokens * VectorBytes(k);
  if (format == kTiles) return tiles * blocks * sizeof(TileBlock);
  if (format == kWideTiles) return tiles * blocks * sizeof(WideTileBlock);
  return num_tokens * k * sizeof(float);
}

}  // namespace
}  // namespace tael::kernels
