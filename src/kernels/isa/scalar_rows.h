// Quantised rows in plain C++: one small struct per GGUF block format, and their dequantisation.
//
// This file is the definition of the formats for every ISA. Everything in it has internal linkage,
// so a file compiled for AVX-512 gets a copy of its own and exports nothing. It knows nothing of
// activations and products.
#pragma once

#include "kernels/kernels.h"

namespace tael::kernels {
namespace {

// Scales and minimums are per 16 values, the smallest group of any format.
constexpr size_t kGroup = 16;
constexpr size_t kMaxBlock = 256;

inline uint16_t Load16(const uint8_t* p) {
  uint16_t v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

inline uint32_t Load32(const uint8_t* p) {
  uint32_t v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

inline float FromBits(uint32_t bits) {
  float v;
  __builtin_memcpy(&v, &bits, sizeof v);
  return v;
}

// Exponent and mantissa move into their f32 places; the factor 2^112 corrects the exponent bias
// (127 - 15) and makes subnormals normal, both exactly.
inline float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const float scaled = FromBits(magnitude) * 0x1p112f;
  uint32_t bits;
  __builtin_memcpy(&bits, &scaled, sizeof bits);
  if (magnitude >= 0x0f800000u) bits = magnitude | 0x7f800000u;  // infinity and NaN
  return FromBits(bits | sign);
}

inline float LoadHalf(const uint8_t* p) { return HalfToFloat(Load16(p)); }

inline int8_t Int8(int v) { return static_cast<int8_t>(v); }

// The 16 levels of IQ4_NL and IQ4_XS.
constexpr int8_t kNonLinear4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                    1,    13,   25,  38,  53,  69,  89,  113};

// A format decodes one block into q[kElements], scale[kElements / 16] and, if kHasMin,
// min[kElements / 16], so that weight = scale * q + min with one rounding after each operation.
// kTwoScales: the two halves of 32 values may have different scales.

struct Q4_0 {
  static constexpr WeightType kType = WeightType::kQ4_0;
  static constexpr bool kHasMin = false, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float*) {
    scale[0] = scale[1] = LoadHalf(b);
    for (size_t i = 0; i < 16; ++i) {
      q[i] = Int8((b[2 + i] & 15) - 8);
      q[16 + i] = Int8((b[2 + i] >> 4) - 8);
    }
  }
};

struct Q4_1 {
  static constexpr WeightType kType = WeightType::kQ4_1;
  static constexpr bool kHasMin = true, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float* min) {
    scale[0] = scale[1] = LoadHalf(b);
    min[0] = min[1] = LoadHalf(b + 2);
    for (size_t i = 0; i < 16; ++i) {
      q[i] = Int8(b[4 + i] & 15);
      q[16 + i] = Int8(b[4 + i] >> 4);
    }
  }
};

// Nibbles at b, fifth bits at `high`: bit i belongs to value i.
inline void DecodeFiveBits(const uint8_t* b, uint32_t high, int bias, int8_t* q) {
  for (size_t i = 0; i < 16; ++i) {
    const int high_lo = static_cast<int>((high >> i) & 1) << 4;
    const int high_hi = static_cast<int>((high >> (16 + i)) & 1) << 4;
    q[i] = Int8(((b[i] & 15) | high_lo) - bias);
    q[16 + i] = Int8(((b[i] >> 4) | high_hi) - bias);
  }
}

struct Q5_0 {
  static constexpr WeightType kType = WeightType::kQ5_0;
  static constexpr bool kHasMin = false, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float*) {
    scale[0] = scale[1] = LoadHalf(b);
    DecodeFiveBits(b + 6, Load32(b + 2), 16, q);
  }
};

struct Q5_1 {
  static constexpr WeightType kType = WeightType::kQ5_1;
  static constexpr bool kHasMin = true, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float* min) {
    scale[0] = scale[1] = LoadHalf(b);
    min[0] = min[1] = LoadHalf(b + 2);
    DecodeFiveBits(b + 8, Load32(b + 4), 0, q);
  }
};

struct Q8_0 {
  static constexpr WeightType kType = WeightType::kQ8_0;
  static constexpr bool kHasMin = false, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float*) {
    scale[0] = scale[1] = LoadHalf(b);
    __builtin_memcpy(q, b + 2, 32);
  }
};

// scales[16] (low nibble scale, high nibble minimum) | qs[64] | d | dmin
struct Q2_K {
  static constexpr WeightType kType = WeightType::kQ2_K;
  static constexpr bool kHasMin = true, kTwoScales = true;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float* min) {
    const float d = LoadHalf(b + 80), dmin = LoadHalf(b + 82);
    for (size_t g = 0; g < 16; ++g) {
      scale[g] = d * static_cast<float>(b[g] & 15);
      min[g] = -(dmin * static_cast<float>(b[g] >> 4));
    }
    for (size_t i = 0; i < 256; ++i) {
      const size_t byte = i / 128 * 32 + i % 32, shift = i % 128 / 32 * 2;
      q[i] = Int8((b[16 + byte] >> shift) & 3);
    }
  }
};

// hmask[32] | qs[64] | scales[12] (16 of 6 bits) | d
struct Q3_K {
  static constexpr WeightType kType = WeightType::kQ3_K;
  static constexpr bool kHasMin = false, kTwoScales = true;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float*) {
    const float d = LoadHalf(b + 108);
    const uint8_t* packed = b + 96;
    for (size_t g = 0; g < 16; ++g) {
      const int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
      const int high = (packed[8 + g % 4] >> (g / 4 * 2)) & 3;
      scale[g] = d * static_cast<float>((low | high << 4) - 32);
    }
    for (size_t i = 0; i < 256; ++i) {
      const size_t byte = i / 128 * 32 + i % 32, shift = i % 128 / 32 * 2;
      const int low = (b[32 + byte] >> shift) & 3;
      const int high = (b[i % 32] >> (i / 32)) & 1;
      q[i] = Int8(low + 4 * high - 4);
    }
  }
};

// The 8 scales and 8 minimums, 6 bits each, of Q4_K and Q5_K.
inline void DecodeScalesK4(const uint8_t* b, float* scale, float* min) {
  const float d = LoadHalf(b), dmin = LoadHalf(b + 2);
  const uint8_t* p = b + 4;
  for (size_t s = 0; s < 8; ++s) {
    const int sc = s < 4 ? p[s] & 63 : (p[s + 4] & 15) | (p[s - 4] >> 6) << 4;
    const int mn = s < 4 ? p[s + 4] & 63 : (p[s + 4] >> 4) | (p[s] >> 6) << 4;
    scale[2 * s] = scale[2 * s + 1] = d * static_cast<float>(sc);
    min[2 * s] = min[2 * s + 1] = -(dmin * static_cast<float>(mn));
  }
}

// d | dmin | scales[12] | qs[128]: 32 bytes hold 32 low nibbles, then 32 high ones
struct Q4_K {
  static constexpr WeightType kType = WeightType::kQ4_K;
  static constexpr bool kHasMin = true, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float* min) {
    DecodeScalesK4(b, scale, min);
    for (size_t i = 0; i < 256; ++i) {
      const size_t byte = i / 64 * 32 + i % 32, shift = i % 64 / 32 * 4;
      q[i] = Int8((b[16 + byte] >> shift) & 15);
    }
  }
};

// d | dmin | scales[12] | qh[32] | qs[128]: bit s of qh[i] belongs to value 32 * s + i
struct Q5_K {
  static constexpr WeightType kType = WeightType::kQ5_K;
  static constexpr bool kHasMin = true, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float* min) {
    DecodeScalesK4(b, scale, min);
    for (size_t i = 0; i < 256; ++i) {
      const size_t byte = i / 64 * 32 + i % 32, shift = i % 64 / 32 * 4;
      const int high = (b[16 + i % 32] >> (i / 32)) & 1;
      q[i] = Int8(((b[48 + byte] >> shift) & 15) | high << 4);
    }
  }
};

// ql[128] | qh[64] | scales[16] | d, in two halves of 128 values
struct Q6_K {
  static constexpr WeightType kType = WeightType::kQ6_K;
  static constexpr bool kHasMin = false, kTwoScales = true;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float*) {
    const float d = LoadHalf(b + 208);
    for (size_t g = 0; g < 16; ++g) {
      scale[g] = d * static_cast<float>(static_cast<int8_t>(b[192 + g]));
    }
    for (size_t i = 0; i < 256; ++i) {
      const size_t half = i / 128, quarter = i % 128 / 32;
      const int low = (b[half * 64 + i % 64] >> (quarter / 2 * 4)) & 15;
      const int high = (b[128 + half * 32 + i % 32] >> (quarter * 2)) & 3;
      q[i] = Int8((low | high << 4) - 32);
    }
  }
};

struct IQ4_NL {
  static constexpr WeightType kType = WeightType::kIQ4_NL;
  static constexpr bool kHasMin = false, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float*) {
    scale[0] = scale[1] = LoadHalf(b);
    for (size_t i = 0; i < 16; ++i) {
      q[i] = kNonLinear4[b[2 + i] & 15];
      q[16 + i] = kNonLinear4[b[2 + i] >> 4];
    }
  }
};

// d | scales_h (8 x 2 bits) | scales_l[4] (8 x 4 bits) | qs[128]
struct IQ4_XS {
  static constexpr WeightType kType = WeightType::kIQ4_XS;
  static constexpr bool kHasMin = false, kTwoScales = false;
  static void Decode(const uint8_t* b, int8_t* q, float* scale, float*) {
    const float d = LoadHalf(b);
    const int high_bits = Load16(b + 2);
    for (size_t s = 0; s < 8; ++s) {
      const int low = (b[4 + s / 2] >> (s % 2 * 4)) & 15;
      const int high = (high_bits >> (2 * s)) & 3;
      scale[2 * s] = scale[2 * s + 1] = d * static_cast<float>((low | high << 4) - 32);
      for (size_t i = 0; i < 16; ++i) {
        q[32 * s + i] = kNonLinear4[b[8 + 16 * s + i] & 15];
        q[32 * s + 16 + i] = kNonLinear4[b[8 + 16 * s + i] >> 4];
      }
    }
  }
};

template <typename Format>
constexpr BlockShape kShapeOf = kBlockShapes[static_cast<size_t>(Format::kType)];

// A whole row: q[k], scale[k / 16], min[k / 16] (written only if the format has minimums).
template <typename Format>
inline void DecodeRow(const uint8_t* row, size_t k, int8_t* q, float* scale, float* min) {
  constexpr BlockShape shape = kShapeOf<Format>;
  for (size_t i = 0; i < k; i += shape.elements) {
    Format::Decode(row, q + i, scale + i / kGroup, min + i / kGroup);
    row += shape.bytes;
  }
}

template <typename Format>
void DequantizeRow(const std::byte* bytes, size_t k, float* out) {
  constexpr BlockShape shape = kShapeOf<Format>;
  const auto* row = reinterpret_cast<const uint8_t*>(bytes);
  int8_t q[kMaxBlock];
  float scale[kMaxBlock / kGroup], min[kMaxBlock / kGroup];
  for (size_t i = 0; i < k; i += shape.elements) {
    Format::Decode(row, q, scale, min);
    row += shape.bytes;
    for (size_t j = 0; j < shape.elements; ++j) {
      float v = scale[j / kGroup] * static_cast<float>(q[j]);
      if constexpr (Format::kHasMin) v += min[j / kGroup];
      out[i + j] = v;
    }
  }
}

inline void DequantizeF32(const std::byte* bytes, size_t k, float* out) {
  __builtin_memcpy(out, bytes, k * sizeof(float));
}

inline void DequantizeF16(const std::byte* bytes, size_t k, float* out) {
  const auto* row = reinterpret_cast<const uint8_t*>(bytes);
  for (size_t i = 0; i < k; ++i) out[i] = LoadHalf(row + 2 * i);
}

inline void DequantizeBF16(const std::byte* bytes, size_t k, float* out) {
  const auto* row = reinterpret_cast<const uint8_t*>(bytes);
  for (size_t i = 0; i < k; ++i)
    out[i] = FromBits(static_cast<uint32_t>(Load16(row + 2 * i)) << 16);
}

// Calls visit.operator()<Format>() for each quantised format.
template <typename Visitor>
constexpr void ForEachFormat(Visitor&& visit) {
  visit.template operator()<Q4_0>();
  visit.template operator()<Q4_1>();
  visit.template operator()<Q5_0>();
  visit.template operator()<Q5_1>();
  visit.template operator()<Q8_0>();
  visit.template operator()<Q2_K>();
  visit.template operator()<Q3_K>();
  visit.template operator()<Q4_K>();
  visit.template operator()<Q5_K>();
  visit.template operator()<Q6_K>();
  visit.template operator()<IQ4_NL>();
  visit.template operator()<IQ4_XS>();
}

constexpr bool IsFloatType(WeightType type) {
  return type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBF16;
}

}  // namespace
}  // namespace tael::kernels
