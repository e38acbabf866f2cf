// Several tokens: rows are unpacked, 8 at a time, into a panel in cache, which every tile of up to
// 4 tokens then multiplies. Lanes are rows, so results are stored as they are.
//
// A panel, per 32 columns: q [8][8 rows][4 columns] | scale [8] f32, then, where the format has
// them, scale of columns 16..31 | min | min of columns 16..31.
#pragma once

#include "kernels/isa/avx2_matmul_pack.h"

namespace tael::kernels {
namespace {

constexpr size_t kPanelRows = 8;
constexpr size_t kVectorBytes = 32;
constexpr size_t kPanelsBytes = 192 << 10;  // panels of one pass: inside the L2 of older CPUs
constexpr size_t kMostPanels = 8;

template <typename Decoder>
struct LayoutOf {
  static constexpr size_t kScales = Decoder::Format::kTwoScales ? 2 : 1;
  static constexpr size_t kScaleOffset = kPanelRows * kActBlock;
  static constexpr size_t kMinOffset = kScaleOffset + kScales * kVectorBytes;
  static constexpr size_t kBlockBytes =
      kMinOffset + (Decoder::kSigned ? 0 : kScales * kVectorBytes);
  static constexpr size_t PanelBytes(size_t k) { return k / kActBlock * kBlockBytes; }
};

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
  auto* to = reinterpret_cast<__m256i*>(out);
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) {
    _mm256_store_si256(to + j, _mm256_permute2x128_si256(a[j], a[j + 4], 0x20));
    _mm256_store_si256(to + j + 4, _mm256_permute2x128_si256(a[j], a[j + 4], 0x31));
  }
}

// Unpacks up to 8 rows, and prefetches as many bytes from `next` on as it reads.
template <typename Decoder>
inline void UnpackPanel(const uint8_t* w, size_t row_bytes, size_t num_rows, size_t k,
                        const uint8_t* next, uint8_t* panel) {
  using Layout = LayoutOf<Decoder>;
  constexpr BlockShape shape = kShapeOf<typename Decoder::Format>;
  constexpr size_t kBlocks = shape.elements / kActBlock;
  alignas(32) uint8_t rows[kBlocks][kPanelRows][kActBlock];
  if (num_rows < kPanelRows) {
    __builtin_memset(rows, 0, sizeof rows);
    __builtin_memset(panel, 0, Layout::PanelBytes(k));
  }
  for (size_t i = 0; i < k; i += shape.elements, w += shape.bytes) {
    for (size_t r = 0; r < num_rows; ++r) {
      for (size_t byte = 0; byte < shape.bytes; byte += kCacheLine) {
        _mm_prefetch(reinterpret_cast<const char*>(next + byte), _MM_HINT_T1);
      }
      next += shape.bytes;
      Decoder::Decode(
          w + r * row_bytes, [&](int n, __m256i q, __m256 scale,
                                 __m256 min) __attribute__((always_inline)) {
            _mm256_store_si256(reinterpret_cast<__m256i*>(rows[n][r]), q);
            const auto store = [&](__m256 v, size_t offset) __attribute__((always_inline)) {
              auto* to = reinterpret_cast<float*>(
                  panel + static_cast<size_t>(n) * Layout::kBlockBytes + offset);
              to[r] = _mm256_cvtss_f32(v);
              if (Layout::kScales == 2) to[r + 8] = _mm_cvtss_f32(_mm256_extractf128_ps(v, 1));
            };
            store(scale, Layout::kScaleOffset);
            if constexpr (!Decoder::kSigned) store(min, Layout::kMinOffset);
          });
    }
    for (size_t n = 0; n < kBlocks; ++n, panel += Layout::kBlockBytes) Transpose(rows[n], panel);
  }
}

TAEL_INLINE __m256i Broadcast4(const int8_t* q) {
  int32_t four;
  __builtin_memcpy(&four, q, sizeof four);
  return _mm256_set1_epi32(four);
}

// Sums kCount registers of 4-column products in 32 bits, after as many 16-bit additions as cannot
// overflow: 2 * kLargest * 127 per register.
template <typename Decoder, size_t kCount>
TAEL_INLINE __m256i Dot(const uint8_t* w, const int8_t* q) {
  constexpr size_t kFit = 32767 / (2 * 127 * Decoder::kLargest);
  constexpr size_t kRun = Decoder::kSigned ? 1 : (kFit >= kCount ? kCount : (kFit >= 4 ? 4 : 2));
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (size_t i = 0; i < kCount; i += kRun) {
    __m256i run = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (size_t j = i; j < i + kRun; ++j) {
      const __m256i rows = Load(w + j * kVectorBytes), act = Broadcast4(q + 4 * j);
      const __m256i pairs = Decoder::kSigned ? _mm256_maddubs_epi16(_mm256_abs_epi8(rows),
                                                                    _mm256_sign_epi8(act, rows))
                                             : _mm256_maddubs_epi16(rows, act);
      run = j == i ? pairs : _mm256_add_epi16(run, pairs);
    }
    run = _mm256_madd_epi16(run, ones);
    sum = i == 0 ? run : _mm256_add_epi32(sum, run);
  }
  return sum;
}

template <typename Decoder>
TAEL_INLINE __m256 AddBlock(const uint8_t* p, const TileBlock& act, size_t t, __m256 acc) {
  using Layout = LayoutOf<Decoder>;
  const auto floats = [p](size_t offset) __attribute__((always_inline)) {
    return _mm256_load_ps(reinterpret_cast<const float*>(p + offset));
  };
  const __m256 act_scale = _mm256_broadcast_ss(&act.scale[t]);
#pragma GCC unroll 2
  for (size_t half = 0; half < Layout::kScales; ++half) {
    constexpr size_t kCount = 8 / Layout::kScales;
    const __m256i dot =
        Dot<Decoder, kCount>(p + half * kCount * kVectorBytes, act.q[t] + half * kCount * 4);
    const __m256 scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot), act_scale);
    acc = _mm256_fmadd_ps(scaled, floats(Layout::kScaleOffset + half * kVectorBytes), acc);
    if constexpr (!Decoder::kSigned) {
      const float* sum = Layout::kScales == 2 ? act.scaled_sum_half[half] : act.scaled_sum;
      acc = _mm256_fmadd_ps(floats(Layout::kMinOffset + half * kVectorBytes),
                            _mm256_broadcast_ss(sum + t), acc);
    }
  }
  return acc;
}

struct TileCall {
  const uint8_t* panel;
  const TileBlock* act;
  size_t num_blocks;  // of 32 columns
  float* y;           // first row of the panel, first token of the tile
  size_t y_stride;
  size_t num_rows;  // to store
};

template <typename Decoder, size_t kTokens>
__attribute__((noinline)) void MultiplyTile(const TileCall& call) {
  __m256 acc[kTokens];
#pragma GCC unroll 4
  for (size_t t = 0; t < kTokens; ++t) acc[t] = _mm256_setzero_ps();
  const uint8_t* p = call.panel;
  const TileBlock* act = call.act;
  for (size_t i = 0; i < call.num_blocks; ++i, ++act, p += LayoutOf<Decoder>::kBlockBytes) {
#pragma GCC unroll 4
    for (size_t t = 0; t < kTokens; ++t) acc[t] = AddBlock<Decoder>(p, *act, t, acc[t]);
  }
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i live =
      _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(call.num_rows)), lanes);
#pragma GCC unroll 4
  for (size_t t = 0; t < kTokens; ++t) {
    _mm256_maskstore_ps(call.y + t * call.y_stride, live, acc[t]);
  }
}

template <typename Decoder>
inline void MultiplyAnyTile(const TileCall& call, size_t num_tokens) {
  if (num_tokens == 1) return MultiplyTile<Decoder, 1>(call);
  if (num_tokens == 2) return MultiplyTile<Decoder, 2>(call);
  if (num_tokens == 3) return MultiplyTile<Decoder, 3>(call);
  MultiplyTile<Decoder, 4>(call);
}

// Panels per pass: several share one walk over the activations, if there are many of those.
template <typename Decoder>
constexpr size_t PanelsPerPass(size_t num_tokens, size_t k) {
  const size_t fit = kPanelsBytes / LayoutOf<Decoder>::PanelBytes(k);
  if (num_tokens <= kTileTokens || fit == 0) return 1;
  return fit < kMostPanels ? fit : kMostPanels;
}

template <typename Decoder>
void MatmulTiles(const MatmulCall& call) {
  const auto* w = reinterpret_cast<const uint8_t*>(call.w);
  auto* scratch = reinterpret_cast<uint8_t*>(call.scratch);
  const size_t panel_bytes = LayoutOf<Decoder>::PanelBytes(call.k);
  const size_t num_blocks = call.k / kActBlock;
  const size_t pass_rows = kPanelRows * PanelsPerPass<Decoder>(call.num_tokens, call.k);
  for (size_t begin = call.row_begin; begin < call.row_end; begin += pass_rows) {
    const size_t left = call.row_end - begin, pass = left < pass_rows ? left : pass_rows;
    const auto rows_of = [=](size_t r) { return pass - r < kPanelRows ? pass - r : kPanelRows; };
    for (size_t r = 0; r < pass; r += kPanelRows) {
      const uint8_t* rows = w + (begin + r) * call.row_bytes;
      UnpackPanel<Decoder>(rows, call.row_bytes, rows_of(r), call.k,
                           rows + pass_rows * call.row_bytes,
                           scratch + r / kPanelRows * panel_bytes);
    }
    for (size_t t = 0; t < call.num_tokens; t += kTileTokens) {
      const size_t tokens = call.num_tokens - t;
      TileCall tile{scratch,
                    reinterpret_cast<const TileBlock*>(call.act) + t / kTileTokens * num_blocks,
                    num_blocks,
                    call.y + t * call.y_stride + begin,
                    call.y_stride,
                    0};
      for (size_t r = 0; r < pass; r += kPanelRows) {
        tile.num_rows = rows_of(r);
        MultiplyAnyTile<Decoder>(tile, tokens);
        tile.panel += panel_bytes;
        tile.y += kPanelRows;
      }
    }
  }
}

}  // namespace
}  // namespace tael::kernels
