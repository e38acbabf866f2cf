// Decoders for 64-bit ARM: one GGUF block to signed bytes and f32 scales in registers.
// Private to the neon and dotprod matrix products; internal linkage only. What the bits mean is
// defined, and drawn, in scalar_rows.h; this file says the same in vectors.
//
//   Scales(b, scale, min)   per 32 values, or per 16 if the format has kTwoScales; weight =
//                           scale * q + min (min only if kHasMin)
//   Values(b, s)            the 32 values q of sub-block s, in order
#pragma once

#include <arm_neon.h>

#include "kernels/isa/scalar_rows.h"

#define TAEL_INLINE inline __attribute__((always_inline))

namespace tael::kernels {
namespace {

struct Values32 {
  int8x16_t lo;  // values 0..15
  int8x16_t hi;  // values 16..31
};

TAEL_INLINE float HalfAt(const uint8_t* p) {
  __fp16 half;
  __builtin_memcpy(&half, p, sizeof half);
  return static_cast<float>(half);
}

TAEL_INLINE int8x16_t Signed(uint8x16_t v) { return vreinterpretq_s8_u8(v); }
TAEL_INLINE uint8x16_t LowNibbles(uint8x16_t v) { return vandq_u8(v, vdupq_n_u8(15)); }
TAEL_INLINE uint8x16_t HighNibbles(uint8x16_t v) { return vshrq_n_u8(v, 4); }

TAEL_INLINE uint8x16_t ShiftRight(uint8x16_t v, size_t bits) {
  return vshlq_u8(v, vdupq_n_s8(static_cast<int8_t>(-static_cast<int>(bits))));
}

// 16 where bit `bit` of a byte is set, else 0.
TAEL_INLINE uint8x16_t SixteenIfBit(uint8x16_t v, size_t bit) {
  const uint8x16_t set = vtstq_u8(v, vdupq_n_u8(static_cast<uint8_t>(1u << bit)));
  return vandq_u8(set, vdupq_n_u8(16));
}

// 16 where bit i of the two bytes at p is set, for lane i.
TAEL_INLINE uint8x16_t SixteenPerBit(const uint8_t* p) {
  alignas(16) static constexpr uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                    1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t spread = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
  return vandq_u8(vtstq_u8(spread, vld1q_u8(kBits)), vdupq_n_u8(16));
}

TAEL_INLINE Values32 Minus(Values32 v, int bias) {
  const int8x16_t b = vdupq_n_s8(static_cast<int8_t>(bias));
  return {vsubq_s8(v.lo, b), vsubq_s8(v.hi, b)};
}

TAEL_INLINE Values32 Nibbles(const uint8_t* p) {
  const uint8x16_t v = vld1q_u8(p);
  return {Signed(LowNibbles(v)), Signed(HighNibbles(v))};
}

TAEL_INLINE Values32 Levels(const uint8_t* p) {
  const Values32 index = Nibbles(p);
  const int8x16_t table = vld1q_s8(kNonLinear4);
  return {vqtbl1q_s8(table, vreinterpretq_u8_s8(index.lo)),
          vqtbl1q_s8(table, vreinterpretq_u8_s8(index.hi))};
}

TAEL_INLINE Values32 NibblesAndBits(const uint8_t* nibbles, const uint8_t* bits) {
  const uint8x16_t v = vld1q_u8(nibbles);
  return {Signed(vorrq_u8(LowNibbles(v), SixteenPerBit(bits))),
          Signed(vorrq_u8(HighNibbles(v), SixteenPerBit(bits + 2)))};
}

// out[0..7] = factor * bytes, rounded once.
TAEL_INLINE void Widen8(int8x8_t bytes, float factor, float* out) {
  const int16x8_t wide = vmovl_s8(bytes);
  vst1q_f32(out, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), factor));
  vst1q_f32(out + 4, vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide))), factor));
}

TAEL_INLINE void Widen16(int8x16_t bytes, float factor, float* out) {
  Widen8(vget_low_s8(bytes), factor, out);
  Widen8(vget_high_s8(bytes), factor, out + 8);
}

TAEL_INLINE uint8x8_t Bytes8(uint32_t first, uint32_t second) {
  return vreinterpret_u8_u32(vset_lane_u32(second, vdup_n_u32(first), 1));
}

// The 6-bit scales and minimums of Q4_K and Q5_K, four bytes at a time.
TAEL_INLINE void ScalesK4(const uint8_t* b, float* scale, float* min) {
  constexpr uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x03030303;
  const uint32_t s = Load32(b + 4), m = Load32(b + 8), rest = Load32(b + 12);
  const uint32_t high_s = (rest & kFour) | ((s >> 6) & kTwo) << 4;
  const uint32_t high_m = ((rest >> 4) & kFour) | ((m >> 6) & kTwo) << 4;
  Widen8(vreinterpret_s8_u8(Bytes8(s & kSix, high_s)), HalfAt(b), scale);
  Widen8(vreinterpret_s8_u8(Bytes8(m & kSix, high_m)), -HalfAt(b + 2), min);
}

template <typename Format>
struct NeonBlock;

template <>
struct NeonBlock<Q4_0> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float*) { *scale = HalfAt(b); }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t) { return Minus(Nibbles(b + 2), 8); }
};

template <>
struct NeonBlock<Q4_1> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float* min) {
    *scale = HalfAt(b);
    *min = HalfAt(b + 2);
  }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t) { return Nibbles(b + 4); }
};

template <>
struct NeonBlock<Q5_0> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float*) { *scale = HalfAt(b); }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t) {
    return Minus(NibblesAndBits(b + 6, b + 2), 16);
  }
};

template <>
struct NeonBlock<Q5_1> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float* min) {
    *scale = HalfAt(b);
    *min = HalfAt(b + 2);
  }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t) {
    return NibblesAndBits(b + 8, b + 4);
  }
};

template <>
struct NeonBlock<Q8_0> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float*) { *scale = HalfAt(b); }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t) {
    return {Signed(vld1q_u8(b + 2)), Signed(vld1q_u8(b + 18))};
  }
};

template <>
struct NeonBlock<IQ4_NL> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float*) { *scale = HalfAt(b); }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t) { return Levels(b + 2); }
};

template <>
struct NeonBlock<IQ4_XS> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float*) {
    alignas(8) int8_t bits[8];
    const int high = Load16(b + 2);
    for (size_t s = 0; s < 8; ++s) {
      const int low = (b[4 + s / 2] >> (s % 2 * 4)) & 15;
      bits[s] = Int8((low | ((high >> (2 * s)) & 3) << 4) - 32);
    }
    Widen8(vld1_s8(bits), HalfAt(b), scale);
  }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t s) { return Levels(b + 8 + 16 * s); }
};

template <>
struct NeonBlock<Q4_K> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float* min) {
    ScalesK4(b, scale, min);
  }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t s) {
    const uint8_t* p = b + 16 + s / 2 * 32;
    const size_t shift = s % 2 * 4;
    return {Signed(LowNibbles(ShiftRight(vld1q_u8(p), shift))),
            Signed(LowNibbles(ShiftRight(vld1q_u8(p + 16), shift)))};
  }
};

template <>
struct NeonBlock<Q5_K> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float* min) {
    ScalesK4(b, scale, min);
  }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t s) {
    const Values32 low = NeonBlock<Q4_K>::Values(b + 32, s);  // the nibbles follow qh[32]
    return {vorrq_s8(low.lo, Signed(SixteenIfBit(vld1q_u8(b + 16), s))),
            vorrq_s8(low.hi, Signed(SixteenIfBit(vld1q_u8(b + 32), s)))};
  }
};

template <>
struct NeonBlock<Q6_K> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float*) {
    Widen16(Signed(vld1q_u8(b + 192)), HalfAt(b + 208), scale);
  }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t s) {
    const size_t half = s / 4, quarter = s % 4;
    const uint8_t* low = b + half * 64 + quarter % 2 * 32;
    const uint8_t* high = b + 128 + half * 32;
    return Minus({Six(low, high, quarter), Six(low + 16, high + 16, quarter)}, 32);
  }

 private:
  TAEL_INLINE static int8x16_t Six(const uint8_t* low, const uint8_t* high, size_t quarter) {
    const uint8x16_t four = LowNibbles(ShiftRight(vld1q_u8(low), quarter / 2 * 4));
    const uint8x16_t two = vandq_u8(ShiftRight(vld1q_u8(high), quarter * 2), vdupq_n_u8(3));
    return Signed(vorrq_u8(four, vshlq_n_u8(two, 4)));
  }
};

// The two low bits of Q2_K and Q3_K.
TAEL_INLINE uint8x16_t TwoBits(const uint8_t* p, size_t s) {
  return vandq_u8(ShiftRight(vld1q_u8(p + s / 4 * 32), s % 4 * 2), vdupq_n_u8(3));
}

template <>
struct NeonBlock<Q2_K> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float* min) {
    const uint8x16_t v = vld1q_u8(b);
    Widen16(Signed(LowNibbles(v)), HalfAt(b + 80), scale);
    Widen16(Signed(HighNibbles(v)), -HalfAt(b + 82), min);
  }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t s) {
    return {Signed(TwoBits(b + 16, s)), Signed(TwoBits(b + 32, s))};
  }
};

template <>
struct NeonBlock<Q3_K> {
  TAEL_INLINE static void Scales(const uint8_t* b, float* scale, float*) {
    constexpr uint32_t kTwo = 0x03030303;
    const uint8x8_t low = vld1_u8(b + 96);
    const uint32_t h = Load32(b + 104);
    const uint8x16_t four = vcombine_u8(vand_u8(low, vdup_n_u8(15)), vshr_n_u8(low, 4));
    const uint8x16_t two =
        vcombine_u8(Bytes8(h & kTwo, (h >> 2) & kTwo), Bytes8((h >> 4) & kTwo, (h >> 6) & kTwo));
    const int8x16_t six = Signed(vorrq_u8(four, vshlq_n_u8(two, 4)));
    Widen16(vsubq_s8(six, vdupq_n_s8(32)), HalfAt(b + 108), scale);
  }
  TAEL_INLINE static Values32 Values(const uint8_t* b, size_t s) {
    return {Three(b + 32, b, s), Three(b + 48, b + 16, s)};
  }

 private:
  TAEL_INLINE static int8x16_t Three(const uint8_t* low, const uint8_t* mask, size_t s) {
    const uint8x16_t high = vshrq_n_u8(SixteenIfBit(vld1q_u8(mask), s), 2);
    return vsubq_s8(Signed(vorrq_u8(TwoBits(low, s), high)), vdupq_n_s8(4));
  }
};

}  // namespace
}  // namespace tael::kernels
