// Numbers that every ISA has to find to the same bit, because what is stored with them outlives a
// program: scales of quantised keys and values, and the factor of a Hadamard transform. Plain
// arithmetic, for all files of isa/; internal linkage only.
#pragma once

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

inline constexpr float kMaxF16 = 65504.0f;

struct F16Scale {
  uint16_t half;
  float value;    // of `half`
  float inverse;  // 1 / value; 0 for 0
};

// The least f16 that is not below `magnitude` (>= 0); 65504 above that; NaN for NaN.
inline F16Scale ScaleAbove(float magnitude) {
  if (magnitude != magnitude) return {0x7e00, magnitude, magnitude};
  if (magnitude == 0.0f) return {0, 0.0f, 0.0f};
  if (magnitude >= kMaxF16) return {0x7bff, kMaxF16, 1.0f / kMaxF16};
  if (magnitude < 0x1p-14f) {  // subnormal halves are multiples of 2^-24
    const float steps = magnitude * 0x1p24f;
    auto count = static_cast<uint16_t>(steps);
    if (static_cast<float>(count) < steps) ++count;
    const float value = static_cast<float>(count) * 0x1p-24f;
    return {count, value, 1.0f / value};
  }
  // Up to the next multiple of the 13 bits that a half does not have; then the exponents' biases.
  const uint32_t bits = (__builtin_bit_cast(uint32_t, magnitude) + 0x1fffu) & ~0x1fffu;
  const float value = __builtin_bit_cast(float, bits);
  return {static_cast<uint16_t>((bits >> 13) - ((127u - 15u) << 10)), value, 1.0f / value};
}

// The largest power of two that divides n.
inline size_t HadamardRun(size_t n) { return n & (~n + 1); }

// 1 / sqrt(n) of a power of two.
inline float HadamardFactor(size_t n) {
  float factor = 1.0f;
  for (; n >= 4; n /= 4) factor *= 0.5f;
  return n == 2 ? factor * 0.70710678f : factor;
}

}  // namespace
}  // namespace tael::kernels
