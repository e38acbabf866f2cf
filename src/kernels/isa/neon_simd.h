// A vector of 4 floats for simd_vector.h and simd_kv.h. Private to the neon files; plain ARMv8.0.
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
