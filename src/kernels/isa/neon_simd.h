// A vector of 4 floats for the simd_*.h files. Private to the neon files; plain ARMv8.0.
#pragma once

#include <arm_neon.h>

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

struct Neon {
  using Vec = float32x4_t;
  static constexpr size_t kLanes = 4;

  static Vec Set1(float value) { return vdupq_n_f32(value); }
  static Vec Load(const float* p) { return vld1q_f32(p); }
  static void Store(float* p, Vec v) { vst1q_f32(p, v); }
  static Vec LoadPart(const float* p, size_t n) {
    float lanes[kLanes] = {};
    for (size_t i = 0; i < n; ++i) lanes[i] = p[i];
    return Load(lanes);
  }
  static void StorePart(float* p, Vec v, size_t n) {
    float lanes[kLanes];
    Store(lanes, v);
    for (size_t i = 0; i < n; ++i) p[i] = lanes[i];
  }

  static Vec Add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static Vec Sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  static Vec Mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static Vec Div(Vec a, Vec b) { return vdivq_f32(a, b); }
  static Vec Min(Vec a, Vec b) { return vminq_f32(a, b); }
  static Vec Max(Vec a, Vec b) { return vmaxq_f32(a, b); }
  static Vec Fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  static Vec Abs(Vec a) { return vabsq_f32(a); }
  static Vec CopySign(Vec magnitude, Vec sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude);
  }
  static Vec Round(Vec a) { return vrndnq_f32(a); }
  static Vec Exp2(Vec n) {
    const int32x4_t biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
  }
  static Vec SelectLess(Vec a, Vec b, Vec if_less, Vec otherwise) {
    return vbslq_f32(vcltq_f32(a, b), if_less, otherwise);
  }
  static float ReduceAdd(Vec v) { return vaddvq_f32(v); }
  static float ReduceMax(Vec v) { return vmaxvq_f32(v); }

  static void RotatePairs(float* x, const float* cos, const float* sin) {
    const float32x2x2_t pairs = vld2_f32(x);
    const float32x2_t c = vld1_f32(cos), s = vld1_f32(sin);
    float32x2x2_t turned;
    turned.val[0] = vfms_f32(vmul_f32(pairs.val[0], c), pairs.val[1], s);
    turned.val[1] = vfma_f32(vmul_f32(pairs.val[1], c), pairs.val[0], s);
    vst2_f32(x, turned);
  }

  static Vec LoadF16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
  // Round to nearest even, saturating; a NaN stays one.
  static void StoreF16(uint16_t* p, Vec v) {
    const Vec clamped = Max(Set1(-65504.0f), Min(Set1(65504.0f), v));
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(clamped)));
  }

  // Lanes i and i + kHalf of each run of 2 * kHalf become their sum and their difference.
  template <size_t kHalf>
  static Vec Butterfly(Vec v) {
    if constexpr (kHalf == 1) {
      const float signs[kLanes] = {1, -1, 1, -1};
      return Fma(v, Load(signs), vrev64q_f32(v));
    } else {
      const float signs[kLanes] = {1, 1, -1, -1};
      return Fma(v, Load(signs), vextq_f32(v, v, 2));
    }
  }

  // Whole numbers within +-127.
  static void StoreI8(int8_t* p, Vec v) {
    const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(v));
    const int8x8_t bytes = vqmovn_s16(vcombine_s16(words, words));
    const int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
    __builtin_memcpy(p, &four, sizeof four);
  }
  template <size_t kVecs>
  static void LoadI8(const int8_t* p, Vec (&out)[kVecs]) {
    if constexpr (kVecs == 4) {
      Widen(vld1q_s8(p), out);
    } else if constexpr (kVecs == 2) {
      const int16x8_t words = vmovl_s8(vld1_s8(p));
      out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(words)));
      out[1] = vcvtq_f32_s32(vmovl_high_s16(words));
    } else {
      static_assert(kVecs == 1);
      int32_t four;
      __builtin_memcpy(&four, p, sizeof four);
      const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
      out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
    }
  }
  // The low (shift 0) or high (shift 4) halves of 16 bytes, less 8.
  static void LoadI4(const uint8_t* p, int shift, Vec (&out)[4]) {
    const uint8x16_t shifted = vshlq_u8(vld1q_u8(p), vdupq_n_s8(static_cast<int8_t>(-shift)));
    const int8x16_t halves = vreinterpretq_s8_u8(vandq_u8(shifted, vdupq_n_u8(15)));
    Widen(vsubq_s8(halves, vdupq_n_s8(8)), out);
  }
  static void Widen(int8x16_t bytes, Vec (&out)[4]) {
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    out[1] = vcvtq_f32_s32(vmovl_high_s16(low));
    out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    out[3] = vcvtq_f32_s32(vmovl_high_s16(high));
  }

  // Register tiles (32 registers). Scores: 4 * rows * blocks accumulators, four vectors of keys per
  // block and a broadcast q; at least 8 accumulators, to fill two pipes of latency 4.
  static constexpr size_t kMaxScoreRows = 6;
  static constexpr size_t ScoreBlocks(size_t rows) { return rows <= 1 ? 2 : 1; }
  // Values: rows x vectors accumulators, the vectors of V and a broadcast weight.
  static constexpr size_t kMaxValueRows = 6;
  static constexpr size_t ValueVectors(size_t /*rows*/) { return 4; }
};

}  // namespace
}  // namespace tael::kernels
