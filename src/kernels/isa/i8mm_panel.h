// Products for more than sixteen tokens with SMMLA: 8 rows x 4 tokens in registers.
// Private to i8mm_matmul.cpp; internal linkage only.
//
// Panel (neon_panel.h), per 32 columns:  q[k / 8 = 4][4 pairs of rows][2][8], scales and minimums
// as [4 pairs of rows][a, a, b, b]. Activations as i8mm_pairs.h packs them.
//
// 4 pairs of rows x 2 pairs of tokens: 8 integer and 8 f32 sums, and 8 products of the lower 16
// columns for formats with two scales per 32. Three pairs of tokens would save a fifth of the
// loads, but the vector pipes are the limit, and GCC spills a sum.
#pragma once

#include <arm_neon.h>

#include "kernels/isa/i8mm_pairs.h"

namespace tael::kernels {
namespace {

constexpr size_t kRowPairs = kPanelRows / 2;

template <size_t kNumPairs>
using PairSums = float32x4_t[kNumPairs][kRowPairs];

// Products of kSteps * 8 columns times the scales of the rows, added to `before` where there is
// such a part.
template <size_t kSteps, size_t kNumPairs>
TAEL_INLINE void PairColumns(const int8_t* w, const int8_t* const (&x)[kNumPairs],
                             const float* row_scale, const PairSums<kNumPairs>* before,
                             PairSums<kNumPairs>& out) {
  int32x4_t sum[kNumPairs][kRowPairs];
#pragma GCC unroll 2
  for (size_t p = 0; p < kNumPairs; ++p) {
#pragma GCC unroll 4
    for (size_t r = 0; r < kRowPairs; ++r) sum[p][r] = SumStart();
  }
#pragma GCC unroll 4
  for (size_t i = 0; i < kSteps; ++i) {
    int8x16_t tokens[kNumPairs];
#pragma GCC unroll 2
    for (size_t p = 0; p < kNumPairs; ++p) tokens[p] = vld1q_s8(x[p] + 16 * i);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRowPairs; ++r) {
      const int8x16_t rows = vld1q_s8(w + 16 * (kRowPairs * i + r));
#pragma GCC unroll 2
      for (size_t p = 0; p < kNumPairs; ++p) sum[p][r] = vmmlaq_s32(sum[p][r], rows, tokens[p]);
    }
    KeepLoadsBelow();
  }
#pragma GCC unroll 4
  for (size_t r = 0; r < kRowPairs; ++r) {
    const float32x4_t s = vld1q_f32(row_scale + 4 * r);
#pragma GCC unroll 2
    for (size_t p = 0; p < kNumPairs; ++p) {
      const float32x4_t v = SumValue(sum[p][r]);
      out[p][r] = before == nullptr ? vmulq_f32(v, s) : vfmaq_f32((*before)[p][r], v, s);
    }
  }
}

struct SmmlaPanel {
  static constexpr size_t kRowsTogether = 2;
  static constexpr size_t kScaleCopies = 2;

  static const std::byte* ActAt(const MatmulCall& call, size_t token) {
    return call.act + token / 2 * PairBytes(call.k);
  }

  // Two rows become [k / 8 = 2][2 rows][8], steps of k a panel row apart.
  TAEL_INLINE static void StoreColumns(const int8x16_t* w, int8_t* out) {
    const int64x2_t a = vreinterpretq_s64_s8(w[0]), b = vreinterpretq_s64_s8(w[1]);
    vst1q_s8(out, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
    vst1q_s8(out + 16 * kRowPairs, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
  }

  template <bool kHasMin, bool kTwoScales>
  static void Multiply(const TileCall& call) {
    call.num_tokens <= 2 ? MultiplyPairs<kHasMin, kTwoScales, 1>(call)
                         : MultiplyPairs<kHasMin, kTwoScales, 2>(call);
  }

 private:
  template <bool kHasMin, bool kTwoScales, size_t kNumPairs>
  __attribute__((noinline)) static void MultiplyPairs(const TileCall& call) {
    using Layout = PanelLayout<SmmlaPanel, kHasMin, kTwoScales>;
    PairSums<kNumPairs> acc;
    ActPair act[kNumPairs];
#pragma GCC unroll 2
    for (size_t p = 0; p < kNumPairs; ++p) {
      act[p] = PairAt(call.act + p * PairBytes(call.k), call.k);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRowPairs; ++r) acc[p][r] = vdupq_n_f32(0.0f);
    }
    const std::byte* panel = call.panel;
    for (size_t block = 0; block < call.k / 32; ++block, panel += Layout::kBlockBytes) {
      AddBlock<kHasMin, kTwoScales, kNumPairs>(panel, act, block, acc);
    }
#pragma GCC unroll 2
    for (size_t p = 0; p < kNumPairs; ++p) {
      float* y = call.y + 2 * p * call.y_stride;
      StoreRows(vuzp1q_f32(acc[p][0], acc[p][1]), vuzp1q_f32(acc[p][2], acc[p][3]), call.num_rows,
                y);
      if (2 * p + 1 == call.num_tokens) return;
      StoreRows(vuzp2q_f32(acc[p][0], acc[p][1]), vuzp2q_f32(acc[p][2], acc[p][3]), call.num_rows,
                y + call.y_stride);
    }
  }

  // 32 columns; the order of operations is that of TwoRowsByPairs, bit for bit.
  template <bool kHasMin, bool kTwoScales, size_t kNumPairs>
  TAEL_INLINE static void AddBlock(const std::byte* panel, const ActPair (&act)[kNumPairs],
                                   size_t block, PairSums<kNumPairs>& acc) {
    using Layout = PanelLayout<SmmlaPanel, kHasMin, kTwoScales>;
    const auto* w = reinterpret_cast<const int8_t*>(panel);
    const auto* row = reinterpret_cast<const float*>(panel + kPanelQ);
    const int8_t* x[kNumPairs];
#pragma GCC unroll 2
    for (size_t p = 0; p < kNumPairs; ++p) x[p] = act[p].q + 64 * block;
    PairSums<kNumPairs> sums;
    if constexpr (kTwoScales) {
      PairSums<kNumPairs> lower;
      PairColumns<2, kNumPairs>(w, x, row, nullptr, lower);
#pragma GCC unroll 2
      for (size_t p = 0; p < kNumPairs; ++p) x[p] += 32;
      PairColumns<2, kNumPairs>(w + kPanelQ / 2, x, row + Layout::kVector, &lower, sums);
    } else {
      PairColumns<4, kNumPairs>(w, x, row, nullptr, sums);
    }
#pragma GCC unroll 2
    for (size_t p = 0; p < kNumPairs; ++p) {
      AddScaled(acc[p], sums[p], act[p].scale + kPairFloats * block);
    }
    if constexpr (kHasMin) {
      const float* min = row + Layout::kMinOffset;
#pragma GCC unroll 2
      for (size_t p = 0; p < kNumPairs; ++p) {
        const float* sum = (kTwoScales ? act[p].sum16 : act[p].sum);
#pragma GCC unroll 2
        for (size_t i = 0; i < Layout::kScales; ++i) {
          float32x4_t m[kRowPairs];
#pragma GCC unroll 4
          for (size_t r = 0; r < kRowPairs; ++r)
            m[r] = vld1q_f32(min + i * Layout::kVector + 4 * r);
          AddScaled(acc[p], m, sum + kPairFloats * (Layout::kScales * block + i));
        }
      }
    }
  }

  TAEL_INLINE static void AddScaled(float32x4_t (&acc)[kRowPairs],
                                    const float32x4_t (&v)[kRowPairs], const float* token) {
    const float32x4_t t = vld1q_f32(token);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRowPairs; ++r) acc[r] = vfmaq_f32(acc[r], v[r], t);
  }
};

}  // namespace
}  // namespace tael::kernels
