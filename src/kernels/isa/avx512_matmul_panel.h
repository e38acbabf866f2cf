// Several tokens, first half: rows are unpacked, 16 at a time, into a panel that every tile of
// tokens then reads from cache.
//
// A panel, per 32 columns: q [8][16 rows][4 columns] u8 | scale [16] f32, then, where the format
// has them, scale of columns 16..31 | min | min of columns 16..31. Weights without a minimum are
// stored + 128.
#pragma once

#include "kernels/isa/avx512_matmul_pack.h"

namespace tael::kernels {
namespace {

constexpr size_t kPanelRows = 16;
constexpr size_t kPanelQuantBytes = kPanelRows * kActBlock;
constexpr size_t kVectorBytes = 64;

template <bool kHasMin, bool kTwoScales>
struct PanelLayout {
  static constexpr size_t kScales = kTwoScales ? 2 : 1;
  static constexpr size_t kScaleOffset = kPanelQuantBytes;
  static constexpr size_t kMinOffset = kScaleOffset + kScales * kVectorBytes;
  static constexpr size_t kBlockBytes = kMinOffset + (kHasMin ? kScales * kVectorBytes : 0);
};

template <typename Format>
using LayoutOf = PanelLayout<Format::kHasMin, Format::kTwoScales>;

// A step of decoded rows, before it is transposed: 16 rows of the registers of each group.
template <size_t kGroups>
struct alignas(64) DecodedRows {
  uint8_t q[kGroups][2][kPanelRows][64];
  float scale[kGroups][2][kPanelRows][4];  // one per block of 32 columns
  float min[kGroups][2][kPanelRows][4];
};

// 16 rows of 16 bytes, `stride` apart: row r's dword j goes to out[j] lane r.
TAEL_INLINE void Transpose(const void* rows, size_t stride, __m512i (&out)[4]) {
  const auto* p = static_cast<const uint8_t*>(rows);
  __m512i v[4];  // v[i] holds rows i, i + 4, i + 8, i + 12
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    const auto lane = [&](size_t n) __attribute__((always_inline)) {
      return _mm_load_si128(reinterpret_cast<const __m128i*>(p + (i + 4 * n) * stride));
    };
    v[i] = _mm512_inserti32x4(_mm512_castsi128_si512(lane(0)), lane(1), 1);
    v[i] = _mm512_inserti32x4(v[i], lane(2), 2);
    v[i] = _mm512_inserti32x4(v[i], lane(3), 3);
  }
  const __m512i ab0 = _mm512_unpacklo_epi32(v[0], v[1]), ab1 = _mm512_unpackhi_epi32(v[0], v[1]);
  const __m512i cd0 = _mm512_unpacklo_epi32(v[2], v[3]), cd1 = _mm512_unpackhi_epi32(v[2], v[3]);
  out[0] = _mm512_unpacklo_epi64(ab0, cd0);
  out[1] = _mm512_unpackhi_epi64(ab0, cd0);
  out[2] = _mm512_unpacklo_epi64(ab1, cd1);
  out[3] = _mm512_unpackhi_epi64(ab1, cd1);
}

TAEL_INLINE void StoreFloats4(__m512 spread, float* out) {
  const __m512i every_fourth =
      _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  _mm_store_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(every_fourth, spread)));
}

template <typename Decoder, typename Source>
TAEL_INLINE void DecodeInto(Source source, const uint8_t* p, size_t row,
                            DecodedRows<Decoder::kGroups>& rows) {
  using Format = typename Decoder::Format;
  constexpr int kAdd = Format::kHasMin ? 0 : kPanelBias - (1 << Decoder::kBiasShift);
  Group groups[Decoder::kGroups];
  Decoder::Decode(source, p, groups);
#pragma GCC unroll 2
  for (size_t g = 0; g < Decoder::kGroups; ++g) {
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half) {
      __m512i q = groups[g].q[half];
      if constexpr (kAdd != 0) q = _mm512_add_epi8(q, Splat(kAdd));
      _mm512_store_si512(rows.q[g][half][row], q);
      if (half == 1 && !Format::kTwoScales) continue;
      StoreFloats4(groups[g].scale[half], rows.scale[g][half][row]);
      if constexpr (Format::kHasMin) StoreFloats4(groups[g].min[half], rows.min[g][half][row]);
    }
  }
}

// Four blocks of one group, or as many as the row still has.
template <typename Format, size_t kGroups>
TAEL_INLINE void StoreGroup(const DecodedRows<kGroups>& rows, size_t g, size_t num_blocks,
                            uint8_t* out) {
  using Layout = LayoutOf<Format>;
  for (size_t block = 0; block < num_blocks; ++block) {
#pragma GCC unroll 2
    for (size_t half = 0; half < 2; ++half) {
      __m512i v[4];
      Transpose(&rows.q[g][half][0][16 * block], 64, v);
      uint8_t* q = out + block * Layout::kBlockBytes + half * kPanelQuantBytes / 2;
#pragma GCC unroll 4
      for (size_t i = 0; i < 4; ++i) _mm512_store_si512(q + i * kVectorBytes, v[i]);
    }
  }
  const auto store_floats = [&](const float* floats, size_t offset) {
    __m512i v[4];
    Transpose(floats, 16, v);
    for (size_t i = 0; i < num_blocks; ++i) {
      _mm512_store_si512(out + i * Layout::kBlockBytes + offset, v[i]);
    }
  };
#pragma GCC unroll 2
  for (size_t half = 0; half < Layout::kScales; ++half) {
    store_floats(rows.scale[g][half][0], Layout::kScaleOffset + half * kVectorBytes);
    if constexpr (Format::kHasMin) {
      store_floats(rows.min[g][half][0], Layout::kMinOffset + half * kVectorBytes);
    }
  }
}

// Unpacks up to 16 rows. While it works it prefetches as many bytes from `next` on as it reads: the
// rows are one run of memory, but the unpacker walks 16 short streams, which no hardware
// prefetcher follows (KERNELS: 12-20 GB/s without, 26-27 with).
template <typename Decoder>
inline void UnpackPanel(const uint8_t* w, size_t row_bytes, size_t num_rows, size_t k,
                        const uint8_t* next, uint8_t* panel) {
  using Format = typename Decoder::Format;
  constexpr size_t kStep = kStepBytes<Decoder>;
  DecodedRows<Decoder::kGroups> rows;
  if (num_rows < kPanelRows) __builtin_memset(&rows, 0, sizeof rows);
  ForEachStep<Decoder>(
      k, [&](auto source, size_t column, size_t offset) __attribute__((always_inline)) {
        for (size_t r = 0; r < num_rows; ++r) {
#pragma GCC unroll 4
          for (size_t i = 0; i < kStep; i += kCacheLine) {
            _mm_prefetch(reinterpret_cast<const char*>(next + i), _MM_HINT_T1);
          }
          next += kStep;
          DecodeInto<Decoder>(source, w + r * row_bytes + offset, r, rows);
        }
        const size_t first = column / kActBlock, left = k / kActBlock - first;
#pragma GCC unroll 2
        for (size_t g = 0; g < Decoder::kGroups; ++g) {
          const size_t num_blocks = left - 4 * g < 4 ? left - 4 * g : 4;
          StoreGroup<Format>(rows, g, num_blocks,
                             panel + (first + 4 * g) * LayoutOf<Format>::kBlockBytes);
        }
      });
}

}  // namespace
}  // namespace tael::kernels
