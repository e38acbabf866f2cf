// Products for five tokens and more with SDOT by lane: 8 rows x 4 tokens in registers.
// Private to dotprod_matmul.cpp; internal linkage only.
//
// Eight rows are unpacked once into a panel in scratch, which stays in L1/L2 while all tokens pass:
//
//   per 32 columns:  q[k / 4 = 8][8 rows][4] | scale[8 rows] | scale of the upper 16 [8 rows]
//                                            | min[8 rows]   | min of the upper 16 [8 rows]
//   (the parts a format does not have are left out)
//
// Packed activations, format kTiles, per tile of 4 tokens and 32 columns:
//
//   q[k / 4 = 8][4 tokens][4] | scale[4] | sum[4] | sum of the lower 16 [4] | of the upper 16 [4]
//
// One load holds 4 columns of 4 tokens, and SDOT picks a token by lane: no broadcast, and no sum
// across lanes at the end. 64 SDOT and 24 other vector instructions multiply 8 x 4 x 32 values.
#pragma once

#include <arm_neon.h>

#include "kernels/isa/neon_matmul.h"

namespace tael::kernels {
namespace {

constexpr ActFormat kTiles{2};
constexpr size_t kTileTokens = 4;
constexpr size_t kPanelRows = 8;
// Below, unpacking costs more than it saves: a panel block costs about as many instructions to
// unpack as two tiles to multiply.
constexpr size_t kPanelTokens = 5;
constexpr size_t kTileBlockBytes = 32 * kTileTokens + 4 * kTileTokens * sizeof(float);
constexpr size_t kPanelVector = kPanelRows * sizeof(float);

template <bool kHasMin, bool kTwoScales>
constexpr size_t kPanelBlockBytes = 32 * kPanelRows +
                                    kPanelVector*(kTwoScales ? 2 : 1) * (kHasMin ? 2 : 1);

// ---- activations ----

// 32 values of one token into their place in a tile. x is null for a token that pads the tile.
void PackTileToken(const float* x, size_t token, std::byte* block) {
  alignas(16) int8_t q[32] = {};
  float scale = 0.0f;
  if (x != nullptr) scale = QuantizeBlock(x, q);
  auto* bytes = reinterpret_cast<int8_t*>(block) + 4 * token;
  for (size_t i = 0; i < 8; ++i) __builtin_memcpy(bytes + 4 * kTileTokens * i, q + 4 * i, 4);
  const int first = vaddlvq_s8(vld1q_s8(q)), second = vaddlvq_s8(vld1q_s8(q + 16));
  auto* floats = reinterpret_cast<float*>(block + 32 * kTileTokens) + token;
  floats[0] = scale;
  floats[4] = scale * static_cast<float>(first + second);
  floats[8] = scale * static_cast<float>(first);
  floats[12] = scale * static_cast<float>(second);
}

void PackTiles(const PackCall& call) {
  const size_t num_blocks = call.k / kActBlock;
  for (size_t begin = call.token_begin; begin < call.token_end; begin += kTileTokens) {
    std::byte* tile = call.out + begin / kTileTokens * num_blocks * kTileBlockBytes;
    for (size_t t = 0; t < kTileTokens; ++t) {
      const bool exists = begin + t < call.num_tokens;
      for (size_t b = 0; b < num_blocks; ++b) {
        const float* x = exists ? call.x + (begin + t) * call.x_stride + b * kActBlock : nullptr;
        PackTileToken(x, t, tile + b * kTileBlockBytes);
      }
    }
  }
}

// ---- the panel ----

// Sixteen columns of four rows become [k / 4 = 4][4 rows][4], rows 32 bytes apart.
TAEL_INLINE void StoreTransposed(const int8x16_t* w, int8_t* out) {
  const int32x4_t r0 = vreinterpretq_s32_s8(w[0]), r1 = vreinterpretq_s32_s8(w[1]);
  const int32x4_t r2 = vreinterpretq_s32_s8(w[2]), r3 = vreinterpretq_s32_s8(w[3]);
  const int64x2_t even01 = vreinterpretq_s64_s32(vtrn1q_s32(r0, r1));
  const int64x2_t odd01 = vreinterpretq_s64_s32(vtrn2q_s32(r0, r1));
  const int64x2_t even23 = vreinterpretq_s64_s32(vtrn1q_s32(r2, r3));
  const int64x2_t odd23 = vreinterpretq_s64_s32(vtrn2q_s32(r2, r3));
  constexpr size_t kStep = 4 * kPanelRows;
  vst1q_s8(out, vreinterpretq_s8_s64(vtrn1q_s64(even01, even23)));
  vst1q_s8(out + kStep, vreinterpretq_s8_s64(vtrn1q_s64(odd01, odd23)));
  vst1q_s8(out + 2 * kStep, vreinterpretq_s8_s64(vtrn2q_s64(even01, even23)));
  vst1q_s8(out + 3 * kStep, vreinterpretq_s8_s64(vtrn2q_s64(odd01, odd23)));
}

// 32 columns of eight rows.
template <typename Format>
TAEL_INLINE void UnpackValues(const uint8_t* const (&rows)[kPanelRows], size_t s, std::byte* out) {
  auto* q = reinterpret_cast<int8_t*>(out);
#pragma GCC unroll 2
  for (size_t quad = 0; quad < 2; ++quad) {
    int8x16_t lo[4], hi[4];
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; ++r) {
      const Values32 v = NeonBlock<Format>::Values(rows[4 * quad + r], s);
      lo[r] = v.lo;
      hi[r] = v.hi;
    }
    StoreTransposed(lo, q + 16 * quad);
    StoreTransposed(hi, q + 16 * quad + 16 * kPanelRows);
  }
}

// Eight rows, row_bytes apart; where fewer exist, the last one is repeated.
template <typename Format>
void UnpackPanel(const uint8_t* w, size_t row_bytes, size_t num_rows, size_t k, std::byte* out) {
  constexpr BlockShape kShape = kShapeOf<Format>;
  constexpr size_t kScales = Format::kTwoScales ? 2 : 1;
  const uint8_t* rows[kPanelRows];
  for (size_t r = 0; r < kPanelRows; ++r) {
    rows[r] = w + (r < num_rows ? r : num_rows - 1) * row_bytes;
  }
  for (size_t column = 0; column < k; column += kShape.elements) {
    float scale[kPanelRows][kMaxBlock / kGroup], min[kPanelRows][kMaxBlock / kGroup];
    for (size_t r = 0; r < kPanelRows; ++r) NeonBlock<Format>::Scales(rows[r], scale[r], min[r]);
    for (size_t s = 0; s < kShape.elements / 32; ++s) {
      UnpackValues<Format>(rows, s, out);
      auto* floats = reinterpret_cast<float*>(out + 32 * kPanelRows);
      for (size_t i = 0; i < kScales; ++i) {
        for (size_t r = 0; r < kPanelRows; ++r) {
          floats[i * kPanelRows + r] = scale[r][s * kScales + i];
          if constexpr (Format::kHasMin) {
            floats[(kScales + i) * kPanelRows + r] = min[r][s * kScales + i];
          }
        }
      }
      out += kPanelBlockBytes<Format::kHasMin, Format::kTwoScales>;
    }
    for (const uint8_t*& row : rows) row += kShape.bytes;
  }
}

// ---- the product ----

struct TileSums {
  float32x4_t v[kTileTokens][2];  // [token][row / 4]
};

// Products of kQuarters * 4 columns.
template <size_t kQuarters>
struct ColumnSums {
  int32x4_t v[kTileTokens][2];

  TAEL_INLINE void Compute(const int8_t* w, const int8_t* x) {
#pragma GCC unroll 4
    for (size_t t = 0; t < kTileTokens; ++t) v[t][0] = v[t][1] = vdupq_n_s32(0);
#pragma GCC unroll 8
    for (size_t i = 0; i < kQuarters; ++i) {
      const int8x16_t tokens = vld1q_s8(x + 16 * i);
#pragma GCC unroll 2
      for (size_t quad = 0; quad < 2; ++quad) {
        const int8x16_t rows = vld1q_s8(w + 4 * kPanelRows * i + 16 * quad);
        v[0][quad] = vdotq_laneq_s32(v[0][quad], rows, tokens, 0);
        v[1][quad] = vdotq_laneq_s32(v[1][quad], rows, tokens, 1);
        v[2][quad] = vdotq_laneq_s32(v[2][quad], rows, tokens, 2);
        v[3][quad] = vdotq_laneq_s32(v[3][quad], rows, tokens, 3);
      }
    }
  }

  // acc += v * scale of the row * scale of the token
  TAEL_INLINE void AddTo(TileSums& acc, const float* row_scale, float32x4_t token_scale) const {
#pragma GCC unroll 2
    for (size_t quad = 0; quad < 2; ++quad) {
      const float32x4_t s = vld1q_f32(row_scale + 4 * quad);
      const float32x4_t factor[kTileTokens] = {
          vmulq_laneq_f32(s, token_scale, 0), vmulq_laneq_f32(s, token_scale, 1),
          vmulq_laneq_f32(s, token_scale, 2), vmulq_laneq_f32(s, token_scale, 3)};
#pragma GCC unroll 4
      for (size_t t = 0; t < kTileTokens; ++t) {
        acc.v[t][quad] = vfmaq_f32(acc.v[t][quad], vcvtq_f32_s32(v[t][quad]), factor[t]);
      }
    }
  }
};

TAEL_INLINE void AddPanelMins(TileSums& acc, const float* min, float32x4_t sums) {
#pragma GCC unroll 2
  for (size_t quad = 0; quad < 2; ++quad) {
    const float32x4_t m = vld1q_f32(min + 4 * quad);
    acc.v[0][quad] = vfmaq_laneq_f32(acc.v[0][quad], m, sums, 0);
    acc.v[1][quad] = vfmaq_laneq_f32(acc.v[1][quad], m, sums, 1);
    acc.v[2][quad] = vfmaq_laneq_f32(acc.v[2][quad], m, sums, 2);
    acc.v[3][quad] = vfmaq_laneq_f32(acc.v[3][quad], m, sums, 3);
  }
}

template <bool kHasMin, bool kTwoScales>
TileSums MultiplyTile(const std::byte* panel, const std::byte* tile, size_t num_blocks) {
  TileSums acc;
#pragma GCC unroll 4
  for (size_t t = 0; t < kTileTokens; ++t) acc.v[t][0] = acc.v[t][1] = vdupq_n_f32(0.0f);
  for (size_t b = 0; b < num_blocks; ++b) {
    const auto* w = reinterpret_cast<const int8_t*>(panel);
    const auto* x = reinterpret_cast<const int8_t*>(tile);
    const auto* row = reinterpret_cast<const float*>(panel + 32 * kPanelRows);
    const auto* token = reinterpret_cast<const float*>(tile + 32 * kTileTokens);
    const float32x4_t token_scale = vld1q_f32(token);
    if constexpr (kTwoScales) {
      ColumnSums<4> lower, upper;
      lower.Compute(w, x);
      lower.AddTo(acc, row, token_scale);
      upper.Compute(w + 16 * kPanelRows, x + 16 * kTileTokens);
      upper.AddTo(acc, row + kPanelRows, token_scale);
      if constexpr (kHasMin) {
        AddPanelMins(acc, row + 2 * kPanelRows, vld1q_f32(token + 8));
        AddPanelMins(acc, row + 3 * kPanelRows, vld1q_f32(token + 12));
      }
    } else {
      ColumnSums<8> sums;
      sums.Compute(w, x);
      sums.AddTo(acc, row, token_scale);
      if constexpr (kHasMin) AddPanelMins(acc, row + kPanelRows, vld1q_f32(token + 4));
    }
    panel += kPanelBlockBytes<kHasMin, kTwoScales>;
    tile += kTileBlockBytes;
  }
  return acc;
}

void StoreTile(const TileSums& acc, size_t num_rows, size_t num_tokens, float* y, size_t stride) {
  for (size_t t = 0; t < num_tokens; ++t) {
    float* out = y + t * stride;
    if (num_rows == kPanelRows) {
      vst1q_f32(out, acc.v[t][0]);
      vst1q_f32(out + 4, acc.v[t][1]);
      continue;
    }
    float row[kPanelRows];
    vst1q_f32(row, acc.v[t][0]);
    vst1q_f32(row + 4, acc.v[t][1]);
    for (size_t r = 0; r < num_rows; ++r) out[r] = row[r];
  }
}

// Asks for one share of the next panel's rows per tile: unpacking walks eight short streams, which
// hardware prefetchers lose.
void PrefetchShare(const std::byte* rows, size_t bytes, size_t tile, size_t num_tiles) {
  const size_t begin = bytes * tile / num_tiles, end = bytes * (tile + 1) / num_tiles;
  for (size_t i = begin; i < end; i += kCacheLine) __builtin_prefetch(rows + i, 0, 2);
}

template <typename Format>
void PanelMatmul(const MatmulCall& call) {
  const size_t num_blocks = call.k / 32;
  const size_t num_tiles = (call.num_tokens + kTileTokens - 1) / kTileTokens;
  for (size_t begin = call.row_begin; begin < call.row_end; begin += kPanelRows) {
    const size_t left = call.row_end - begin;
    const size_t num_rows = left < kPanelRows ? left : kPanelRows;
    const std::byte* rows = call.w + begin * call.row_bytes;
    UnpackPanel<Format>(reinterpret_cast<const uint8_t*>(rows), call.row_bytes, num_rows, call.k,
                        call.scratch);
    const size_t after = left - num_rows;
    const size_t next_rows = after < kPanelRows ? after : kPanelRows;
    for (size_t tile = 0; tile < num_tiles; ++tile) {
      PrefetchShare(rows + num_rows * call.row_bytes, next_rows * call.row_bytes, tile, num_tiles);
      const size_t token = tile * kTileTokens;
      const size_t tokens_left = call.num_tokens - token;
      const TileSums sums = MultiplyTile<Format::kHasMin, Format::kTwoScales>(
          call.scratch, call.act + tile * num_blocks * kTileBlockBytes, num_blocks);
      StoreTile(sums, num_rows, tokens_left < kTileTokens ? tokens_left : kTileTokens,
                call.y + token * call.y_stride + begin, call.y_stride);
    }
  }
}

}  // namespace
}  // namespace tael::kernels
