// Panels of 8 rows, as the products of several tokens read them, and how raw blocks become one.
//
// A panel, per 32 columns: q | scale [8] f32, then, where the format has them, scale of columns
// 16..31 | min | min of columns 16..31. q is [8][8 rows][4 columns] bytes or, of signed formats,
// [16][8 rows][2 columns] of 16 bits, in the order of WideTileBlock.
#pragma once

#include "kernels/isa/avx2_matmul_pack.h"

namespace tael::kernels {
namespace {

constexpr size_t kPanelRows = 8;
constexpr size_t kVectorBytes = 32;

template <typename Decoder>
struct LayoutOf {
  // Products of signed bytes do not fit maddubs: q is widened, once for all tokens.
  static constexpr bool kWide = Decoder::kSigned;
  using Act = typename TileBlockFor<kWide>::Type;
  static constexpr size_t kScales = Decoder::Format::kTwoScales ? 2 : 1;
  static constexpr size_t kSteps = (kWide ? 16 : 8) / kScales;  // registers of q under one scale
  // Subtracted from q, so that 16-bit sums of all products under one scale fit: on the way they may
  // wrap, in the end they are right.
  static constexpr int kCentre =
      kWide || Decoder::kLargest <= 15 ? Decoder::kBias : (Decoder::kLargest + 1) / 2;
  static constexpr int kFarthest =
      kCentre < Decoder::kLargest - kCentre ? Decoder::kLargest - kCentre : kCentre;
  static_assert(kWide || kFarthest * 127 * 2 * static_cast<int>(kSteps) <= 32767);
  static constexpr bool kHasMin = Decoder::Format::kHasMin;

  static constexpr size_t kScaleOffset = kScales * kSteps * kVectorBytes;
  static constexpr size_t kMinOffset = kScaleOffset + kScales * kVectorBytes;
  static constexpr size_t kBlockBytes = kMinOffset + (kHasMin ? kScales * kVectorBytes : 0);
  static constexpr size_t PanelBytes(size_t k) { return k / kActBlock * kBlockBytes; }
};

// The rows of a panel. Where a matrix has fewer, its last one stands in for the others: what comes
// of that is not stored.
struct PanelRows {
  const uint8_t* at[kPanelRows];
  PanelRows(const uint8_t* w, size_t row_bytes, size_t num_rows) {
    for (size_t r = 0; r < kPanelRows; ++r) {
      at[r] = w + (r < num_rows ? r : num_rows - 1) * row_bytes;
    }
  }
};

TAEL_INLINE __m256i* Vectors(uint8_t* panel) { return reinterpret_cast<__m256i*>(panel); }

// 8 rows of 32 bytes: dword j of row r goes to dword r of out + 32 * j.
TAEL_INLINE void Transpose(const uint8_t (&rows)[kPanelRows][kActBlock], uint8_t* out) {
  __m256i a[8], b[8];
#pragma GCC unroll 8
  for (size_t i = 0; i < 8; ++i) a[i] = Load(rows[i]);
#pragma GCC unroll 4
  for (size_t i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (size_t i = 0; i < 8; i += 4) {  // a[i + j]: dwords j and j + 4 of rows i .. i + 3
    a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  __m256i* to = Vectors(out);
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) {
    _mm256_store_si256(to + j, _mm256_permute2x128_si256(a[j], a[j + 4], 0x20));
    _mm256_store_si256(to + j + 4, _mm256_permute2x128_si256(a[j], a[j + 4], 0x31));
  }
}

// Signed bytes to 16 bits, in place, last first: even bytes of each register, then odd ones.
TAEL_INLINE void Widen(uint8_t* panel) {
  __m256i* to = Vectors(panel);
#pragma GCC unroll 8
  for (size_t j = 8; j-- > 0;) {
    const __m256i bytes = _mm256_load_si256(to + j);
    _mm256_store_si256(to + 2 * j, _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8));
    _mm256_store_si256(to + 2 * j + 1, _mm256_srai_epi16(bytes, 8));
  }
}

TAEL_INLINE void PrefetchBytes(const uint8_t* from, size_t count) {
  for (size_t byte = 0; byte < count; byte += kCacheLine) {
    _mm_prefetch(reinterpret_cast<const char*>(from + byte), _MM_HINT_T1);
  }
}

// A f16 of each row.
TAEL_INLINE __m256 HalvesOf(const PanelRows& rows, size_t offset) {
  const auto half = [&](size_t r) __attribute__((always_inline)) {
    return static_cast<int16_t>(Load16(rows.at[r] + offset));
  };
  return _mm256_cvtph_ps(
      _mm_setr_epi16(half(0), half(1), half(2), half(3), half(4), half(5), half(6), half(7)));
}

// A number of 32 bits of each row.
TAEL_INLINE __m256i WordsOf(const PanelRows& rows, size_t offset) {
  const auto word = [&](size_t r) __attribute__((always_inline)) {
    return static_cast<int>(Load32(rows.at[r] + offset));
  };
  return _mm256_setr_epi32(word(0), word(1), word(2), word(3), word(4), word(5), word(6), word(7));
}

// Bits 4j to 4j + 3 of each number, as 16 in a byte each.
TAEL_INLINE __m256i FourFifthBits(__m256i bits, int j) {
  const __m128i first = _mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
  const __m256i byte = _mm256_add_epi8(_mm256_broadcastsi128_si256(first), Splat(j / 2));
  const __m256i bit = _mm256_set1_epi32(j % 2 == 0 ? 0x08040201 : static_cast<int>(0x80402010));
  const __m256i alone = _mm256_and_si256(_mm256_shuffle_epi8(bits, byte), bit);
  return _mm256_and_si256(_mm256_cmpeq_epi8(alone, bit), Splat(16));
}

// q of a block of 32 nibbles at `offset` of each row: transposed 16 bytes at a time, then taken
// apart.
template <typename Decoder>
TAEL_INLINE void UnpackNibbles(const PanelRows& rows, size_t offset, uint8_t* panel) {
  __m256i a[4], b[4];
#pragma GCC unroll 4
  for (size_t i = 0; i < 4; ++i) {
    const auto load = [&](size_t r) __attribute__((always_inline)) {
      return LoadHalfRegister(rows.at[r] + offset + Decoder::kNibbles);
    };
    a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(load(i)), load(i + 4), 1);
  }
#pragma GCC unroll 2
  for (size_t i = 0; i < 4; i += 2) {
    b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
  }
  // a[j]: bytes 4j to 4j + 3 of every row
  a[0] = _mm256_unpacklo_epi64(b[0], b[2]);
  a[1] = _mm256_unpackhi_epi64(b[0], b[2]);
  a[2] = _mm256_unpacklo_epi64(b[1], b[3]);
  a[3] = _mm256_unpackhi_epi64(b[1], b[3]);
  __m256i fifth_bits = _mm256_setzero_si256();
  if constexpr (requires { Decoder::kFifthBits; }) {
    fifth_bits = WordsOf(rows, offset + Decoder::kFifthBits);
  }
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    __m256i q = Bits(a[j % 4], j / 4 * 4, 15);
    if constexpr (requires { Decoder::kFifthBits; }) {
      q = _mm256_or_si256(q, FourFifthBits(fifth_bits, j));
    }
    _mm256_store_si256(Vectors(panel) + j, Decoder::kSigned ? Levels(q) : q);
  }
  auto* floats = reinterpret_cast<float*>(panel + LayoutOf<Decoder>::kScaleOffset);
  const __m256 scale = HalvesOf(rows, offset);
  _mm256_store_ps(floats, scale);
  if constexpr (LayoutOf<Decoder>::kHasMin) {
    const __m256 centre = _mm256_set1_ps(LayoutOf<Decoder>::kCentre);
    _mm256_store_ps(floats + kPanelRows,
                    _mm256_fmadd_ps(scale, centre, HalvesOf(rows, offset + 2)));
  }
}

// Any block, a row at a time.
template <typename Decoder>
TAEL_INLINE void UnpackRows(const PanelRows& rows, size_t offset, const uint8_t* next,
                            uint8_t* panel) {
  using Layout = LayoutOf<Decoder>;
  constexpr BlockShape shape = kShapeOf<typename Decoder::Format>;
  constexpr size_t kBlocks = shape.elements / kActBlock;
  alignas(32) uint8_t bytes[kBlocks][kPanelRows][kActBlock];
  for (size_t r = 0; r < kPanelRows; ++r) {
    PrefetchBytes(next + r * shape.bytes, shape.bytes);
    Decoder::Decode(
        rows.at[r] + offset, [&](int n, __m256i q, __m256 scale,
                                 __m256 min) __attribute__((always_inline)) {
          _mm256_store_si256(reinterpret_cast<__m256i*>(bytes[n][r]), q);
          const auto store = [&](__m256 v, size_t to) __attribute__((always_inline)) {
            auto* floats =
                reinterpret_cast<float*>(panel + static_cast<size_t>(n) * Layout::kBlockBytes + to);
            floats[r] = _mm256_cvtss_f32(v);
            if (Layout::kScales == 2) {
              floats[r + 8] = _mm_cvtss_f32(_mm256_extractf128_ps(v, 1));
            }
          };
          store(scale, Layout::kScaleOffset);
          if constexpr (Layout::kHasMin) {
            const __m256 centre = _mm256_set1_ps(Layout::kCentre);
            store(_mm256_fmadd_ps(scale, centre, min), Layout::kMinOffset);
          }
        });
  }
  for (size_t n = 0; n < kBlocks; ++n) Transpose(bytes[n], panel + n * Layout::kBlockBytes);
}

// Unpacks rows of k columns, and prefetches as many bytes from `next` on as it reads.
template <typename Decoder>
inline void UnpackPanel(const PanelRows& rows, size_t k, const uint8_t* next, uint8_t* panel) {
  using Layout = LayoutOf<Decoder>;
  constexpr BlockShape shape = kShapeOf<typename Decoder::Format>;
  constexpr size_t kStepBytes = kPanelRows * shape.bytes;
  size_t offset = 0;
  for (size_t i = 0; i < k; i += shape.elements, offset += shape.bytes, next += kStepBytes) {
    if constexpr (requires { Decoder::kNibbles; }) {
      PrefetchBytes(next, kStepBytes);
      UnpackNibbles<Decoder>(rows, offset, panel);
    } else {
      UnpackRows<Decoder>(rows, offset, next, panel);
    }
    for (size_t n = 0; n < shape.elements / kActBlock; ++n, panel += Layout::kBlockBytes) {
      if constexpr (Layout::kWide) Widen(panel);
    }
  }
}

}  // namespace
}  // namespace tael::kernels
