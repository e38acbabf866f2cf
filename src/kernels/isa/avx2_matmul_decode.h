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
  const __m256i twice = _mm256_broadcastsi128_si256(LoadHalfRegister(p));
  return _mm256_and_si256(_mm256_srlv_epi32(twice, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)),
                          Splat(15));
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
//
// Each has Quants(p). Those of nibbles have them at kNibbles, low ones first, and perhaps fifth
// bits at kFifthBits.

struct DecodeQ4_0 {
  using Format = Q4_0;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 15;
  static constexpr int kBias = 8;
  static constexpr size_t kNibbles = 2;
  static TAEL_INLINE __m256i Quants(const uint8_t* p) { return Nibbles(p + kNibbles); }
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const __m256 scale = SplatHalf(p);
    f(0, Quants(p), scale, TimesMinus(kBias, scale));
  }
};

struct DecodeQ4_1 {
  using Format = Q4_1;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 15;
  static constexpr int kBias = 0;
  static constexpr size_t kNibbles = 4;
  static TAEL_INLINE __m256i Quants(const uint8_t* p) { return Nibbles(p + kNibbles); }
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    f(0, Quants(p), SplatHalf(p), SplatHalf(p + 2));
  }
};

struct DecodeQ5_0 {
  using Format = Q5_0;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 31;
  static constexpr int kBias = 16;
  static constexpr size_t kNibbles = 6, kFifthBits = 2;
  static TAEL_INLINE __m256i Quants(const uint8_t* p) {
    return _mm256_or_si256(Nibbles(p + kNibbles), FifthBits(Load32(p + kFifthBits)));
  }
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    const __m256 scale = SplatHalf(p);
    f(0, Quants(p), scale, TimesMinus(kBias, scale));
  }
};

struct DecodeQ5_1 {
  using Format = Q5_1;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 31;
  static constexpr int kBias = 0;
  static constexpr size_t kNibbles = 8, kFifthBits = 4;
  static TAEL_INLINE __m256i Quants(const uint8_t* p) {
    return _mm256_or_si256(Nibbles(p + kNibbles), FifthBits(Load32(p + kFifthBits)));
  }
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    f(0, Quants(p), SplatHalf(p), SplatHalf(p + 2));
  }
};

struct DecodeQ8_0 {
  using Format = Q8_0;
  static constexpr bool kSigned = true;
  static constexpr int kLargest = 127;
  static constexpr int kBias = 0;
  static TAEL_INLINE __m256i Quants(const uint8_t* p) { return Load(p + 2); }
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    f(0, Quants(p), SplatHalf(p), _mm256_setzero_ps());
  }
};

struct DecodeIQ4_NL {
  using Format = IQ4_NL;
  static constexpr bool kSigned = true;
  static constexpr int kLargest = 127;
  static constexpr int kBias = 0;
  static constexpr size_t kNibbles = 2;
  static TAEL_INLINE __m256i Quants(const uint8_t* p) { return Levels(Nibbles(p + kNibbles)); }
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    f(0, Quants(p), SplatHalf(p), _mm256_setzero_ps());
  }
};

// ---- Formats with blocks of 256
// ------------------------------------------------------------------
//
// Each has Quants(p, i), the i-th 32 columns, and Scales(p): whole numbers, one per 32 columns or
// per 16 (Format::kTwoScales); formats with minimums have Mins(p) like them. They are times the f16
// at kScale, and at kMin.

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

// 16 whole numbers times a factor; only the first 8 where a format has no more.
struct SixteenScales {
  __m256 v[2];
  TAEL_INLINE SixteenScales(__m128i bytes, __m256 factor)
      : v{_mm256_mul_ps(FloatsFromBytes(bytes), factor),
          _mm256_mul_ps(FloatsFromBytes(_mm_unpackhi_epi64(bytes, bytes)), factor)} {}
  template <bool kTwoScales>
  TAEL_INLINE __m256 Of(int i) const {
    return kTwoScales ? ScalesOf16(v, i) : ScaleOf8(v[0], i);
  }
};

template <typename Decoder>
struct DecodeSuperBlock {
  template <typename F>
  static TAEL_INLINE void Decode(const uint8_t* p, F f) {
    constexpr bool kTwo = Decoder::Format::kTwoScales;
    const SixteenScales scales(Decoder::Scales(p), SplatHalf(p + Decoder::kScale));
    if constexpr (Decoder::Format::kHasMin) {
      const SixteenScales mins(Decoder::Mins(p), Negate(SplatHalf(p + Decoder::kMin)));
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        f(i, Decoder::Quants(p, i), scales.template Of<kTwo>(i), mins.template Of<kTwo>(i));
      }
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const __m256 scale = scales.template Of<kTwo>(i);
        f(i, Decoder::Quants(p, i), scale, TimesMinus(Decoder::kBias, scale));
      }
    }
  }
};

TAEL_INLINE __m128i BytesOf(uint32_t low, uint32_t high) {
  return _mm_cvtsi64_si128(static_cast<long long>(uint64_t{high} << 32 | low));
}

// Q4_K and Q5_K: 8 scales and 8 minimums of 6 bits in 12 bytes.
struct ScalesMinsK4 {
  static constexpr size_t kScale = 0, kMin = 2;
  static TAEL_INLINE __m128i Scales(const uint8_t* p) {
    const uint32_t a0 = Load32(p + 4), a2 = Load32(p + 12);
    return BytesOf(a0 & 0x3f3f3f3f, (a2 & 0x0f0f0f0f) | ((a0 >> 2) & 0x30303030));
  }
  static TAEL_INLINE __m128i Mins(const uint8_t* p) {
    const uint32_t a1 = Load32(p + 8), a2 = Load32(p + 12);
    return BytesOf(a1 & 0x3f3f3f3f, ((a2 >> 4) & 0x0f0f0f0f) | ((a1 >> 2) & 0x30303030));
  }
};

struct DecodeQ4_K : DecodeSuperBlock<DecodeQ4_K>, ScalesMinsK4 {
  using Format = Q4_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 15;
  static constexpr int kBias = 0;
  static TAEL_INLINE __m256i Quants(const uint8_t* p, int i) {
    return Bits(Load(p + 16 + i / 2 * 32), i % 2 * 4, 15);
  }
};

struct DecodeQ5_K : DecodeSuperBlock<DecodeQ5_K>, ScalesMinsK4 {
  using Format = Q5_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 31;
  static constexpr int kBias = 0;
  static TAEL_INLINE __m256i Quants(const uint8_t* p, int i) {
    const __m256i fifth = _mm256_slli_epi16(Bits(Load(p + 16), i, 1), 4);
    return _mm256_or_si256(Bits(Load(p + 48 + i / 2 * 32), i % 2 * 4, 15), fifth);
  }
};

struct DecodeQ6_K : DecodeSuperBlock<DecodeQ6_K> {
  using Format = Q6_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 63;
  static constexpr int kBias = 32;
  static constexpr size_t kScale = 208;
  static TAEL_INLINE __m128i Scales(const uint8_t* p) { return LoadHalfRegister(p + 192); }
  static TAEL_INLINE __m256i Quants(const uint8_t* p, int i) {
    const int half = i / 4, quarter = i % 4;
    const __m256i low = Bits(Load(p + half * 64 + quarter % 2 * 32), quarter / 2 * 4, 15);
    const __m256i high = Bits(Load(p + 128 + half * 32), quarter * 2, 3);
    return _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
  }
};

struct DecodeQ2_K : DecodeSuperBlock<DecodeQ2_K> {
  using Format = Q2_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 3;
  static constexpr int kBias = 0;
  static constexpr size_t kScale = 80, kMin = 82;
  static TAEL_INLINE __m128i Scales(const uint8_t* p) {
    return _mm_and_si128(LoadHalfRegister(p), _mm_set1_epi8(15));
  }
  static TAEL_INLINE __m128i Mins(const uint8_t* p) {
    return _mm_and_si128(_mm_srli_epi16(LoadHalfRegister(p), 4), _mm_set1_epi8(15));
  }
  static TAEL_INLINE __m256i Quants(const uint8_t* p, int i) {
    return Bits(Load(p + 16 + i / 4 * 32), i % 4 * 2, 3);
  }
};

struct DecodeQ3_K : DecodeSuperBlock<DecodeQ3_K> {
  using Format = Q3_K;
  static constexpr bool kSigned = false;
  static constexpr int kLargest = 7;
  static constexpr int kBias = 4;
  static constexpr size_t kScale = 108;
  // 16 scales of 6 bits: low nibbles of bytes 0..7, then their high nibbles; bits 4 and 5 of scale
  // i are bits 2 * (i / 4) and the next of byte 8 + i % 4.
  static TAEL_INLINE __m128i Scales(const uint8_t* p) {
    const __m128i packed = LoadHalfRegister(p + 96);
    const __m128i low = _mm_unpacklo_epi64(packed, _mm_srli_epi16(packed, 4));
    const __m128i high = _mm_shuffle_epi32(packed, 0xaa);
    const __m128i shifted = _mm_srlv_epi32(high, _mm_setr_epi32(0, 2, 4, 6));
    const __m128i top = _mm_slli_epi16(_mm_and_si128(shifted, _mm_set1_epi8(3)), 4);
    return _mm_sub_epi8(_mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)), top),
                        _mm_set1_epi8(32));
  }
  static TAEL_INLINE __m256i Quants(const uint8_t* p, int i) {
    const __m256i low = Bits(Load(p + 32 + i / 4 * 32), i % 4 * 2, 3);
    return _mm256_or_si256(low, _mm256_slli_epi16(Bits(Load(p), i, 1), 2));
  }
};

struct DecodeIQ4_XS : DecodeSuperBlock<DecodeIQ4_XS> {
  using Format = IQ4_XS;
  static constexpr bool kSigned = true;
  static constexpr int kLargest = 127;
  static constexpr int kBias = 0;
  static constexpr size_t kScale = 0;
  // 8 scales of 6 bits: the low four bits of each, and in a number of 16 bits their upper two.
  static TAEL_INLINE __m128i Scales(const uint8_t* p) {
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(Load32(p + 4))),
                                          _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(Load16(p + 2) << 4),
                                           _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    const __m256i scale = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                          _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
    const __m256i centred = _mm256_sub_epi32(scale, _mm256_set1_epi32(32));
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(centred), _mm256_extracti128_si256(centred, 1));
    return _mm_packs_epi16(words, words);
  }
  static TAEL_INLINE __m256i Quants(const uint8_t* p, int i) {
    return Levels(Nibbles(p + 8 + 16 * i));
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
