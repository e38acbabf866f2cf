// Decoders: raw GGUF blocks to unsigned bytes and f32 scales in registers, 128 columns at a time.
// Private to the avx512 matrix products; internal linkage only.
//
// All formats decode to one order, because it falls out of a few instructions for each of them. Of
// four neighbouring blocks (or sub-blocks) of 32 columns:
//
//   q[0] = | block 0: 0..15 | block 1: 0..15 | block 2: 0..15 | block 3: 0..15 |   64 bytes
//   q[1] = | block 0: 16..31| block 1: 16..31| ...
//
// so 4-byte lane l of either register belongs to block l / 4 and one vector of scales serves both.
#pragma once

// GCC 12 warns about the deliberately undefined register inside its own intrinsics (bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "kernels/isa/scalar_rows.h"

#define TAEL_INLINE inline __attribute__((always_inline))

namespace tael::kernels {
namespace {

constexpr size_t kGroupColumns = 128;

// weight = scale * (q - bias) + min; bias is 1 << Decoder::kBiasShift, or 0 for formats with a
// minimum. scale[1] and min[1] are set only by formats with two scales per 32 values.
struct Group {
  __m512i q[2];
  __m512 scale[2];
  __m512 min[2];
};

struct alignas(64) Bytes64 {
  uint8_t v[64];
};
struct alignas(64) Words32 {
  uint16_t v[32];
};

template <typename F>
constexpr Bytes64 MakeBytes(F f) {
  Bytes64 t{};
  for (size_t i = 0; i < 64; ++i) t.v[i] = static_cast<uint8_t>(f(i / 16, i % 16));
  return t;
}

TAEL_INLINE __m512i Load(const Bytes64& t) { return _mm512_load_si512(t.v); }
TAEL_INLINE __m512i Load(const Words32& t) { return _mm512_load_si512(t.v); }

TAEL_INLINE __m512i Splat(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

TAEL_INLINE __m512i BroadcastLane(const uint8_t* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

TAEL_INLINE __m512 SplatHalf(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(Load16(p))));
}

TAEL_INLINE __m512 Negate(__m512 v) { return _mm512_xor_ps(v, _mm512_set1_ps(-0.0f)); }

// Lane l of a register of levels becomes the value of its 4-bit index.
TAEL_INLINE __m512i Levels(__m512i nibbles) {
  alignas(16) static constexpr uint8_t kTable[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                     129, 141, 153, 166, 181, 197, 217, 241};
  return _mm512_shuffle_epi8(BroadcastLane(kTable), nibbles);
}

// ---- Sources: how a decoder reads its group of blocks
// --------------------------------------------

// Everything is there.
struct WholeGroup {
  TAEL_INLINE __m512i Load(const uint8_t* p, size_t offset) const {
    return _mm512_loadu_si512(p + offset);
  }
};

// The last 1 to 3 blocks of a row whose length is no multiple of 128: missing blocks read as
// zeros, that is with a scale of zero, and nothing behind the row is touched.
struct PartGroup {
  uint64_t valid_bytes;

  TAEL_INLINE __m512i Load(const uint8_t* p, size_t offset) const {
    const uint64_t n = valid_bytes > offset ? valid_bytes - offset : 0;
    const __mmask64 mask = n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    return _mm512_maskz_loadu_epi8(mask, p + offset);
  }
};

// ---- Formats with blocks of 32
// -------------------------------------------------------------------

// Four blocks of kBytes (at most 32) lie in two overlapping registers; Position() says where a
// byte is for the two-register permutes.
template <size_t kBytes>
struct FourBlocks {
  static constexpr size_t kSecond = 4 * kBytes - 64;
  static constexpr size_t Position(size_t offset) {
    return offset < 64 ? offset : 64 + offset - kSecond;
  }

  // 16 bytes at kOffset of each block.
  template <size_t kOffset>
  static constexpr Bytes64 kSixteen = MakeBytes([](size_t block, size_t i) {
    return Position(block * kBytes + kOffset + i);
  });

  // Byte kOffset + i / 8 of each block: the byte that holds bit i.
  template <size_t kOffset>
  static constexpr Bytes64 kBitBytes = MakeBytes([](size_t block, size_t i) {
    return Position(block * kBytes + kOffset + i / 8);
  });

  // The f16 at kOffset of each block, once per lane.
  template <size_t kOffset>
  static constexpr Words32 kHalves = [] {
    Words32 t{};
    for (size_t i = 0; i < 16; ++i) {
      t.v[i] = static_cast<uint16_t>(Position(i / 4 * kBytes + kOffset) / 2);
    }
    return t;
  }();

  template <typename Source>
  TAEL_INLINE FourBlocks(const Source& source, const uint8_t* p)
      : first(source.Load(p, 0)), second(source.Load(p, kSecond)) {}

  template <size_t kOffset>
  TAEL_INLINE __m512i Sixteen() const {
    return _mm512_permutex2var_epi8(first, Load(kSixteen<kOffset>), second);
  }
  template <size_t kOffset>
  TAEL_INLINE __m512 Halves() const {
    return _mm512_cvtph_ps(
        _mm512_castsi512_si256(_mm512_permutex2var_epi16(first, Load(kHalves<kOffset>), second)));
  }
  // Adds 16 where the bit of a value is set; bits of q[0] at kOffset, those of q[1] behind.
  template <size_t kOffset>
  TAEL_INLINE void AddFifthBits(Group& g) const {
    const __m512i bit = _mm512_set1_epi64(static_cast<long long>(0x8040201008040201u));
    const __m512i sixteen = Splat(16);
    const __m512i low = _mm512_permutex2var_epi8(first, Load(kBitBytes<kOffset>), second);
    const __m512i high = _mm512_permutex2var_epi8(first, Load(kBitBytes<kOffset + 2>), second);
    g.q[0] =
        _mm512_or_si512(g.q[0], _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(low, bit), sixteen));
    g.q[1] =
        _mm512_or_si512(g.q[1], _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(high, bit), sixteen));
  }

  __m512i first, second;
};

TAEL_INLINE void SplitNibbles(__m512i bytes, Group& g) {
  const __m512i mask = Splat(15);
  g.q[0] = _mm512_and_si512(bytes, mask);
  g.q[1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
}

struct DecodeQ4_0 {
  using Format = Q4_0;
  static constexpr int kBiasShift = 3;
  static constexpr size_t kGroups = 1;
  template <typename Source>
  static TAEL_INLINE void Decode(const Source& source, const uint8_t* p, Group* g) {
    const FourBlocks<18> blocks(source, p);
    SplitNibbles(blocks.Sixteen<2>(), *g);
    g->scale[0] = blocks.Halves<0>();
  }
};

struct DecodeQ4_1 {
  using Format = Q4_1;
  static constexpr int kBiasShift = 0;
  static constexpr size_t kGroups = 1;
  template <typename Source>
  static TAEL_INLINE void Decode(const Source& source, const uint8_t* p, Group* g) {
    const FourBlocks<20> blocks(source, p);
    SplitNibbles(blocks.Sixteen<4>(), *g);
    g->scale[0] = blocks.Halves<0>();
    g->min[0] = blocks.Halves<2>();
  }
};

struct DecodeQ5_0 {
  using Format = Q5_0;
  static constexpr int kBiasShift = 4;
  static constexpr size_t kGroups = 1;
  template <typename Source>
  static TAEL_INLINE void Decode(const Source& source, const uint8_t* p, Group* g) {
    const FourBlocks<22> blocks(source, p);
    SplitNibbles(blocks.Sixteen<6>(), *g);
    blocks.AddFifthBits<2>(*g);
    g->scale[0] = blocks.Halves<0>();
  }
};

struct DecodeQ5_1 {
  using Format = Q5_1;
  static constexpr int kBiasShift = 0;
  static constexpr size_t kGroups = 1;
  template <typename Source>
  static TAEL_INLINE void Decode(const Source& source, const uint8_t* p, Group* g) {
    const FourBlocks<24> blocks(source, p);
    SplitNibbles(blocks.Sixteen<8>(), *g);
    blocks.AddFifthBits<4>(*g);
    g->scale[0] = blocks.Halves<0>();
    g->min[0] = blocks.Halves<2>();
  }
};

struct DecodeIQ4_NL {
  using Format = IQ4_NL;
  static constexpr int kBiasShift = 7;
  static constexpr size_t kGroups = 1;
  template <typename Source>
  static TAEL_INLINE void Decode(const Source& source, const uint8_t* p, Group* g) {
    const FourBlocks<18> blocks(source, p);
    SplitNibbles(blocks.Sixteen<2>(), *g);
    g->q[0] = Levels(g->q[0]);
    g->q[1] = Levels(g->q[1]);
    g->scale[0] = blocks.Halves<0>();
  }
};

// 136 bytes do not fit two registers: one pair for the first halves and the scales, one for the
// second halves.
struct DecodeQ8_0 {
  using Format = Q8_0;
  static constexpr int kBiasShift = 7;
  static constexpr size_t kGroups = 1;

  static constexpr Bytes64 kFirst = MakeBytes([](size_t b, size_t i) { return 34 * b + 2 + i; });
  static constexpr Bytes64 kSecond = MakeBytes([](size_t b, size_t i) { return 34 * b + 10 + i; });
  static constexpr Words32 kScales = [] {
    Words32 t{};
    for (size_t i = 0; i < 16; ++i) t.v[i] = static_cast<uint16_t>(i / 4 * 17);
    return t;
  }();

  template <typename Source>
  static TAEL_INLINE void Decode(const Source& source, const uint8_t* p, Group* g) {
    const __m512i a = source.Load(p, 0), b = source.Load(p, 64);
    const __m512i c = source.Load(p, 8), d = source.Load(p, 72);
    const __m512i sign = Splat(0x80);
    g->q[0] = _mm512_xor_si512(_mm512_permutex2var_epi8(a, Load(kFirst), b), sign);
    g->q[1] = _mm512_xor_si512(_mm512_permutex2var_epi8(c, Load(kSecond), d), sign);
    g->scale[0] =
        _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutex2var_epi16(a, Load(kScales), b)));
  }
};

// ---- Formats with blocks of 256: two groups each
// -------------------------------------------------

// Shift count of each byte for multishift, which takes 8 bits at any offset of a 64-bit word.
template <typename F>
constexpr Bytes64 MakeShifts(F shift_of_block) {
  return MakeBytes([=](size_t block, size_t i) {
    return (64 + 8 * (i % 8) + static_cast<size_t>(shift_of_block(block))) % 64;
  });
}
constexpr Bytes64 kShift0246 = MakeShifts([](size_t b) { return 2 * static_cast<int>(b); });
constexpr Bytes64 kShiftHigh6 = MakeShifts([](size_t b) { return 2 * static_cast<int>(b) - 4; });
constexpr Bytes64 kShift0404 = MakeShifts([](size_t b) { return b % 2 * 4; });
constexpr Bytes64 kShift0044 = MakeShifts([](size_t b) { return b / 2 * 4; });

TAEL_INLINE __m512i Shift(const Bytes64& shifts, __m512i bytes) {
  return _mm512_multishift_epi64_epi8(Load(shifts), bytes);
}

// Lane l takes element kStep * (l / 4) + kFirst.
template <int kFirst, int kStep>
TAEL_INLINE __m512 Spread(__m512 values) {
  constexpr int a = kFirst, b = a + kStep, c = b + kStep, d = c + kStep;
  return _mm512_permutexvar_ps(_mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d),
                               values);
}

TAEL_INLINE __m512 FloatsFromBytes(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}

// Adds 1 << kBit where bit 4 * half + block of `bits` is set.
template <size_t kHalf, int kBit>
TAEL_INLINE __m512i AddBitPlane(__m512i q, const uint8_t* bits) {
  static constexpr Bytes64 kMask =
      MakeBytes([](size_t b, size_t) { return 1u << (4 * kHalf + b); });
  const __mmask64 set = _mm512_test_epi8_mask(BroadcastLane(bits), Load(kMask));
  return _mm512_or_si512(q, _mm512_maskz_mov_epi8(set, Splat(1 << kBit)));
}

// 8 scales in the low half, 8 minimums in the high half of a register, from Q4_K and Q5_K.
TAEL_INLINE __m512 ScalesAndMinsK4(const uint8_t* b) {
  const uint32_t a0 = Load32(b + 4), a1 = Load32(b + 8), a2 = Load32(b + 12);
  const uint32_t s0 = a0 & 0x3f3f3f3f, s1 = (a2 & 0x0f0f0f0f) | ((a0 >> 2) & 0x30303030);
  const uint32_t m0 = a1 & 0x3f3f3f3f, m1 = ((a2 >> 4) & 0x0f0f0f0f) | ((a1 >> 2) & 0x30303030);
  const __m128i bytes = _mm_set_epi64x(static_cast<long long>(uint64_t{m1} << 32 | m0),
                                       static_cast<long long>(uint64_t{s1} << 32 | s0));
  const __m512 d = SplatHalf(b);
  const __m512 minus_dmin = Negate(SplatHalf(b + 2));
  return _mm512_mul_ps(FloatsFromBytes(bytes), _mm512_mask_blend_ps(0xff00, d, minus_dmin));
}

// The 4-bit parts of Q4_K and Q5_K: 32 bytes hold blocks 2j (low) and 2j + 1 (high).
TAEL_INLINE void DecodeNibblesK(const uint8_t* qs, Group& g) {
  const __m512i bytes = _mm512_loadu_si512(qs), mask = Splat(15);
  const __m512i first = _mm512_shuffle_i64x2(bytes, bytes, _MM_SHUFFLE(2, 2, 0, 0));
  const __m512i second = _mm512_shuffle_i64x2(bytes, bytes, _MM_SHUFFLE(3, 3, 1, 1));
  g.q[0] = _mm512_and_si512(Shift(kShift0404, first), mask);
  g.q[1] = _mm512_and_si512(Shift(kShift0404, second), mask);
}

struct DecodeQ4_K {
  using Format = Q4_K;
  static constexpr int kBiasShift = 0;
  static constexpr size_t kGroups = 2;
  static TAEL_INLINE __m512 RawScales(const uint8_t* p) { return ScalesAndMinsK4(p); }
  static TAEL_INLINE void Decode(WholeGroup, const uint8_t* p, Group* g) {
    const __m512 scales = RawScales(p);
    DecodeNibblesK(p + 16, g[0]);
    DecodeNibblesK(p + 80, g[1]);
    g[0].scale[0] = Spread<0, 1>(scales);
    g[1].scale[0] = Spread<4, 1>(scales);
    g[0].min[0] = Spread<8, 1>(scales);
    g[1].min[0] = Spread<12, 1>(scales);
  }
};

struct DecodeQ5_K {
  using Format = Q5_K;
  static constexpr int kBiasShift = 0;
  static constexpr size_t kGroups = 2;
  static TAEL_INLINE __m512 RawScales(const uint8_t* p) { return ScalesAndMinsK4(p); }
  static TAEL_INLINE void Decode(WholeGroup, const uint8_t* p, Group* g) {
    const __m512 scales = RawScales(p);
    DecodeNibblesK(p + 48, g[0]);
    DecodeNibblesK(p + 112, g[1]);
    g[0].q[0] = AddBitPlane<0, 4>(g[0].q[0], p + 16);
    g[0].q[1] = AddBitPlane<0, 4>(g[0].q[1], p + 32);
    g[1].q[0] = AddBitPlane<1, 4>(g[1].q[0], p + 16);
    g[1].q[1] = AddBitPlane<1, 4>(g[1].q[1], p + 32);
    g[0].scale[0] = Spread<0, 1>(scales);
    g[1].scale[0] = Spread<4, 1>(scales);
    g[0].min[0] = Spread<8, 1>(scales);
    g[1].min[0] = Spread<12, 1>(scales);
  }
};

// 16 scales, one per 16 columns, for formats that have two per block.
TAEL_INLINE void SpreadTwoScales(__m512 scales, Group* g) {
  g[0].scale[0] = Spread<0, 2>(scales);
  g[0].scale[1] = Spread<1, 2>(scales);
  g[1].scale[0] = Spread<8, 2>(scales);
  g[1].scale[1] = Spread<9, 2>(scales);
}

struct DecodeQ6_K {
  using Format = Q6_K;
  static constexpr int kBiasShift = 5;
  static constexpr size_t kGroups = 2;
  static TAEL_INLINE __m512 RawScales(const uint8_t* p) {
    const __m128i scales = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 192));
    return _mm512_mul_ps(FloatsFromBytes(scales), SplatHalf(p + 208));
  }
  static TAEL_INLINE void Decode(WholeGroup, const uint8_t* p, Group* g) {
    SpreadTwoScales(RawScales(p), g);
    const __m512i low4 = Splat(15), high2 = Splat(0x30);
#pragma GCC unroll 2
    for (size_t h = 0; h < 2; ++h) {
      const __m512i low = _mm512_loadu_si512(p + 64 * h);
      const __m512i lanes[2] = {_mm512_shuffle_i64x2(low, low, _MM_SHUFFLE(2, 0, 2, 0)),
                                _mm512_shuffle_i64x2(low, low, _MM_SHUFFLE(3, 1, 3, 1))};
#pragma GCC unroll 2
      for (size_t i = 0; i < 2; ++i) {
        const __m512i high = Shift(kShiftHigh6, BroadcastLane(p + 128 + 32 * h + 16 * i));
        g[h].q[i] = _mm512_or_si512(_mm512_and_si512(Shift(kShift0044, lanes[i]), low4),
                                    _mm512_and_si512(high, high2));
      }
    }
  }
};

// 2-bit planes: 16 bytes hold values of blocks 0..3 of a group, 2 bits each.
TAEL_INLINE __m512i DecodeTwoBits(const uint8_t* p) {
  return _mm512_and_si512(Shift(kShift0246, BroadcastLane(p)), Splat(3));
}

struct DecodeQ2_K {
  using Format = Q2_K;
  static constexpr int kBiasShift = 0;
  static constexpr size_t kGroups = 2;
  static TAEL_INLINE __m512 RawScales(const uint8_t* p) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
    return _mm512_mul_ps(FloatsFromBytes(low), SplatHalf(p + 80));
  }
  static TAEL_INLINE __m512 RawMins(const uint8_t* p) {
    const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
    return _mm512_mul_ps(FloatsFromBytes(high), Negate(SplatHalf(p + 82)));
  }
  static TAEL_INLINE void Decode(WholeGroup, const uint8_t* p, Group* g) {
    SpreadTwoScales(RawScales(p), g);
    const __m512 mins = RawMins(p);
    g[0].min[0] = Spread<0, 2>(mins);
    g[0].min[1] = Spread<1, 2>(mins);
    g[1].min[0] = Spread<8, 2>(mins);
    g[1].min[1] = Spread<9, 2>(mins);
#pragma GCC unroll 2
    for (size_t h = 0; h < 2; ++h) {
      g[h].q[0] = DecodeTwoBits(p + 16 + 32 * h);
      g[h].q[1] = DecodeTwoBits(p + 32 + 32 * h);
    }
  }
};

// 16 scales of 6 bits: low nibbles of bytes 0..7, then their high nibbles; bits 4 and 5 of scale i
// are bits 2 * (i / 4) and the next of byte 8 + i % 4.
TAEL_INLINE __m128i ScalesQ3K(const uint8_t* p) {
  const __m128i low_shift =
      _mm_setr_epi8(0, 8, 16, 24, 32, 40, 48, 56, 4, 12, 20, 28, 36, 44, 52, 60);
  const __m128i high_shift =
      _mm_setr_epi8(60, 4, 12, 20, 30, 38, 46, 54, 0, 8, 16, 24, 34, 42, 50, 58);
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i low = _mm_multishift_epi64_epi8(low_shift, _mm_unpacklo_epi64(packed, packed));
  const __m128i high = _mm_multishift_epi64_epi8(high_shift, _mm_shuffle_epi32(packed, 0xaa));
  const __m128i scale =
      _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)), _mm_and_si128(high, _mm_set1_epi8(0x30)));
  return _mm_sub_epi8(scale, _mm_set1_epi8(32));
}

struct DecodeQ3_K {
  using Format = Q3_K;
  static constexpr int kBiasShift = 2;
  static constexpr size_t kGroups = 2;
  static TAEL_INLINE __m512 RawScales(const uint8_t* p) {
    return _mm512_mul_ps(FloatsFromBytes(ScalesQ3K(p + 96)), SplatHalf(p + 108));
  }
  static TAEL_INLINE void Decode(WholeGroup, const uint8_t* p, Group* g) {
    SpreadTwoScales(RawScales(p), g);
    g[0].q[0] = AddBitPlane<0, 2>(DecodeTwoBits(p + 32), p);
    g[0].q[1] = AddBitPlane<0, 2>(DecodeTwoBits(p + 48), p + 16);
    g[1].q[0] = AddBitPlane<1, 2>(DecodeTwoBits(p + 64), p);
    g[1].q[1] = AddBitPlane<1, 2>(DecodeTwoBits(p + 80), p + 16);
  }
};

struct DecodeIQ4_XS {
  using Format = IQ4_XS;
  static constexpr int kBiasShift = 7;
  static constexpr size_t kGroups = 2;
  static TAEL_INLINE __m512 RawScales(const uint8_t* p) {
    const __m256i low = _mm256_srlv_epi32(_mm256_set1_epi32(static_cast<int>(Load32(p + 4))),
                                          _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    const __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32(Load16(p + 2) << 4),
                                           _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
    const __m256i scale = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)),
                                          _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
    const __m256i centred = _mm256_sub_epi32(scale, _mm256_set1_epi32(32));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_castsi256_si512(centred)), SplatHalf(p));
  }
  static TAEL_INLINE void Decode(WholeGroup, const uint8_t* p, Group* g) {
    const __m512 scales = RawScales(p);
    g[0].scale[0] = Spread<0, 1>(scales);
    g[1].scale[0] = Spread<4, 1>(scales);
#pragma GCC unroll 2
    for (size_t h = 0; h < 2; ++h) {
      SplitNibbles(_mm512_loadu_si512(p + 8 + 64 * h), g[h]);
      g[h].q[0] = Levels(g[h].q[0]);
      g[h].q[1] = Levels(g[h].q[1]);
    }
  }
};

// Calls f(source, column, row) for each step of a row: whole groups, then what is left. `step` is
// the number of columns that a Decode() yields.
template <typename Decoder>
constexpr size_t kStepColumns = Decoder::kGroups* kGroupColumns;
template <typename Decoder>
constexpr size_t kStepBytes =
    kStepColumns<Decoder> /
    kShapeOf<typename Decoder::Format>.elements* kShapeOf<typename Decoder::Format>.bytes;

template <typename Decoder, typename F>
TAEL_INLINE void ForEachStep(size_t k, F f) {
  size_t column = 0, offset = 0;
  for (; column + kStepColumns<Decoder> <= k; column += kStepColumns<Decoder>) {
    f(WholeGroup{}, column, offset);
    offset += kStepBytes<Decoder>;
  }
  if constexpr (Decoder::kGroups == 1) {
    if (column < k) {
      constexpr BlockShape shape = kShapeOf<typename Decoder::Format>;
      f(PartGroup{(k - column) / shape.elements * shape.bytes}, column, offset);
    }
  }
}

}  // namespace
}  // namespace tael::kernels
