// Products for five tokens and more with SDOT by lane: 8 rows x 4 tokens in registers.
// Private to dotprod_matmul.cpp; internal linkage only.
//
// Panel (neon_panel.h), per 32 columns:  q[k / 4 = 8][8 rows][4]
//
// Packed activations, format kTiles, per tile of 4 tokens and 32 columns:
//
//   q[k / 4 = 8][4 tokens][4] | scale[4] | sum[4] | sum of the lower 16 [4] | of the upper 16 [4]
//
// One load holds 4 columns of 4 tokens, and SDOT picks a token by lane: no broadcast, and no sum
// across lanes at the end. 64 SDOT and 24 other vector instructions multiply 8 x 4 x 32 values.
#pragma once

#include <arm_neon.h>

#include "kernels/isa/neon_panel.h"

namespace tael::kernels {
namespace {

constexpr ActFormat kTiles{2};
// Below, unpacking costs more than it saves: a panel block costs about as many instructions to
// unpack as two tiles to multiply.
constexpr size_t kPanelTokens = 5;
constexpr size_t kTileBlockBytes = 32 * kTileTokens + 4 * kTileTokens * sizeof(float);

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

// ---- the product ----

// Accumulators are plain local arrays, here and below: in a struct that is returned, or passed on
// by reference, GCC stores them in every iteration.
using TileSums = float32x4_t[kTileTokens][2];  // [token][row / 4]

// Products of kQuarters * 4 columns times the scales of the rows, added to `before` where there is
// such a part.
template <size_t kQuarters>
TAEL_INLINE void Columns(const int8_t* w, const int8_t* x, const float* row_scale,
                         const TileSums* before, TileSums& out) {
  int32x4_t sum[kTileTokens][2];
#pragma GCC unroll 4
  for (size_t t = 0; t < kTileTokens; ++t) sum[t][0] = sum[t][1] = SumStart();
#pragma GCC unroll 8
  for (size_t i = 0; i < kQuarters; ++i) {
    const int8x16_t tokens = vld1q_s8(x + 16 * i);
#pragma GCC unroll 2
    for (size_t quad = 0; quad < 2; ++quad) {
      const int8x16_t rows = vld1q_s8(w + 4 * kPanelRows * i + 16 * quad);
      sum[0][quad] = vdotq_laneq_s32(sum[0][quad], rows, tokens, 0);
      sum[1][quad] = vdotq_laneq_s32(sum[1][quad], rows, tokens, 1);
      sum[2][quad] = vdotq_laneq_s32(sum[2][quad], rows, tokens, 2);
      sum[3][quad] = vdotq_laneq_s32(sum[3][quad], rows, tokens, 3);
    }
  }
#pragma GCC unroll 2
  for (size_t quad = 0; quad < 2; ++quad) {
    const float32x4_t s = vld1q_f32(row_scale + 4 * quad);
#pragma GCC unroll 4
    for (size_t t = 0; t < kTileTokens; ++t) {
      const float32x4_t v = SumValue(sum[t][quad]);
      out[t][quad] = before == nullptr ? vmulq_f32(v, s) : vfmaq_f32((*before)[t][quad], v, s);
    }
  }
}

// acc[t] += v[t] * token[t]
TAEL_INLINE void AddByToken(TileSums& acc, const TileSums& v, float32x4_t token) {
#pragma GCC unroll 2
  for (size_t quad = 0; quad < 2; ++quad) {
    acc[0][quad] = vfmaq_laneq_f32(acc[0][quad], v[0][quad], token, 0);
    acc[1][quad] = vfmaq_laneq_f32(acc[1][quad], v[1][quad], token, 1);
    acc[2][quad] = vfmaq_laneq_f32(acc[2][quad], v[2][quad], token, 2);
    acc[3][quad] = vfmaq_laneq_f32(acc[3][quad], v[3][quad], token, 3);
  }
}

TAEL_INLINE void AddPanelMins(TileSums& acc, const float* min, float32x4_t sums) {
  TileSums v;
#pragma GCC unroll 4
  for (size_t t = 0; t < kTileTokens; ++t) {
    v[t][0] = vld1q_f32(min);
    v[t][1] = vld1q_f32(min + 4);
  }
  AddByToken(acc, v, sums);
}

struct SdotPanel {
  static constexpr size_t kRowsTogether = 4;
  static constexpr size_t kScaleCopies = 1;

  static const std::byte* ActAt(const MatmulCall& call, size_t token) {
    return call.act + token / kTileTokens * (call.k / kActBlock) * kTileBlockBytes;
  }

  // Four rows become [k / 4 = 4][4 rows][4], steps of k a panel row apart.
  TAEL_INLINE static void StoreColumns(const int8x16_t* w, int8_t* out) {
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

  template <bool kHasMin, bool kTwoScales>
  __attribute__((noinline)) static void Multiply(const TileCall& call) {
    using Layout = PanelLayout<SdotPanel, kHasMin, kTwoScales>;
    TileSums acc;
#pragma GCC unroll 4
    for (size_t t = 0; t < kTileTokens; ++t) acc[t][0] = acc[t][1] = vdupq_n_f32(0.0f);
    const std::byte* panel = call.panel;
    const std::byte* tile = call.act;
    for (size_t column = 0; column < call.k; column += 32) {
      const auto* w = reinterpret_cast<const int8_t*>(panel);
      const auto* x = reinterpret_cast<const int8_t*>(tile);
      const auto* row = reinterpret_cast<const float*>(panel + kPanelQ);
      const auto* min = row + Layout::kMinOffset;
      const auto* token = reinterpret_cast<const float*>(tile + 32 * kTileTokens);
      TileSums sums;
      if constexpr (kTwoScales) {
        TileSums lower;
        Columns<4>(w, x, row, nullptr, lower);
        KeepLoadsBelow();
        Columns<4>(w + kPanelQ / 2, x + 16 * kTileTokens, row + kPanelRows, &lower, sums);
      } else {
        Columns<8>(w, x, row, nullptr, sums);
      }
      AddByToken(acc, sums, vld1q_f32(token));
      if constexpr (kHasMin && kTwoScales) {
        AddPanelMins(acc, min, vld1q_f32(token + 8));
        AddPanelMins(acc, min + kPanelRows, vld1q_f32(token + 12));
      } else if constexpr (kHasMin) {
        AddPanelMins(acc, min, vld1q_f32(token + 4));
      }
      panel += Layout::kBlockBytes;
      tile += kTileBlockBytes;
    }
#pragma GCC unroll 4
    for (size_t t = 0; t < kTileTokens; ++t) {
      if (t == call.num_tokens) return;
      StoreRows(acc[t][0], acc[t][1], call.num_rows, call.y + t * call.y_stride);
    }
  }
};

}  // namespace
}  // namespace tael::kernels
