// Decoders: raw GGUF blocks to bytes and f32 scales in registers, 32 columns in their natural
// order at a time. Private to the avx2 matrix products; internal linkage only.
//
// A decoder calls f(i, q, scale, min) for the i-th 32 columns of its block. Lanes 0..3 of `scale`
// and `min` belong to columns 0..15, lanes 4..7 to the others, so that formats with one and with
// two scales look alike. weight = scale * q + min, where
//
//   kSigned   q is int8 and there is no min
//   unsigned  q <= kLargest; formats without a minimum get -kBias * scale, because maddubs wants
//             unsigned weights
#pragma once

#include <immintrin.h>

#include "kernels/isa/scalar_rows.h"

#define TAEL_INLINE inline __attribute__((always_inline))

namespace tael::kernels {
namespace {

TAEL_INLINE __m256i Load(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
TAEL_INLINE __m128i LoadHalfRegister(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
TAEL_INLINE __m256i Splat(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
TAEL_INLINE __m256 SplatHalf(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(Load16(p))));
}
TAEL_INLINE __m256 Negate(__m256 v) { return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f)); }

// 16 bytes to the low nibbles, then the high nibbles.
TAEL_INLINE __m256i Nibbles(const uint8_t* p) {
  const __m128i bytes = LoadHalfRegister(p);
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes), Splat(15));
}

// 16 in each byte whose bit of `bits` is set.
TAEL_INLINE __m256i FifthBits(uint32_t bits) {
  const __m256i byte_of = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2,
                                           2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201u));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), byte_of);
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  return _mm256_and_si256(set, Splat(16));
}

TAEL_INLINE __m256i Levels(__m256i nibbles) {
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(LoadHalfRegister(kNonLinear4)), nibbles);
}

// (bytes >> shift) & mask in each byte.
TAEL_INLINE __m256i Bits(__m256i bytes, int shift, int mask) {
  return _mm256_and_si256(_mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift)), Splat(mask));
}

TAEL_INLINE __m256 TimesMinus(float factor, __m256 v) {
  return _mm256_mul_ps(_mm256_set1_ps(-factor), v);
}

// ---- Formats with blocks of 32
// -------------------------------------------------------------------

struct DecodeQ4_0 {
  using Format = Q4_0;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 15;
  static constexpr int kBias = 8;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const __m256 scale = SplatHalf(p);
    f(0, Nibbles(p + 2), scale, TimesMinus(kBias, scale));
  }
};

struct DecodeQ4_1 {
  using Format = Q4_1;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 15;
  static constexpr int kBias = 0;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    f(0, Nibbles(p + 4), SplatHalf(p), SplatHalf(p + 2));
  }
};

struct DecodeQ5_0 {
  using Format = Q5_0;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 31;
  static constexpr int kBias = 16;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const __m256 scale = SplatHalf(p);
    f(0, _mm256_or_si256(Nibbles(p + 6), FifthBits(Load32(p + 2))), scale,
      TimesMinus(kBias, scale));
  }
};

struct DecodeQ5_1 {
  using Format = Q5_1;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 31;
  static constexpr int kBias = 0;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    f(0, _mm256_or_si256(Nibbles(p + 8), FifthBits(Load32(p + 4))), SplatHalf(p), SplatHalf(p + 2));
  }
};

struct DecodeQ8_0 {
  using Format = Q8_0;
  static constexpr bool kSigned = true;
  static constexpr int kLargest = 127;
  static constexpr int kBias = 0;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    f(0, Load(p + 2), SplatHalf(p), _mm256_setzero_ps());
  }
};

struct DecodeIQ4_NL {
  using Format = IQ4_NL;
  static constexpr bool kSigned = true;
  static constexpr int kLargest = 127;
  static constexpr int kBias = 0;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    f(0, Levels(Nibbles(p + 2)), SplatHalf(p), _mm256_setzero_ps());
  }
};

// ---- Formats with blocks of 256
// ------------------------------------------------------------------

// Scales of the 32 columns number i: one of 8, or two neighbours of 16.
TAEL_INLINE __m256 ScaleOf8(__m256 scales, int i) {
  return _mm256_permutevar8x32_ps(scales, _mm256_set1_epi32(i));
}
TAEL_INLINE __m256 ScalesOf16(const __m256 (&scales)[2], int i) {
  const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
  return _mm256_permutevar8x32_ps(scales[i / 4],
                                  _mm256_add_epi32(first, _mm256_set1_epi32(i % 4 * 2)));
}

TAEL_INLINE __m256 FloatsFromBytes(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

struct SixteenScales {
  __m256 v[2];
  TAEL_INLINE SixteenScales(__m128i bytes, __m256 factor)
      : v{_mm256_mul_ps(FloatsFromBytes(bytes), factor),
          _mm256_mul_ps(FloatsFromBytes(_mm_unpackhi_epi64(bytes, bytes)), factor)} {}
};

// Q4_K and Q5_K.
struct ScalesMinsK4 {
  __m256 scale, min;
  TAEL_INLINE explicit ScalesMinsK4(const uint8_t* b) {
    const uint32_t a0 = Load32(b + 4), a1 = Load32(b + 8), a2 = Load32(b + 12);
    const uint32_t s0 = a0 & 0x3f3f3f3f, s1 = (a2 & 0x0f0f0f0f) | ((a0 >> 2) & 0x30303030);
    const uint32_t m0 = a1 & 0x3f3f3f3f, m1 = ((a2 >> 4) & 0x0f0f0f0f) | ((a1 >> 2) & 0x30303030);
    const auto eight = [](uint32_t low, uint32_t high) {
      return FloatsFromBytes(_mm_cvtsi64_si128(static_cast<long long>(uint64_t{high} << 32 | low)));
    };
    scale = _mm256_mul_ps(eight(s0, s1), SplatHalf(b));
    min = Negate(_mm256_mul_ps(eight(m0, m1), SplatHalf(b + 2)));
  }
};

struct DecodeQ4_K {
  using Format = Q4_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 15;
  static constexpr int kBias = 0;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const ScalesMinsK4 scales(p);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      f(i, Bits(Load(p + 16 + i / 2 * 32), i % 2 * 4, 15), ScaleOf8(scales.scale, i),
        ScaleOf8(scales.min, i));
    }
  }
};

struct DecodeQ5_K {
  using Format = Q5_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 31;
  static constexpr int kBias = 0;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const ScalesMinsK4 scales(p);
    const __m256i high = Load(p + 16);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m256i fifth = _mm256_slli_epi16(Bits(high, i, 1), 4);
      f(i, _mm256_or_si256(Bits(Load(p + 48 + i / 2 * 32), i % 2 * 4, 15), fifth),
        ScaleOf8(scales.scale, i), ScaleOf8(scales.min, i));
    }
  }
};

struct DecodeQ6_K {
  using Format = Q6_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 63;
  static constexpr int kBias = 32;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const SixteenScales scales(LoadHalfRegister(p + 192), SplatHalf(p + 208));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const int half = i / 4, quarter = i % 4;
      const __m256i low = Bits(Load(p + half * 64 + quarter % 2 * 32), quarter / 2 * 4, 15);
      const __m256i high = Bits(Load(p + 128 + half * 32), quarter * 2, 3);
      const __m256 scale = ScalesOf16(scales.v, i);
      f(i, _mm256_or_si256(low, _mm256_slli_epi16(high, 4)), scale, TimesMinus(kBias, scale));
    }
  }
};

struct DecodeQ2_K {
  using Format = Q2_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 3;
  static constexpr int kBias = 0;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const __m128i packed = LoadHalfRegister(p), low4 = _mm_set1_epi8(15);
    const SixteenScales scales(_mm_and_si128(packed, low4), SplatHalf(p + 80));
    const SixteenScales mins(_mm_and_si128(_mm_srli_epi16(packed, 4), low4),
                             Negate(SplatHalf(p + 82)));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      f(i, Bits(Load(p + 16 + i / 4 * 32), i % 4 * 2, 3), ScalesOf16(scales.v, i),
        ScalesOf16(mins.v, i));
    }
  }
};

// 16 scales of 6 bits: low nibbles of bytes 0..7, then their high nibbles; bits 4 and 5 of scale i
// are bits 2 * (i / 4) and the next of byte 8 + i % 4.
TAEL_INLINE __m128i ScalesQ3K(const uint8_t* p) {
  const __m128i packed = LoadHalfRegister(p);
  const __m128i low = _mm_unpacklo_epi64(packed, _mm_srli_epi16(packed, 4));
  const __m128i high = _mm_shuffle_epi32(packed, 0xaa);
  const __m128i shifted = _mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6));
  const __m128i top = _mm_slli_epi16(_mm_and_si128(shifted, _mm_set1_epi8(3)), 4);
  return _mm_sub_epi8(_mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)), top), _mm_set1_epi8(32));
}

struct DecodeQ3_K {
  using Format = Q3_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 7;
  static constexpr int kBias = 4;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const SixteenScales scales(ScalesQ3K(p + 96), SplatHalf(p + 108));
    const __m256i high = Load(p);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const __m256i low = Bits(Load(p + 32 + i / 4 * 32), i % 4 * 2, 3);
      const __m256 scale = ScalesOf16(scales.v, i);
      f(i, _mm256_or_si256(low, _mm256_slli_epi16(Bits(high, i, 1), 2)), scale,
        TimesMinus(kBias, scale));
    }
  }
};

struct DecodeIQ4_XS {
  using Format = IQ4_XS;
  static constexpr bool kSigned = true;
  static constexpr int kLargest = 127;
  static constexpr int kBias = 0;
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(Load32(p + 4))),
                                          _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(Load16(p + 2) << 4),
                                           _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    const __m256i scale = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                          _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
    const __m256i centred = _mm256_sub_epi32(scale, _mm256_set1_epi32(32));
    const __m256 scales = _mm256_mul_ps(_mm256_cvtepi32_ps(centred), SplatHalf(p));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      f(i, Levels(Nibbles(p + 8 + 16 * i)), ScaleOf8(scales, i), _mm256_setzero_ps());
    }
  }
};

// Calls visit.operator()<Decoder>() for each quantised format.
template <typename Visitor>
constexpr void ForEachDecoder(Visitor&& visit) {
  visit.template operator()<DecodeQ4_0>();
  visit.template operator()<DecodeQ4_1>();
  visit.template operator()<DecodeQ5_0>();
  visit.template operator()<DecodeQ5_1>();
  visit.template operator()<DecodeQ8_0>();
  visit.template operator()<DecodeQ2_K>();
  visit.template operator()<DecodeQ3_K>();
  visit.template operator()<DecodeQ4_K>();
  visit.template operator()<DecodeQ5_K>();
  visit.template operator()<DecodeQ6_K>();
  visit.template operator()<DecodeIQ4_NL>();
  visit.template operator()<DecodeIQ4_XS>();
}

}  // namespace
}  // namespace tael::kernels
