// What the dot products of bytes on 64-bit ARM share: four keys' four dimensions in a vector.
// Private to the neon and dotprod files.
#pragma once

#include "kernels/isa/neon_simd.h"

namespace tael::kernels {
namespace {

struct NeonQuads {
  using Sum = int32x4_t;
  using Keys = int8x16_t;
  using Quad = int8x16_t;
  static Keys LoadKeys(const int8_t* p) { return vld1q_s8(p); }
  static Quad LoadQuad(const int8_t* q) {
    int32_t four;
    __builtin_memcpy(&four, q, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  static Sum Start(int32_t /*sum*/) { return vdupq_n_s32(0); }
  static Sum Times128Plus(Sum sum, Sum start) { return vaddq_s32(vshlq_n_s32(sum, 7), start); }
  static float32x4_t ToFloat(Sum sum) { return vcvtq_f32_s32(sum); }

  // The registers hold what they do for f16 keys.
  static constexpr size_t kMaxScoreRows = Neon::kMaxScoreRows;
  static constexpr size_t ScoreBlocks(size_t rows) { return Neon::ScoreBlocks(rows); }
};

}  // namespace
}  // namespace tael::kernels
