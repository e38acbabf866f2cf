// Several tokens, first half: rows are unpacked, 16 at a time, into a panel that every tile of
// tokens then reads from cache.
//
// A panel, per 32 columns: q [8][16 rows][4 columns] u8 | scale [16] f32, then, where the format
// has them, scale of columns 16..31 | min | min of columns 16..31. Weights without a minimum are
// stored + 128.
#pragma once

#include "kernels/isa/avx512_matmul_unpack.h"

namespace tael::kernels {
namespace {

constexpr size_t kVectorBytes = 64;

template <bool kHasMin, bool kTwoScales>
struct PanelLayout {
  static constexpr size_t kScales = kTwoScales ? 2 : 1;
  static constexpr size_t kScaleOffset = kPanelRows * kActBlock;
  static constexpr size_t kMinOffset = kScaleOffset + kScales * kVectorBytes;
  static constexpr size_t kBlockBytes = kMinOffset + (kHasMin ? kScales * kVectorBytes : 0);
};

template <typename Format>
using LayoutOf = PanelLayout<Format::kHasMin, Format::kTwoScales>;

template <typename Format>
constexpr size_t PanelBytes(size_t k) {
  return k / kActBlock * LayoutOf<Format>::kBlockBytes;
}

template <typename Format>
TAEL_INLINE void StoreColumns(const Columns& c, uint8_t* out) {
  using Layout = LayoutOf<Format>;
#pragma GCC unroll 8
  for (size_t j = 0; j < 8; ++j) _mm512_store_si512(out + j * kVectorBytes, c.q[j]);
#pragma GCC unroll 2
  for (size_t half = 0; half < Layout::kScales; ++half) {
    _mm512_store_ps(out + Layout::kScaleOffset + half * kVectorBytes, c.scale[half]);
    if constexpr (Format::kHasMin) {
      _mm512_store_ps(out + Layout::kMinOffset + half * kVectorBytes, c.min[half]);
    }
  }
}

// Rows of the next pass are fetched while this one computes, evenly, because too many requests at
// once stall: some per 32 columns while unpacking, the last kTileShare bytes while multiplying. The
// rows are one run of memory, but the unpacker walks 16 short streams, which no hardware prefetcher
// follows (KERNELS: 12-20 GB/s without, 26-27 with).
constexpr size_t kTileShare = 2 * kCacheLine;
template <typename Format>
constexpr size_t kRawBytes =  // of 16 rows, 32 columns
    kPanelRows* kShapeOf<Format>.bytes* kActBlock / kShapeOf<Format>.elements;

template <typename Format, typename Unpacker, bool kAll>
inline void UnpackRows(BlockRows<kAll> rows, size_t k, const uint8_t* next, uint8_t* panel) {
  constexpr BlockShape shape = kShapeOf<Format>;
  for (size_t i = 0; i < k; i += shape.elements) {
    Unpacker::Unpack(
        rows, [ panel, &next ](size_t n, const Columns& c) __attribute__((always_inline)) {
#pragma GCC unroll 8
          for (size_t byte = 0; byte < kRawBytes<Format> - kTileShare; byte += kCacheLine) {
            _mm_prefetch(reinterpret_cast<const char*>(next + byte), _MM_HINT_T1);
          }
          next += kRawBytes<Format>;
          StoreColumns<Format>(c, panel + n * LayoutOf<Format>::kBlockBytes);
        });
    rows.first += shape.bytes;
    panel += shape.elements / kActBlock * LayoutOf<Format>::kBlockBytes;
  }
}

// Unpacks up to 16 rows; `next` is where the rows of the next pass begin.
template <typename Format, typename Unpacker>
inline void UnpackPanel(const uint8_t* w, size_t row_bytes, size_t num_rows, size_t k,
                        const uint8_t* next, uint8_t* panel) {
  if (num_rows == kPanelRows) {
    UnpackRows<Format, Unpacker>(BlockRows<true>{w, row_bytes, kPanelRows - 1}, k, next, panel);
  } else {
    UnpackRows<Format, Unpacker>(BlockRows<false>{w, row_bytes, num_rows - 1}, k, next, panel);
  }
}

}  // namespace
}  // namespace tael::kernels
