// Unpackers: one block of each of 16 rows to panel columns. Private to the avx512 matrix products.
//
// The raw bytes are transposed first and decoded afterwards, so that a nibble is moved once and
// every step works on 16 rows at a time; scales, too, are decoded with rows in lanes. (The
// decoders of one row work the other way round.) All formats end up in Columns.
#pragma once

#include "kernels/isa/avx512_matmul_pack.h"

namespace tael::kernels {
namespace {

constexpr size_t kPanelRows = 16;

// 32 columns of 16 rows. q[j]: 4 bytes of each row, columns 4j .. 4j + 3; unsigned, + 128 for
// formats without a minimum. [1]: of columns 16..31, if those have scales of their own.
struct Columns {
  __m512i q[8];
  __m512 scale[2];
  __m512 min[2];
};

// The same block of 16 rows. A set that has fewer rows reads its last one again.
template <bool kAll>
struct BlockRows {
  const uint8_t* first;
  size_t row_bytes;
  size_t last;

  TAEL_INLINE __m128i Sixteen(size_t row, size_t offset) const {
    const size_t r = kAll || row < last ? row : last;
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(first + r * row_bytes + offset));
  }

  // The 16 bytes at `offset` of each row: dword j of row r goes to lane r of out[j]. Masked
  // broadcasts assemble the rows because they are loads and blends; inserts would load the
  // shuffle port.
  TAEL_INLINE void Transpose(size_t offset, __m512i* out) const {
    __m512i v[4];  // v[i] holds rows i, i + 4, i + 8, i + 12
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; ++i) {
      v[i] = _mm512_broadcast_i32x4(Sixteen(i, offset));
      v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x00f0, Sixteen(i + 4, offset));
      v[i] = _mm512_mask_broadcast_i32x4(v[i], 0x0f00, Sixteen(i + 8, offset));
      v[i] = _mm512_mask_broadcast_i32x4(v[i], 0xf000, Sixteen(i + 12, offset));
    }
    const __m512i ab0 = _mm512_unpacklo_epi32(v[0], v[1]), ab1 = _mm512_unpackhi_epi32(v[0], v[1]);
    const __m512i cd0 = _mm512_unpacklo_epi32(v[2], v[3]), cd1 = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(ab0, cd0);
    out[1] = _mm512_unpackhi_epi64(ab0, cd0);
    out[2] = _mm512_unpacklo_epi64(ab1, cd1);
    out[3] = _mm512_unpackhi_epi64(ab1, cd1);
  }

  TAEL_INLINE void Transpose32(size_t offset, __m512i (&out)[8]) const {
    Transpose(offset, out);
    Transpose(offset + 16, out + 4);
  }
};

// ---- Pieces
// --------------------------------------------------------------------------------------

TAEL_INLINE __m512 LowHalves(__m512i dwords) {
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(dwords));
}
TAEL_INLINE __m512 HighHalves(__m512i dwords) { return LowHalves(_mm512_srli_epi32(dwords, 16)); }

// Byte n of each dword as a float.
TAEL_INLINE __m512 UnsignedByte(__m512i dwords, unsigned n) {
  const __m512i byte = _mm512_srli_epi32(dwords, 8 * n);
  return _mm512_cvtepi32_ps(_mm512_and_si512(byte, _mm512_set1_epi32(255)));
}
TAEL_INLINE __m512 SignedByte(__m512i dwords, unsigned n) {
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(dwords, 24 - 8 * n), 24));
}

// (bytes >> shift) & mask in each byte; a negative shift goes left. The mask must not let in bits
// of the neighbouring byte.
TAEL_INLINE __m512i Bits(__m512i bytes, int shift, int mask) {
  const __m512i shifted = shift >= 0 ? _mm512_srli_epi16(bytes, static_cast<unsigned>(shift))
                                     : _mm512_slli_epi16(bytes, static_cast<unsigned>(-shift));
  return _mm512_and_si512(shifted, Splat(mask));
}

template <int kBias>
TAEL_INLINE void AddPanelBias(Columns& c) {
#pragma GCC unroll 8
  for (size_t j = 0; j < 8; ++j)
    c.q[j] = _mm512_add_epi8(c.q[j], Splat((1 << kPanelBiasShift) - kBias));
}

// 16 bytes of nibbles: columns 0..15 in the low ones, 16..31 in the high ones.
template <typename Rows>
TAEL_INLINE void UnpackNibbles(const Rows& rows, size_t offset, Columns& c) {
  __m512i bytes[4];
  rows.Transpose(offset, bytes);
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) {
    c.q[j] = Bits(bytes[j], 0, 15);
    c.q[4 + j] = Bits(bytes[j], 4, 15);
  }
}

TAEL_INLINE void ToLevels(Columns& c) {
#pragma GCC unroll 8
  for (size_t j = 0; j < 8; ++j) c.q[j] = Levels(c.q[j]);
}

// Adds 16 to column i where bit i of the row's dword is set: multishift brings bit 4j + b to bit 4
// of byte b. Each of its 64-bit words holds two rows.
TAEL_INLINE void AddFifthBits(__m512i bits, Columns& c) {
  static constexpr auto kShifts = [](size_t j) {
    return MakeBytes([j](size_t, size_t i) { return (60 + i % 8 / 4 * 32 + 4 * j + i % 4) % 64; });
  };
  static constexpr Bytes64 kTable[8] = {kShifts(0), kShifts(1), kShifts(2), kShifts(3),
                                        kShifts(4), kShifts(5), kShifts(6), kShifts(7)};
#pragma GCC unroll 8
  for (size_t j = 0; j < 8; ++j) {
    c.q[j] = _mm512_or_si512(c.q[j], _mm512_and_si512(Shift(kTable[j], bits), Splat(16)));
  }
}

// ---- Formats with blocks of 32
// ------------------------------------------------------------------- put(i, columns) takes the
// i-th 32 columns of the block.

struct UnpackQ4_0 {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    Columns c;
    __m512i head[4];
    rows.Transpose(0, head);
    c.scale[0] = LowHalves(head[0]);
    UnpackNibbles(rows, 2, c);
    AddPanelBias<8>(c);
    put(0, c);
  }
};

struct UnpackQ4_1 {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    Columns c;
    __m512i head[4];
    rows.Transpose(0, head);
    c.scale[0] = LowHalves(head[0]);
    c.min[0] = HighHalves(head[0]);
    UnpackNibbles(rows, 4, c);
    put(0, c);
  }
};

struct UnpackQ5_0 {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    Columns c;
    __m512i head[4];
    rows.Transpose(0, head);
    c.scale[0] = LowHalves(head[0]);
    UnpackNibbles(rows, 6, c);
    AddFifthBits(_mm512_or_si512(_mm512_srli_epi32(head[0], 16), _mm512_slli_epi32(head[1], 16)),
                 c);
    AddPanelBias<16>(c);
    put(0, c);
  }
};

struct UnpackQ5_1 {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    Columns c;
    __m512i head[4];
    rows.Transpose(0, head);
    c.scale[0] = LowHalves(head[0]);
    c.min[0] = HighHalves(head[0]);
    UnpackNibbles(rows, 8, c);
    AddFifthBits(head[1], c);
    put(0, c);
  }
};

struct UnpackQ8_0 {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    Columns c;
    __m512i head[4];
    rows.Transpose(0, head);
    c.scale[0] = LowHalves(head[0]);
    rows.Transpose(2, c.q);
    rows.Transpose(18, c.q + 4);
    AddPanelBias<0>(c);
    put(0, c);
  }
};

struct UnpackIQ4_NL {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    Columns c;
    __m512i head[4];
    rows.Transpose(0, head);
    c.scale[0] = LowHalves(head[0]);
    UnpackNibbles(rows, 2, c);
    ToLevels(c);
    put(0, c);
  }
};

// ---- Formats with blocks of 256
// ------------------------------------------------------------------

// The 8 scales and minimums of Q4_K and Q5_K: byte i % 4 of scale[i / 4].
struct ScalesMinsK4 {
  __m512 d, minus_dmin;
  __m512i scale[2], min[2];

  template <typename Rows>
  TAEL_INLINE explicit ScalesMinsK4(const Rows& rows) {
    __m512i head[4];
    rows.Transpose(0, head);
    d = LowHalves(head[0]);
    minus_dmin = Negate(HighHalves(head[0]));
    const __m512i six = Splat(0x3f), four = Splat(15), top = Splat(0x30);
    scale[0] = _mm512_and_si512(head[1], six);
    min[0] = _mm512_and_si512(head[2], six);
    scale[1] = _mm512_or_si512(_mm512_and_si512(head[3], four),
                               _mm512_and_si512(_mm512_srli_epi16(head[1], 2), top));
    min[1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(head[3], 4), four),
                             _mm512_and_si512(_mm512_srli_epi16(head[2], 2), top));
  }

  TAEL_INLINE void Set(size_t i, Columns& c) const {
    const auto byte = static_cast<unsigned>(i % 4);
    c.scale[0] = _mm512_mul_ps(UnsignedByte(scale[i / 4], byte), d);
    c.min[0] = _mm512_mul_ps(UnsignedByte(min[i / 4], byte), minus_dmin);
  }
};

// In all that follows 32 bytes hold two or more runs of 32 columns in different bits. Each run is
// taken out and stored before the next, so that registers suffice.

struct UnpackQ4_K {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    const ScalesMinsK4 scales(rows);
#pragma GCC unroll 4
    for (size_t pair = 0; pair < 4; ++pair) {
      __m512i bytes[8];
      rows.Transpose32(16 + 32 * pair, bytes);
#pragma GCC unroll 2
      for (size_t n = 0; n < 2; ++n) {
        Columns c;
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; ++j) c.q[j] = Bits(bytes[j], 4 * static_cast<int>(n), 15);
        scales.Set(2 * pair + n, c);
        put(2 * pair + n, c);
      }
    }
  }
};

// Adds 1 << kTo where bit `from` of the plane is set.
template <int kTo>
TAEL_INLINE void AddPlane(const __m512i (&plane)[8], int from, Columns& c) {
#pragma GCC unroll 8
  for (size_t j = 0; j < 8; ++j) {
    c.q[j] = _mm512_or_si512(c.q[j], Bits(plane[j], from - kTo, 1 << kTo));
  }
}

struct UnpackQ5_K {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    const ScalesMinsK4 scales(rows);
    __m512i plane[8];
    rows.Transpose32(16, plane);
#pragma GCC unroll 4
    for (size_t pair = 0; pair < 4; ++pair) {
      __m512i bytes[8];
      rows.Transpose32(48 + 32 * pair, bytes);
#pragma GCC unroll 2
      for (size_t n = 0; n < 2; ++n) {
        Columns c;
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; ++j) c.q[j] = Bits(bytes[j], 4 * static_cast<int>(n), 15);
        AddPlane<4>(plane, static_cast<int>(2 * pair + n), c);
        scales.Set(2 * pair + n, c);
        put(2 * pair + n, c);
      }
    }
  }
};

struct UnpackQ6_K {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    __m512i scales[4], tail[4];
    rows.Transpose(192, scales);
    rows.Transpose(208, tail);
    const __m512 d = LowHalves(tail[0]);
#pragma GCC unroll 4
    for (size_t pair = 0; pair < 4; ++pair) {
      const size_t half = pair / 2, first = pair % 2;  // quarters `first` and `first` + 2
      __m512i low[8], high[8];
      rows.Transpose32(32 * pair, low);
      rows.Transpose32(128 + 32 * half, high);
#pragma GCC unroll 2
      for (size_t n = 0; n < 2; ++n) {
        const size_t quarter = first + 2 * n, i = 4 * half + quarter;
        Columns c;
#pragma GCC unroll 8
        for (size_t j = 0; j < 8; ++j) {
          c.q[j] = _mm512_or_si512(Bits(low[j], 4 * static_cast<int>(n), 15),
                                   Bits(high[j], 2 * static_cast<int>(quarter) - 4, 0x30));
        }
        AddPanelBias<32>(c);
#pragma GCC unroll 2
        for (size_t m = 0; m < 2; ++m) {
          const auto byte = static_cast<unsigned>(2 * i % 4 + m);
          c.scale[m] = _mm512_mul_ps(SignedByte(scales[i / 2], byte), d);
        }
        put(i, c);
      }
    }
  }
};

// The 2-bit planes of Q2_K and Q3_K: 32 bytes hold quarter t of a half of the block in bits 2t.
template <typename Rows, typename F>
TAEL_INLINE void ForEachTwoBits(const Rows& rows, size_t offset, F f) {
#pragma GCC unroll 2
  for (size_t half = 0; half < 2; ++half) {
    __m512i bytes[8];
    rows.Transpose32(offset + 32 * half, bytes);
#pragma GCC unroll 4
    for (size_t quarter = 0; quarter < 4; ++quarter) {
      Columns c;
#pragma GCC unroll 8
      for (size_t j = 0; j < 8; ++j) c.q[j] = Bits(bytes[j], 2 * static_cast<int>(quarter), 3);
      f(4 * half + quarter, c);
    }
  }
}

struct UnpackQ2_K {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    __m512i packed[4], tail[4];
    rows.Transpose(0, packed);
    rows.Transpose(80, tail);
    const __m512 d = LowHalves(tail[0]), minus_dmin = Negate(HighHalves(tail[0]));
    ForEachTwoBits(
        rows, 16, [&](size_t i, Columns & c) __attribute__((always_inline)) {
          const __m512i scales = Bits(packed[i / 2], 0, 15), mins = Bits(packed[i / 2], 4, 15);
#pragma GCC unroll 2
          for (size_t n = 0; n < 2; ++n) {
            const auto byte = static_cast<unsigned>(2 * i % 4 + n);
            c.scale[n] = _mm512_mul_ps(UnsignedByte(scales, byte), d);
            c.min[n] = _mm512_mul_ps(UnsignedByte(mins, byte), minus_dmin);
          }
          put(i, c);
        });
  }
};

struct UnpackQ3_K {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    __m512i packed[4], plane[8];
    rows.Transpose(96, packed);  // 12 bytes of scales, then d
    rows.Transpose32(0, plane);
    const __m512 d = LowHalves(packed[3]);
    ForEachTwoBits(
        rows, 32, [&](size_t i, Columns & c) __attribute__((always_inline)) {
          const int dword = static_cast<int>(i / 2);
          const __m512i scales = _mm512_or_si512(Bits(packed[dword % 2], dword / 2 * 4, 15),
                                                 Bits(packed[2], 2 * dword - 4, 0x30));
#pragma GCC unroll 2
          for (size_t n = 0; n < 2; ++n) {
            const __m512 scale = UnsignedByte(scales, static_cast<unsigned>(2 * i % 4 + n));
            c.scale[n] = _mm512_mul_ps(_mm512_sub_ps(scale, _mm512_set1_ps(32)), d);
          }
          AddPlane<2>(plane, static_cast<int>(i), c);
          AddPanelBias<4>(c);
          put(i, c);
        });
  }
};

struct UnpackIQ4_XS {
  template <typename Rows, typename Put>
  static TAEL_INLINE void Unpack(const Rows& rows, Put put) {
    __m512i head[4];
    rows.Transpose(0, head);
    const __m512 d = LowHalves(head[0]);
    const __m512i four = _mm512_set1_epi32(15), top = _mm512_set1_epi32(0x30);
#pragma GCC unroll 8
    for (unsigned i = 0; i < 8; ++i) {
      Columns c;
      const __m512i low = _mm512_and_si512(_mm512_srli_epi32(head[1], 4 * i), four);
      const __m512i high = _mm512_and_si512(_mm512_srli_epi32(head[0], 12 + 2 * i), top);
      const __m512 scale =
          _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_or_si512(low, high), _mm512_set1_epi32(32)));
      c.scale[0] = _mm512_mul_ps(scale, d);
      UnpackNibbles(rows, 8 + 16 * size_t{i}, c);
      ToLevels(c);
      put(i, c);
    }
  }
};

}  // namespace
}  // namespace tael::kernels
