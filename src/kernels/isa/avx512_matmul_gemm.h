// Several tokens, second half: a panel of 16 rows times up to 16 tokens in registers.
//
// Lanes are rows, so results are stored as they are and no lane knows another. 8 registers hold
// the panel's 32 columns, up to 16 the sums; activations are broadcast from memory inside the
// multiply instruction. Accumulators must stay in registers: a spilled loop is 2.2 times slower.
#pragma once

#include "kernels/isa/avx512_matmul_panel.h"

namespace tael::kernels {
namespace {

constexpr size_t kPanelsBytes = 384 << 10;  // panels of one pass: well inside a 1 MB L2
constexpr size_t kMostPanels = 4;

struct TileCall {
  const uint8_t* panel;
  const TileBlock* act;
  size_t num_blocks;  // of 32 columns
  float* y;           // first row of the panel, first token of the tile
  size_t y_stride;
  size_t num_tokens;  // to store
  __mmask16 rows;
  const uint8_t* next;  // kTileShare bytes to prefetch per block, every next_step bytes
  size_t next_step;
};

// start + the products of `kCount` registers of weights with 4 * kCount activations.
template <size_t kCount>
TAEL_INLINE __m512i Dot(const __m512i* w, const int8_t* q, __m512i start) {
#pragma GCC unroll 8
  for (size_t i = 0; i < kCount; ++i) {
    int32_t four;
    __builtin_memcpy(&four, q + 4 * i, sizeof four);
    start = _mm512_dpbusd_epi32(start, w[i], _mm512_set1_epi32(four));
  }
  return start;
}

// One block of 32 columns for token t.
template <bool kHasMin, bool kTwoScales>
TAEL_INLINE __m512 AddBlock(const __m512i (&w)[8], const __m512 (&scale)[2], const __m512 (&min)[2],
                            const TileBlock& act, size_t t, __m512 acc) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512 act_scale = _mm512_set1_ps(act.scale[t]);
  if constexpr (kTwoScales) {
    const __m512i start0 = kHasMin ? zero : _mm512_set1_epi32(act.start_half[0][t]);
    const __m512i start1 = kHasMin ? zero : _mm512_set1_epi32(act.start_half[1][t]);
    const __m512 dot0 = _mm512_cvtepi32_ps(Dot<4>(w, act.q[t], start0));
    const __m512 dot1 = _mm512_cvtepi32_ps(Dot<4>(w + 4, act.q[t] + 16, start1));
    const __m512 both = _mm512_fmadd_ps(dot1, scale[1], _mm512_mul_ps(dot0, scale[0]));
    acc = _mm512_fmadd_ps(both, act_scale, acc);
    if constexpr (kHasMin) {
      acc = _mm512_fmadd_ps(min[0], _mm512_set1_ps(act.scaled_sum_half[0][t]), acc);
      acc = _mm512_fmadd_ps(min[1], _mm512_set1_ps(act.scaled_sum_half[1][t]), acc);
    }
  } else {
    const __m512i start = kHasMin ? zero : _mm512_set1_epi32(act.start[t]);
    const __m512 dot = _mm512_cvtepi32_ps(Dot<8>(w, act.q[t], start));
    acc = _mm512_fmadd_ps(_mm512_mul_ps(dot, act_scale), scale[0], acc);
    if constexpr (kHasMin) {
      acc = _mm512_fmadd_ps(min[0], _mm512_set1_ps(act.scaled_sum[t]), acc);
    }
  }
  return acc;
}

template <bool kHasMin, bool kTwoScales, size_t kTokens>
__attribute__((noinline)) void MultiplyTile(const TileCall& call) {
  using Layout = PanelLayout<kHasMin, kTwoScales>;
  __m512 acc[kTokens];
#pragma GCC unroll 16
  for (size_t t = 0; t < kTokens; ++t) acc[t] = _mm512_setzero_ps();
  const uint8_t* p = call.panel;
  const TileBlock* act = call.act;
  const uint8_t* next = call.next;
  for (size_t block = 0; block < call.num_blocks; ++block, ++act, p += Layout::kBlockBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(next), _MM_HINT_T1);
    _mm_prefetch(reinterpret_cast<const char*>(next + kCacheLine), _MM_HINT_T1);
    next += call.next_step;
    __m512i w[8];
#pragma GCC unroll 8
    for (size_t i = 0; i < 8; ++i) w[i] = _mm512_load_si512(p + i * kVectorBytes);
    __m512 scale[2], min[2];
#pragma GCC unroll 2
    for (size_t half = 0; half < Layout::kScales; ++half) {
      scale[half] = _mm512_load_ps(p + Layout::kScaleOffset + half * kVectorBytes);
      if constexpr (kHasMin)
        min[half] = _mm512_load_ps(p + Layout::kMinOffset + half * kVectorBytes);
    }
#pragma GCC unroll 16
    for (size_t t = 0; t < kTokens; ++t) {
      acc[t] = AddBlock<kHasMin, kTwoScales>(w, scale, min, *act, t, acc[t]);
    }
  }
#pragma GCC unroll 16
  for (size_t t = 0; t < kTokens; ++t) {
    if (t < call.num_tokens) _mm512_mask_storeu_ps(call.y + t * call.y_stride, call.rows, acc[t]);
  }
}

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
                    reinterpret_cast<const TileBlock*>(call.act) + t / kTileTokens * num_blocks,
                    num_blocks,
                    call.y + t * call.y_stride + begin,
                    call.y_stride,
                    tokens < kTileTokens ? tokens : kTileTokens,
                    0,
                    w + (begin + pass_rows) * call.row_bytes + kRawBytes<Format> - kTileShare,
                    kRawBytes<Format>};
      for (size_t r = 0; r < pass; r += kPanelRows) {
        tile.rows = static_cast<__mmask16>((1u << rows_of(r)) - 1);
        MultiplyAnyTile<Format::kHasMin, Format::kTwoScales>(tile);
        tile.panel += panel_bytes;
        tile.y += kPanelRows;
        tile.next += kPanelRows * call.row_bytes;
      }
    }
  }
}

}  // namespace
}  // namespace tael::kernels
