// Several tokens: rows are unpacked, 8 at a time, into panels in cache, which every tile of up to 4
// tokens then multiplies, two panels at a time. Lanes are rows, so results are stored as they are.
#pragma once

#include "kernels/isa/avx2_matmul_panel.h"

namespace tael::kernels {
namespace {

constexpr size_t kTilePanels = 2;
constexpr size_t kTileRows = kTilePanels * kPanelRows;

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
