// Several tokens: rows are unpacked, 8 at a time, into panels in cache, which every tile of up to 4
// tokens then multiplies, two panels at a time. Lanes are rows, so results are stored as they are.
//
// A panel, per 32 columns: q | scale [8] f32, then, where the format has them, scale of columns
// 16..31 | min | min of columns 16..31. q is [8][8 rows][4 columns] bytes or, of signed formats,
// [16][8 rows][2 columns] of 16 bits, in the order of WideTileBlock.
#pragma once

#include "kernels/isa/avx2_matmul_pack.h"

namespace tael::kernels {
namespace {

constexpr size_t kPanelRows = 8;
constexpr size_t kTilePanels = 2;
constexpr size_t kTileRows = kTilePanels * kPanelRows;
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
  __m128i halves = _mm_setzero_si128();
  const auto word = [&](size_t r) __attribute__((always_inline)) {
    return static_cast<int>(Load16(rows.at[r] + offset));
  };
  halves = _mm_insert_epi16(halves, word(0), 0);
  halves = _mm_insert_epi16(halves, word(1), 1);
  halves = _mm_insert_epi16(halves, word(2), 2);
  halves = _mm_insert_epi16(halves, word(3), 3);
  halves = _mm_insert_epi16(halves, word(4), 4);
  halves = _mm_insert_epi16(halves, word(5), 5);
  halves = _mm_insert_epi16(halves, word(6), 6);
  halves = _mm_insert_epi16(halves, word(7), 7);
  return _mm256_cvtph_ps(halves);
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

TAEL_INLINE __m256i Broadcast4(const void* bytes) {
  int32_t four;
  __builtin_memcpy(&four, bytes, sizeof four);
  return _mm256_set1_epi32(four);
}

// A sum that the compiler may not take apart: given the choice, it adds products in pairs, all of
// which then wait in memory.
TAEL_INLINE __m256i Whole(__m256i sum) {
  asm("" : "+x"(sum));
  return sum;
}

// Token t's minus_pairs of the columns under scale number `half` of kScales.
template <size_t kScales>
TAEL_INLINE __m256i MinusPairs(const TileBlock& act, size_t half, size_t t) {
  const __m256i all = Broadcast4(act.minus_pairs[0][t]);
  if (kScales == 1) return all;
  const __m256i first = Broadcast4(act.minus_pairs[1][t]);
  return half == 0 ? first : _mm256_sub_epi16(all, first);
}

// sum[p][t]: dot products of 8 rows of panel p, at w + p * panel_bytes, with token t of a tile,
// over the columns under scale number `half`. A broadcast activation serves all panels, and a
// register of rows all tokens.
template <typename Decoder, size_t kPanels, size_t kTokens>
TAEL_INLINE void Dots(const uint8_t* w, size_t panel_bytes,
                      const typename LayoutOf<Decoder>::Act& act, size_t half,
                      __m256i (&sum)[kPanels][kTokens]) {
  using Layout = LayoutOf<Decoder>;
#pragma GCC unroll 4
  for (size_t t = 0; t < kTokens; ++t) {
    __m256i start = _mm256_setzero_si256();
    if constexpr (Layout::kCentre != 0) {
      start = _mm256_mullo_epi16(MinusPairs<Layout::kScales>(act, half, t),
                                 _mm256_set1_epi16(Layout::kCentre));
    }
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) sum[p][t] = start;
  }
#pragma GCC unroll 16
  for (size_t j = half * Layout::kSteps; j < (half + 1) * Layout::kSteps; ++j) {
    __m256i rows[kPanels];
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) rows[p] = Load(w + p * panel_bytes + j * kVectorBytes);
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256i columns = Broadcast4(reinterpret_cast<const uint8_t*>(act.q[t]) + 4 * j);
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) {
        __m256i& total = sum[p][t];
        if constexpr (Layout::kWide) {
          total = Whole(_mm256_add_epi32(total, _mm256_madd_epi16(rows[p], columns)));
        } else {
          total = Whole(_mm256_add_epi16(total, _mm256_maddubs_epi16(rows[p], columns)));
        }
      }
    }
  }
  if constexpr (!Layout::kWide) {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) sum[p][t] = _mm256_madd_epi16(sum[p][t], ones);
    }
  }
}

template <typename Act>
struct TileCall {
  const uint8_t* panel;
  size_t panel_bytes;
  const Act* act;
  size_t num_blocks;  // of 32 columns
  float* y;           // first row of the panel, first token of the tile
  size_t y_stride;
  size_t num_rows;  // to store
};

// Adds one block of 32 columns to acc, which lies in memory: the integers take the registers.
template <typename Decoder, size_t kPanels, size_t kTokens>
TAEL_INLINE void AddBlock(const uint8_t* w, size_t panel_bytes,
                          const typename LayoutOf<Decoder>::Act& act,
                          float (&acc)[kPanels][kTokens][kPanelRows]) {
  using Layout = LayoutOf<Decoder>;
#pragma GCC unroll 2
  for (size_t half = 0; half < Layout::kScales; ++half) {
    __m256i sum[kPanels][kTokens];
    Dots<Decoder, kPanels, kTokens>(w, panel_bytes, act, half, sum);
    const auto floats = [&](size_t p, size_t offset) __attribute__((always_inline)) {
      const uint8_t* from = w + p * panel_bytes + offset + half * kVectorBytes;
      return _mm256_load_ps(reinterpret_cast<const float*>(from));
    };
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) {
      const __m256 act_scale = _mm256_broadcast_ss(act.scale + t);
#pragma GCC unroll 2
      for (size_t p = 0; p < kPanels; ++p) {
        const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[p][t]), act_scale);
        __m256 total =
            _mm256_fmadd_ps(scaled, floats(p, Layout::kScaleOffset), _mm256_load_ps(acc[p][t]));
        if constexpr (Layout::kHasMin) {
          const float* act_sum = Layout::kScales == 2 ? act.scaled_sum_half[half] : act.scaled_sum;
          total = _mm256_fmadd_ps(floats(p, Layout::kMinOffset), _mm256_broadcast_ss(act_sum + t),
                                  total);
        }
        _mm256_store_ps(acc[p][t], total);
      }
    }
  }
}

// The first num_rows of 8. Masked stores take tens of instructions on some CPUs.
TAEL_INLINE void StoreRows(__m256 v, size_t num_rows, float* y) {
  if (num_rows >= kPanelRows) return _mm256_storeu_ps(y, v);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i count = _mm256_set1_epi32(static_cast<int>(num_rows));
  _mm256_maskstore_ps(y, _mm256_cmpgt_epi32(count, lanes), v);
}

template <typename Decoder, size_t kPanels, size_t kTokens>
__attribute__((noinline)) void MultiplyTile(const TileCall<typename LayoutOf<Decoder>::Act>& call) {
  alignas(32) float acc[kPanels][kTokens][kPanelRows] = {};
  const uint8_t* w = call.panel;
  for (size_t i = 0; i < call.num_blocks; ++i, w += LayoutOf<Decoder>::kBlockBytes) {
    AddBlock<Decoder, kPanels, kTokens>(w, call.panel_bytes, call.act[i], acc);
  }
  for (size_t p = 0; p < kPanels; ++p) {
    const size_t num_rows = call.num_rows - p * kPanelRows;
    for (size_t t = 0; t < kTokens; ++t) {
      StoreRows(_mm256_load_ps(acc[p][t]), num_rows, call.y + t * call.y_stride + p * kPanelRows);
    }
  }
}

template <typename Decoder, size_t kPanels>
inline void MultiplyTokens(const TileCall<typename LayoutOf<Decoder>::Act>& call,
                           size_t num_tokens) {
  if (num_tokens == 1) return MultiplyTile<Decoder, kPanels, 1>(call);
  if (num_tokens == 2) return MultiplyTile<Decoder, kPanels, 2>(call);
  if (num_tokens == 3) return MultiplyTile<Decoder, kPanels, 3>(call);
  MultiplyTile<Decoder, kPanels, 4>(call);
}

template <typename Decoder>
void MatmulTiles(const MatmulCall& call) {
  using Act = typename LayoutOf<Decoder>::Act;
  const auto* w = reinterpret_cast<const uint8_t*>(call.w);
  auto* panels = reinterpret_cast<uint8_t*>(call.scratch);
  const size_t panel_bytes = LayoutOf<Decoder>::PanelBytes(call.k);
  const size_t num_blocks = call.k / kActBlock;
  for (size_t begin = call.row_begin; begin < call.row_end; begin += kTileRows) {
    const size_t left = call.row_end - begin, num_rows = left < kTileRows ? left : kTileRows;
    for (size_t r = 0; r < num_rows; r += kPanelRows) {
      const uint8_t* first = w + (begin + r) * call.row_bytes;
      UnpackPanel<Decoder>({first, call.row_bytes, num_rows - r}, call.k,
                           first + kTileRows * call.row_bytes,
                           panels + r / kPanelRows * panel_bytes);
    }
    const auto* act = reinterpret_cast<const Act*>(call.act);
    for (size_t t = 0; t < call.num_tokens; t += kTileTokens, act += num_blocks) {
      const TileCall<Act> tile{
          panels,        panel_bytes, act, num_blocks, call.y + t * call.y_stride + begin,
          call.y_stride, num_rows};
      if (num_rows > kPanelRows) {
        MultiplyTokens<Decoder, kTilePanels>(tile, call.num_tokens - t);
      } else {
        MultiplyTokens<Decoder, 1>(tile, call.num_tokens - t);
      }
    }
  }
}

}  // namespace
}  // namespace tael::kernels
