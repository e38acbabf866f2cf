// More tokens, second half: panels of 16 rows times a tile of up to 16 tokens.
//
// Lanes are rows, so results are stored as they are and no lane knows another. Activations are
// broadcast from memory. Accumulators must stay in registers: a spilled loop is 2.2 times slower.
// Two shapes of the loop, with the same order of sums: one panel by up to 16 tokens, and, for full
// tiles, two panels by 4 tokens, where a broadcast serves 32 rows and activations are read half as
// often (Zen 4, Q4_0, one thread: 512 tokens 158 -> 172 G MAC/s, 128 tokens 165 -> 168).
#pragma once

#include "kernels/isa/avx512_matmul_panel.h"

namespace tael::kernels {
namespace {

constexpr size_t kPanelsBytes = 384 << 10;  // panels of one pass: well inside a 1 MB L2
constexpr size_t kMostPanels = 4;

struct TileCall {
  const uint8_t* panel;
  size_t panel_bytes;  // to the next panel
  TileView act;
  size_t num_blocks;  // of 32 columns
  float* y;           // first row of the panel, first token of the tile
  size_t y_stride;
  size_t num_tokens;    // to store
  __mmask16 rows;       // to store, of the last panel
  const uint8_t* next;  // kTileShare bytes to prefetch per block, every next_step bytes
  size_t next_step;
};

// sums[p] += the products of kCount registers of weights of each panel with 4 * kCount activations.
template <size_t kCount, size_t kPanels>
TAEL_INLINE void AddDots(const __m512i (&w)[kPanels][8], size_t first, const int8_t* q,
                         __m512i (&sums)[kPanels]) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kCount; ++i) {
    int32_t four;
    __builtin_memcpy(&four, q + 4 * i, sizeof four);
    const __m512i act = _mm512_set1_epi32(four);
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      sums[p] = _mm512_dpbusd_epi32(sums[p], w[p][first + i], act);
    }
  }
}

// The scales and minimums of one block of a panel.
template <typename Layout>
struct BlockScales {
  const uint8_t* at;
  TAEL_INLINE __m512 Scale(size_t half) const {
    return _mm512_load_ps(at + Layout::kScaleOffset + half * kVectorBytes);
  }
  TAEL_INLINE __m512 Min(size_t half) const {
    return _mm512_load_ps(at + Layout::kMinOffset + half * kVectorBytes);
  }
};

// One block of 32 columns for token t: acc[p] of each panel, whose block lies at p * panel_bytes.
template <bool kHasMin, bool kTwoScales, size_t kPanels>
TAEL_INLINE void AddBlock(const __m512i (&w)[kPanels][8], const uint8_t* panel, size_t panel_bytes,
                          const TileView& act, size_t t, __m512 (&acc)[kPanels]) {
  using Scales = BlockScales<PanelLayout<kHasMin, kTwoScales>>;
  const int8_t* q = act.block->q[t];
  const __m512 act_scale = _mm512_set1_ps(act.block->scale[t]);
  const auto start = [](int32_t sum) __attribute__((always_inline)) {
    return kHasMin ? _mm512_setzero_si512() : _mm512_set1_epi32(sum);
  };
  __m512i low[kPanels], high[kPanels];
#pragma GCC unroll 2
  for (size_t p = 0; p < kPanels; ++p) {
    low[p] = start(kTwoScales ? act.halves->start[0][t] : act.block->start[t]);
    if constexpr (kTwoScales) high[p] = start(act.halves->start[1][t]);
  }
  AddDots<kTwoScales ? 4 : 8>(w, 0, q, low);
  if constexpr (kTwoScales) AddDots<4>(w, 4, q + 16, high);
#pragma GCC unroll 2
  for (size_t p = 0; p < kPanels; ++p) {
    const Scales scales{panel + p * panel_bytes};
    const __m512 dot = _mm512_cvtepi32_ps(low[p]);
    if constexpr (kTwoScales) {
      const __m512 first = _mm512_mul_ps(dot, scales.Scale(0));
      const __m512 both = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high[p]), scales.Scale(1), first);
      acc[p] = _mm512_fmadd_ps(both, act_scale, acc[p]);
    } else {
      acc[p] = _mm512_fmadd_ps(_mm512_mul_ps(dot, act_scale), scales.Scale(0), acc[p]);
    }
    if constexpr (kHasMin && !kTwoScales) {
      acc[p] = _mm512_fmadd_ps(scales.Min(0), _mm512_set1_ps(act.block->scaled_sum[t]), acc[p]);
    }
    if constexpr (kHasMin && kTwoScales) {
      for (size_t half = 0; half < 2; ++half) {
        const __m512 sum = _mm512_set1_ps(act.halves->scaled_sum[half][t]);
        acc[p] = _mm512_fmadd_ps(scales.Min(half), sum, acc[p]);
      }
    }
  }
}

// Tokens [kFirst, kFirst + kTokens) of a tile.
template <bool kHasMin, bool kTwoScales, size_t kPanels, size_t kFirst, size_t kTokens>
TAEL_INLINE void MultiplyTokens(const TileCall& call) {
  __m512 acc[kTokens][kPanels];
#pragma GCC unroll 16
  for (size_t t = 0; t < kTokens; ++t) {
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) acc[t][p] = _mm512_setzero_ps();
  }
  const uint8_t* panel = call.panel;
  TileView act = call.act;
  const uint8_t* next = call.next;
  for (size_t block = 0; block < call.num_blocks; ++block, ++act.block, ++act.halves) {
    _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(next + kCacheLine), _MM_HINT_T1);
    next += call.next_step;
    __m512i w[kPanels][8];
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
#pragma GCC unroll 8
      for (size_t i = 0; i < 8; ++i) {
        w[p][i] = _mm512_load_si512(panel + p * call.panel_bytes + i * kVectorBytes);
      }
    }
#pragma GCC unroll 16
    for (size_t t = 0; t < kTokens; ++t) {
      AddBlock<kHasMin, kTwoScales>(w, panel, call.panel_bytes, act, kFirst + t, acc[t]);
    }
    panel += PanelLayout<kHasMin, kTwoScales>::kBlockBytes;
  }
#pragma GCC unroll 16
  for (size_t t = 0; t < kTokens; ++t) {
    if (kFirst + t >= call.num_tokens) continue;
    float* y = call.y + (kFirst + t) * call.y_stride;
#pragma GCC unroll 2
    for (size_t p = 0; p < kPanels; ++p) {
      _mm512_mask_storeu_ps(y + p * kPanelRows, p + 1 < kPanels ? 0xffff : call.rows, acc[t][p]);
    }
  }
}

template <bool kHasMin, bool kTwoScales, size_t kTokens>
__attribute__((noinline)) void MultiplyTile(const TileCall& call) {
  MultiplyTokens<kHasMin, kTwoScales, 1, 0, kTokens>(call);
}

// Two panels by a full tile.
template <bool kHasMin, bool kTwoScales>
__attribute__((noinline)) void MultiplyPair(const TileCall& call) {
  MultiplyTokens<kHasMin, kTwoScales, 2, 0, 4>(call);
  MultiplyTokens<kHasMin, kTwoScales, 2, 4, 4>(call);
  MultiplyTokens<kHasMin, kTwoScales, 2, 8, 4>(call);
  MultiplyTokens<kHasMin, kTwoScales, 2, 12, 4>(call);
}
static_assert(kTileTokens == 16, "MultiplyPair() names each part");

// The smallest kernel that covers the tokens; surplus tokens are the zeros of the packing.
template <bool kHasMin, bool kTwoScales>
inline void MultiplyAnyTile(const TileCall& call) {
  const size_t n = call.num_tokens;
  if (n <= 2) return MultiplyTile<kHasMin, kTwoScales, 2>(call);
  if (n <= 4) return MultiplyTile<kHasMin, kTwoScales, 4>(call);
  if (n <= 6) return MultiplyTile<kHasMin, kTwoScales, 6>(call);
  if (n <= 8) return MultiplyTile<kHasMin, kTwoScales, 8>(call);
  if (n <= 12) return MultiplyTile<kHasMin, kTwoScales, 12>(call);
  MultiplyTile<kHasMin, kTwoScales, 16>(call);
}

// Panels per pass: several share one walk over the activations, if there are many of those.
template <typename Format>
constexpr size_t PanelsPerPass(size_t num_tokens, size_t k) {
  const size_t fit = kPanelsBytes / PanelBytes<Format>(k);
  if (num_tokens <= kTileTokens || fit == 0) return 1;
  return fit < kMostPanels ? fit : kMostPanels;
}

template <typename Format, typename Unpacker>
void MatmulTiles(const MatmulCall& call) {
  const auto* w = reinterpret_cast<const uint8_t*>(call.w);
  auto* scratch = reinterpret_cast<uint8_t*>(call.scratch);
  const size_t panel_bytes = PanelBytes<Format>(call.k), num_blocks = call.k / kActBlock;
  const size_t pass_rows = kPanelRows * PanelsPerPass<Format>(call.num_tokens, call.k);
  for (size_t begin = call.row_begin; begin < call.row_end; begin += pass_rows) {
    const size_t left = call.row_end - begin, pass = left < pass_rows ? left : pass_rows;
    const auto rows_of = [=](size_t r) { return pass - r < kPanelRows ? pass - r : kPanelRows; };
    for (size_t r = 0; r < pass; r += kPanelRows) {
      const uint8_t* rows = w + (begin + r) * call.row_bytes;
      UnpackPanel<Format, Unpacker>(rows, call.row_bytes, rows_of(r), call.k,
                                    rows + pass_rows * call.row_bytes,
                                    scratch + r / kPanelRows * panel_bytes);
    }
    for (size_t t = 0; t < call.num_tokens; t += kTileTokens) {
      const size_t tokens = call.num_tokens - t;
      TileCall tile{scratch,
                    panel_bytes,
                    TileOf(call.act, t / kTileTokens, num_blocks),
                    num_blocks,
                    call.y + t * call.y_stride + begin,
                    call.y_stride,
                    tokens < kTileTokens ? tokens : kTileTokens,
                    0,
                    w + (begin + pass_rows) * call.row_bytes + kRawBytes<Format> - kTileShare,
                    kRawBytes<Format>};
      for (size_t r = 0; r < pass;) {
        const bool pair = tile.num_tokens == kTileTokens && r + kPanelRows < pass;
        const size_t panels = pair ? 2 : 1;
        const size_t last = rows_of(r + (panels - 1) * kPanelRows);
        tile.rows = static_cast<__mmask16>((1u << last) - 1);
        if (pair) {
          MultiplyPair<Format::kHasMin, Format::kTwoScales>(tile);
        } else {
          MultiplyAnyTile<Format::kHasMin, Format::kTwoScales>(tile);
        }
        r += panels * kPanelRows;
        tile.panel += panels * panel_bytes;
        tile.y += panels * kPanelRows;
        tile.next += panels * kPanelRows * call.row_bytes;
      }
    }
  }
}

}  // namespace
}  // namespace tael::kernels
