// Products for up to sixteen tokens with SMMLA on rows as they lie in the file, and the packing of
// activations. Private to i8mm_matmul.cpp; internal linkage only.
//
// SMMLA multiplies two rows of eight values with two tokens of eight: four sums of eight products,
// lanes {row 0 token 0, row 0 token 1, row 1 token 0, row 1 token 1}.
//
// Packed activations, format kPairs, per pair of tokens a and b (an odd last one is padded with
// zeros):
//
//   q[k / 8][a, b][8] int8 | scale[k / 32][a, b, a, b] | sum[k / 32][a, b, a, b]
//                          | sum of the lower 16, of the upper 16 [k / 32][2][a, b, a, b]
//
// all sums times their scale, f32; floats lie twice as the lanes of the product want them.
#pragma once

#include <arm_neon.h>

#include "kernels/isa/neon_panel.h"

namespace tael::kernels {
namespace {

constexpr ActFormat kPairs{2};
constexpr size_t kPairFloats = 4;  // of one value of both tokens

constexpr size_t PairBytes(size_t k) {
  return (2 * k + k / kActBlock * 4 * kPairFloats * sizeof(float) + 63) / 64 * 64;
}

// Where the parts of one pair lie.
struct ActPair {
  const int8_t* q;
  const float* scale;
  const float* sum;
  const float* sum16;
};

TAEL_INLINE ActPair PairAt(const std::byte* pair, size_t k) {
  const auto* q = reinterpret_cast<const int8_t*>(pair);
  const auto* scale = reinterpret_cast<const float*>(q + 2 * k);
  const size_t floats = k / kActBlock * kPairFloats;
  return {q, scale, scale + floats, scale + 2 * floats};
}

// ---- activations ----

TAEL_INLINE float32x4_t ByToken(float32x2_t both) { return vcombine_f32(both, both); }

// Eight columns of the one, then eight of the other, four times.
struct Zipped {
  int8x16_t v[4];
};

TAEL_INLINE Zipped Zip(Values32 a, Values32 b) {
  const int64x2_t a0 = vreinterpretq_s64_s8(a.lo), a1 = vreinterpretq_s64_s8(a.hi);
  const int64x2_t b0 = vreinterpretq_s64_s8(b.lo), b1 = vreinterpretq_s64_s8(b.hi);
  return {{vreinterpretq_s8_s64(vzip1q_s64(a0, b0)), vreinterpretq_s8_s64(vzip2q_s64(a0, b0)),
           vreinterpretq_s8_s64(vzip1q_s64(a1, b1)), vreinterpretq_s8_s64(vzip2q_s64(a1, b1))}};
}

// 32 values of both tokens; b is null for a token that pads the pair.
void PackPairBlock(const float* a, const float* b, size_t block, const ActPair& out) {
  alignas(16) int8_t q[2][32] = {};
  const float32x2_t d = {QuantizeBlock(a, q[0]), b == nullptr ? 0.0f : QuantizeBlock(b, q[1])};
  const Values32 va{vld1q_s8(q[0]), vld1q_s8(q[0] + 16)};
  const Values32 vb{vld1q_s8(q[1]), vld1q_s8(q[1] + 16)};
  const Zipped zipped = Zip(va, vb);
  auto* bytes = const_cast<int8_t*>(out.q) + 64 * block;
  for (size_t i = 0; i < 4; ++i) vst1q_s8(bytes + 16 * i, zipped.v[i]);
  const int32x2_t lower = {vaddlvq_s8(va.lo), vaddlvq_s8(vb.lo)};
  const int32x2_t upper = {vaddlvq_s8(va.hi), vaddlvq_s8(vb.hi)};
  const auto scaled = [d](int32x2_t sum) { return ByToken(vmul_f32(d, vcvt_f32_s32(sum))); };
  vst1q_f32(const_cast<float*>(out.scale) + kPairFloats * block, ByToken(d));
  vst1q_f32(const_cast<float*>(out.sum) + kPairFloats * block, scaled(vadd_s32(lower, upper)));
  auto* sum16 = const_cast<float*>(out.sum16) + 2 * kPairFloats * block;
  vst1q_f32(sum16, scaled(lower));
  vst1q_f32(sum16 + kPairFloats, scaled(upper));
}

void PackPairs(const PackCall& call) {
  for (size_t t = call.token_begin; t < call.token_end; t += 2) {
    const float* a = call.x + t * call.x_stride;
    const float* b = t + 1 < call.num_tokens ? a + call.x_stride : nullptr;
    const ActPair out = PairAt(call.out + t / 2 * PairBytes(call.k), call.k);
    for (size_t i = 0; i < call.k / kActBlock; ++i) {
      PackPairBlock(a + i * kActBlock, b == nullptr ? b : b + i * kActBlock, i, out);
    }
  }
}

// ---- products: the order of these operations is that of i8mm_panel.h, bit for bit ----

TAEL_INLINE float32x4_t ByRow(float first, float second) {
  return vcombine_f32(vdup_n_f32(first), vdup_n_f32(second));
}

// 32 columns of two rows and one pair: sums times the scales of the rows.
template <bool kTwoScales>
TAEL_INLINE float32x4_t PairProduct(const Zipped& w, const int8_t* x,
                                    const float32x4_t (&scale)[2]) {
  if constexpr (kTwoScales) {
    const int32x4_t lower =
        vmmlaq_s32(vmmlaq_s32(SumStart(), w.v[0], vld1q_s8(x)), w.v[1], vld1q_s8(x + 16));
    const int32x4_t upper =
        vmmlaq_s32(vmmlaq_s32(SumStart(), w.v[2], vld1q_s8(x + 32)), w.v[3], vld1q_s8(x + 48));
    return vfmaq_f32(vmulq_f32(SumValue(lower), scale[0]), SumValue(upper), scale[1]);
  } else {
    int32x4_t sum = SumStart();
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) sum = vmmlaq_s32(sum, w.v[i], vld1q_s8(x + 16 * i));
    return vmulq_f32(SumValue(sum), scale[0]);
  }
}

template <typename Format, size_t kNumPairs>
void TwoRowsByPairs(const uint8_t* const (&rows)[2], size_t k, const ActPair* act,
                    float32x4_t* out) {
  using Block = NeonBlock<Format>;
  constexpr BlockShape kShape = kShapeOf<Format>;
  constexpr size_t kScales = Format::kTwoScales ? 2 : 1;  // per 32 values
  float32x4_t acc[kNumPairs];
#pragma GCC unroll 8
  for (size_t p = 0; p < kNumPairs; ++p) acc[p] = vdupq_n_f32(0.0f);
  const uint8_t* b[2] = {rows[0], rows[1]};
  for (size_t column = 0; column < k; column += kShape.elements) {
    float scale[2][kMaxBlock / kGroup], min[2][kMaxBlock / kGroup];
    for (size_t r = 0; r < 2; ++r) {
      PrefetchAhead<kShape.bytes>(b[r]);
      Block::Scales(b[r], scale[r], min[r]);
    }
    for (size_t s = 0; s < kShape.elements / 32; ++s) {
      const Zipped w = Zip(Block::Values(b[0], s), Block::Values(b[1], s));
      const size_t block = column / kActBlock + s;
      float32x4_t row_scale[2], row_min[2];
#pragma GCC unroll 2
      for (size_t i = 0; i < kScales; ++i) {
        row_scale[i] = ByRow(scale[0][kScales * s + i], scale[1][kScales * s + i]);
        if constexpr (Format::kHasMin) {
          row_min[i] = ByRow(min[0][kScales * s + i], min[1][kScales * s + i]);
        }
      }
#pragma GCC unroll 8
      for (size_t p = 0; p < kNumPairs; ++p) {
        const float32x4_t v = PairProduct<Format::kTwoScales>(w, act[p].q + 64 * block, row_scale);
        acc[p] = vfmaq_f32(acc[p], v, vld1q_f32(act[p].scale + kPairFloats * block));
        if constexpr (Format::kHasMin) {
          const float* sum = (Format::kTwoScales ? act[p].sum16 : act[p].sum);
#pragma GCC unroll 2
          for (size_t i = 0; i < kScales; ++i) {
            const float32x4_t token = vld1q_f32(sum + kPairFloats * (kScales * block + i));
            acc[p] = vfmaq_f32(acc[p], row_min[i], token);
          }
        }
        if (p % 2 == 1) KeepLoadsBelow();  // in-order cores want two side by side
      }
    }
    b[0] += kShape.bytes;
    b[1] += kShape.bytes;
  }
#pragma GCC unroll 8
  for (size_t p = 0; p < kNumPairs; ++p) out[p] = acc[p];
}

// Two rows far apart at a time, as for one token: both streams of weights stay sequential.
template <typename Format, size_t kNumPairs>
void RowsByPairs(const MatmulCall& call) {
  const size_t last = (call.num_tokens - 1) / 2;
  ActPair act[kNumPairs];  // pairs that do not exist repeat the last one
  for (size_t p = 0; p < kNumPairs; ++p) {
    act[p] = PairAt(call.act + (p < last ? p : last) * PairBytes(call.k), call.k);
  }
  ForEachFarPair(call.row_begin, call.row_end - call.row_begin, [&](size_t first, size_t second) {
    const auto* w = reinterpret_cast<const uint8_t*>(call.w);
    float32x4_t sums[kNumPairs];
    TwoRowsByPairs<Format, kNumPairs>({w + first * call.row_bytes, w + second * call.row_bytes},
                                      call.k, act, sums);
    for (size_t t = 0; t < call.num_tokens; ++t) {
      float* y = call.y + t * call.y_stride;
      y[first] = sums[t / 2][t % 2];
      y[second] = sums[t / 2][2 + t % 2];
    }
  });
}

}  // namespace
}  // namespace tael::kernels
