// Products for many tokens, written once over a tile of registers (Panel): SDOT in
// dotprod_panel.h, SMMLA in i8mm_panel.h. Internal linkage only.
//
// Eight rows are unpacked into a panel in scratch; a few panels stay in L2 while all tokens pass:
//
//   per 32 columns:  q, 256 bytes | scale[8 rows] | scale of the upper 16 [8 rows]
//                                 | min[8 rows]   | min of the upper 16 [8 rows]
//   (the parts that a format does not have are left out; a Panel may want each value twice)
//
//   struct Panel {
//     static constexpr size_t kRowsTogether;  // rows in one register of q: [row][16 / rows]
//     static constexpr size_t kScaleCopies;   // of each row's scale and minimum, side by side
//     static void StoreColumns(const int8x16_t* w, int8_t* out);  // 16 columns of these rows
//     static const std::byte* ActAt(const MatmulCall&, size_t token);
//     template <bool kHasMin, bool kTwoScales> static void Multiply(const TileCall&);
//   };
#pragma once

#include <arm_neon.h>

#include "kernels/isa/neon_matmul.h"

namespace tael::kernels {
namespace {

constexpr size_t kPanelRows = 8;
constexpr size_t kTileTokens = 4;
constexpr size_t kPanelQ = 32 * kPanelRows;  // bytes of q per 32 columns
// Panels of one pass over the tokens. Activations of a batch do not fit L2 (128 tokens of 4,864
// values take 0.9 MB), so each panel more divides that traffic; these leave room in 256 KB.
constexpr size_t kPanelsBytes = 160 << 10;
constexpr size_t kMostPanels = 4;

template <typename Panel, bool kHasMin, bool kTwoScales>
struct PanelLayout {
  static constexpr size_t kScales = kTwoScales ? 2 : 1;                // per 32 columns
  static constexpr size_t kVector = kPanelRows * Panel::kScaleCopies;  // floats
  static constexpr size_t kMinOffset = kScales * kVector;              // floats after q
  static constexpr size_t kBlockBytes =
      kPanelQ + kVector * kScales * (kHasMin ? 2 : 1) * sizeof(float);
};

// One panel times one tile of tokens.
struct TileCall {
  const std::byte* panel;
  const std::byte* act;  // the tile's first token
  size_t k;
  size_t num_rows;  // to store
  size_t num_tokens;
  float* y;
  size_t y_stride;
};

// ---- sums ----

// Integer sums start at the bits of 1.5 * 2^23 and become floats by a subtraction, exactly, while
// they are below 2^22 (32 products: 520,192). A conversion occupies one pipe of two for two cycles.
// The asm hides the value: the compiler would keep the negated constant in a second register.
TAEL_INLINE int32x4_t SumStart() {
  int32x4_t start = vdupq_n_s32(0x4b400000);
  asm("" : "+w"(start));
  return start;
}
TAEL_INLINE float32x4_t SumValue(int32x4_t sum) {
  return vsubq_f32(vreinterpretq_f32_s32(sum), vreinterpretq_f32_s32(SumStart()));
}

// The compiler hoists loads of the second half of a block above the first one's products, and then
// spills what it has no registers for.
TAEL_INLINE void KeepLoadsBelow() { asm volatile("" ::: "memory"); }

TAEL_INLINE void StoreRows(float32x4_t first, float32x4_t second, size_t num_rows, float* y) {
  if (num_rows == kPanelRows) {
    vst1q_f32(y, first);
    vst1q_f32(y + 4, second);
    return;
  }
  float row[kPanelRows];
  vst1q_f32(row, first);
  vst1q_f32(row + 4, second);
  for (size_t r = 0; r < num_rows; ++r) y[r] = row[r];
}

// ---- the panel ----

// 32 columns of eight rows.
template <typename Panel, typename Format>
TAEL_INLINE void UnpackValues(const uint8_t* const (&rows)[kPanelRows], size_t s, std::byte* out) {
  constexpr size_t kTogether = Panel::kRowsTogether;
  auto* q = reinterpret_cast<int8_t*>(out);
#pragma GCC unroll 4
  for (size_t group = 0; group < kPanelRows / kTogether; ++group) {
    int8x16_t lo[kTogether], hi[kTogether];
#pragma GCC unroll 4
    for (size_t r = 0; r < kTogether; ++r) {
      const Values32 v = NeonBlock<Format>::Values(rows[kTogether * group + r], s);
      lo[r] = v.lo;
      hi[r] = v.hi;
    }
    Panel::StoreColumns(lo, q + 16 * group);
    Panel::StoreColumns(hi, q + 16 * group + kPanelQ / 2);
  }
}

// Eight rows, row_bytes apart; where fewer exist, the last one is repeated.
template <typename Panel, typename Format>
void UnpackPanel(const uint8_t* w, size_t row_bytes, size_t num_rows, size_t k, std::byte* out) {
  using Layout = PanelLayout<Panel, Format::kHasMin, Format::kTwoScales>;
  constexpr BlockShape kShape = kShapeOf<Format>;
  constexpr size_t kScales = Layout::kScales, kCopies = Panel::kScaleCopies;
  const uint8_t* rows[kPanelRows];
  for (size_t r = 0; r < kPanelRows; ++r) {
    rows[r] = w + (r < num_rows ? r : num_rows - 1) * row_bytes;
  }
  for (size_t column = 0; column < k; column += kShape.elements) {
    float scale[kPanelRows][kMaxBlock / kGroup], min[kPanelRows][kMaxBlock / kGroup];
    for (size_t r = 0; r < kPanelRows; ++r) NeonBlock<Format>::Scales(rows[r], scale[r], min[r]);
    for (size_t s = 0; s < kShape.elements / 32; ++s) {
      UnpackValues<Panel, Format>(rows, s, out);
      auto* floats = reinterpret_cast<float*>(out + kPanelQ);
      for (size_t i = 0; i < kScales * Layout::kVector; ++i) {
        const size_t r = i % Layout::kVector / kCopies, from = s * kScales + i / Layout::kVector;
        floats[i] = scale[r][from];
        if constexpr (Format::kHasMin) floats[Layout::kMinOffset + i] = min[r][from];
      }
      out += Layout::kBlockBytes;
    }
    for (const uint8_t*& row : rows) row += kShape.bytes;
  }
}

// Asks for one share of the rows of the next pass: unpacking walks eight short streams, which
// hardware prefetchers lose.
inline void PrefetchShare(const std::byte* rows, size_t bytes, size_t share, size_t num_shares) {
  const size_t begin = bytes * share / num_shares, end = bytes * (share + 1) / num_shares;
  for (size_t i = begin; i < end; i += kCacheLine) __builtin_prefetch(rows + i, 0, 2);
}

// ---- the product ----

constexpr size_t PanelsPerPass(size_t panel_bytes) {
  const size_t fit = kPanelsBytes / panel_bytes;
  return fit < 1 ? 1 : (fit > kMostPanels ? kMostPanels : fit);
}

template <typename Panel>
size_t PanelScratchBytes(WeightType type, size_t k) {
  size_t bytes = 0;
  ForEachFormat([&]<typename Format>() {
    using Layout = PanelLayout<Panel, Format::kHasMin, Format::kTwoScales>;
    const size_t panel = k / 32 * Layout::kBlockBytes;
    if (Format::kType == type) bytes = PanelsPerPass(panel) * panel;
  });
  return bytes;
}

template <typename Panel, typename Format>
void PanelMatmul(const MatmulCall& call) {
  using Layout = PanelLayout<Panel, Format::kHasMin, Format::kTwoScales>;
  const size_t panel_bytes = call.k / 32 * Layout::kBlockBytes;
  const size_t pass_rows = kPanelRows * PanelsPerPass(panel_bytes);
  const size_t num_tiles = (call.num_tokens + kTileTokens - 1) / kTileTokens;
  for (size_t begin = call.row_begin; begin < call.row_end; begin += pass_rows) {
    const size_t left = call.row_end - begin, pass = left < pass_rows ? left : pass_rows;
    const auto rows_of = [=](size_t r) { return pass - r < kPanelRows ? pass - r : kPanelRows; };
    const std::byte* rows = call.w + begin * call.row_bytes;
    for (size_t r = 0; r < pass; r += kPanelRows) {
      UnpackPanel<Panel, Format>(reinterpret_cast<const uint8_t*>(rows + r * call.row_bytes),
                                 call.row_bytes, rows_of(r), call.k,
                                 call.scratch + r / kPanelRows * panel_bytes);
    }
    const size_t after = left - pass, next_rows = after < pass_rows ? after : pass_rows;
    for (size_t token = 0; token < call.num_tokens; token += kTileTokens) {
      const size_t tokens_left = call.num_tokens - token;
      const size_t stored = tokens_left < kTileTokens ? tokens_left : kTileTokens;
      PrefetchShare(rows + pass * call.row_bytes, next_rows * call.row_bytes, token / kTileTokens,
                    num_tiles);
      for (size_t r = 0; r < pass; r += kPanelRows) {
        Panel::template Multiply<Format::kHasMin, Format::kTwoScales>(
            {call.scratch + r / kPanelRows * panel_bytes, Panel::ActAt(call, token), call.k,
             rows_of(r), stored, call.y + token * call.y_stride + begin + r, call.y_stride});
      }
    }
  }
}

}  // namespace
}  // namespace tael::kernels
