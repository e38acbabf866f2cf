// Attention over one KV head's tiles, written once over a vector type S (see simd_vector.h for the
// rules of such a file). Only the *_kv.cpp of an ISA includes this file, and simd_kv_quantised.h,
// which has the tiles of integers.
//
//   K tile  [head_dim][16 slots]   V tile  [16 slots][head_dim]   elements f32 or f16
//
// Scores() and Values() cut a call into register tiles; what a tile does is told by a struct P:
//
//   keys    kMaxRows, Blocks(rows): the size of a tile
//           Tile<rows, blocks>(call, first_row, block, num_blocks)
//   values  Simd, kMaxRows, Vecs(rows), kDimStep: dimensions are a multiple of that in every tile
//           TileBytes(head_dim), Tile<rows, vectors, part>(call, first_row, dim, part, blocks)
//
// Both loops keep a tile of results in registers: rows x keys for scores, rows x dimensions for
// values. Each row's sum runs in one fixed order (over dimensions for scores; over tokens for
// values, starting from what `out` holds), whatever the size of the tile, so neither the number of
// rows nor a split of the tokens over several calls changes a result.
//
// The next block is prefetched one cache line per step: blocks lie anywhere, hardware prefetchers
// lose the stream at each border, and a burst of prefetches per block stalls as the loads would.
#pragma once

#include "kernels/kernels.h"

// Over a constant count: an array of accumulators stays in memory, at less than half the speed,
// unless its loops are gone before the compiler assigns registers.
#define TAEL_UNROLL _Pragma("GCC unroll 16")

namespace tael::kernels {
namespace {

template <typename S>
struct ElementF32 {
  using Type = float;
  static typename S::Vec Load(const float* p) { return S::Load(p); }
  static typename S::Vec LoadPart(const float* p, size_t n) { return S::LoadPart(p, n); }
  static void Store(float* p, typename S::Vec v) { S::Store(p, v); }
  static void StorePart(float* p, typename S::Vec v, size_t n) { S::StorePart(p, v, n); }
};

template <typename S>
struct ElementF16 {
  using Type = uint16_t;
  static typename S::Vec Load(const uint16_t* p) { return S::LoadF16(p); }
  static typename S::Vec LoadPart(const uint16_t* p, size_t n) { return S::LoadF16Part(p, n); }
  static void Store(uint16_t* p, typename S::Vec v) { S::StoreF16(p, v); }
  static void StorePart(uint16_t* p, typename S::Vec v, size_t n) { S::StoreF16Part(p, v, n); }
};

// head_dim is a multiple of 8: only 16 lanes leave a part.
template <typename S>
inline constexpr bool kHasPart = S::kLanes > 8;

template <typename E>
size_t TileBytes(size_t head_dim) {
  return kBlockTokens * head_dim * sizeof(typename E::Type);
}

template <typename S, typename E>
void StoreK(const float* k, size_t head_dim, size_t slot, std::byte* tile) {
  using Type = typename E::Type;
  Type* out = reinterpret_cast<Type*>(tile) + slot;
  for (size_t d = 0; d < head_dim; d += 8) {
    Type column[8];
    if constexpr (kHasPart<S>) {
      E::StorePart(column, S::LoadPart(k + d, 8), 8);
    } else {
      for (size_t i = 0; i < 8; i += S::kLanes) E::Store(column + i, S::Load(k + d + i));
    }
    for (size_t i = 0; i < 8; ++i) out[(d + i) * kBlockTokens] = column[i];
  }
}

template <typename S, typename E>
void StoreV(const float* v, size_t head_dim, size_t slot, std::byte* tile) {
  auto* out = reinterpret_cast<typename E::Type*>(tile) + slot * head_dim;
  size_t d = 0;
  for (; d + S::kLanes <= head_dim; d += S::kLanes) E::Store(out + d, S::Load(v + d));
  if constexpr (kHasPart<S>) {
    if (d < head_dim) E::StorePart(out + d, S::LoadPart(v + d, head_dim - d), head_dim - d);
  }
}

// Rows [begin, begin + count) of a call; the rows of a call are split into equal tiles.
struct Rows {
  size_t begin;
  size_t count;
};

template <size_t kMax>
size_t NumRowTiles(size_t num_rows) {
  return (num_rows + kMax - 1) / kMax;
}

inline Rows RowTile(size_t tile, size_t num_tiles, size_t num_rows) {
  const size_t begin = tile * num_rows / num_tiles;
  return {begin, (tile + 1) * num_rows / num_tiles - begin};
}

// ---- scores ----

template <typename E>
const typename E::Type* Tile(const AttendCall& call, size_t block) {
  return reinterpret_cast<const typename E::Type*>(call.blocks[block] + call.tile_offset);
}

// sum[row][key vector] += q[row] * K of one dimension.
template <typename S, typename E, size_t kRows, size_t kKeys>
inline __attribute__((always_inline)) void AddDimension(
    const typename E::Type* const (&keys)[kKeys], const float* q, size_t stride, size_t d,
    typename S::Vec (&sum)[kRows][kKeys]) {
  typename S::Vec key[kKeys];
  TAEL_UNROLL
  for (size_t i = 0; i < kKeys; ++i) key[i] = E::Load(keys[i] + d * kBlockTokens);
  TAEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    const auto query = S::Set1(q[r * stride + d]);
    TAEL_UNROLL
    for (size_t i = 0; i < kKeys; ++i) sum[r][i] = S::Fma(key[i], query, sum[r][i]);
  }
}

// scores[row][16 * block ...] for kRows rows and kBlocks blocks.
template <typename S, typename E, size_t kRows, size_t kBlocks>
void ScoreTile(const AttendCall& call, size_t first_row, size_t block, size_t num_blocks) {
  using Type = typename E::Type;
  constexpr size_t kVecs = kBlockTokens / S::kLanes;  // per block
  constexpr size_t kKeys = kBlocks * kVecs;
  constexpr size_t kDimsPerLine = kCacheLine / (kBlockTokens * sizeof(Type));
  const Type* keys[kKeys];
  const Type* next[kBlocks];  // prefetched: the same lines kBlocks further on
  TAEL_UNROLL
  for (size_t b = 0; b < kBlocks; ++b) {
    const size_t ahead = block + kBlocks + b;
    next[b] = Tile<E>(call, ahead < num_blocks ? ahead : block + b);
  }
  TAEL_UNROLL
  for (size_t i = 0; i < kKeys; ++i) {
    keys[i] = Tile<E>(call, block + i / kVecs) + i % kVecs * S::kLanes;
  }
  const float* q = call.q + first_row * call.q_stride;
  typename S::Vec sum[kRows][kKeys];
  TAEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    TAEL_UNROLL
    for (size_t i = 0; i < kKeys; ++i) sum[r][i] = S::Set1(0.0f);
  }
  for (size_t d = 0; d < call.head_dim; ++d) {
    if (d % kDimsPerLine == 0) {
      TAEL_UNROLL
      for (size_t b = 0; b < kBlocks; ++b) __builtin_prefetch(next[b] + d * kBlockTokens);
    }
    AddDimension<S, E>(keys, q, call.q_stride, d, sum);
  }
  TAEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    float* out = call.scores + (first_row + r) * call.score_stride + block * kBlockTokens;
    TAEL_UNROLL
    for (size_t i = 0; i < kKeys; ++i) S::Store(out + i * S::kLanes, sum[r][i]);
  }
}

template <typename S, typename E>
struct FloatKeys {
  static constexpr size_t kMaxRows = S::kMaxScoreRows;
  static constexpr size_t Blocks(size_t rows) { return S::ScoreBlocks(rows); }
  template <size_t kRows, size_t kBlocks>
  static void Tile(const AttendCall& call, size_t first_row, size_t block, size_t num_blocks) {
    ScoreTile<S, E, kRows, kBlocks>(call, first_row, block, num_blocks);
  }
};

// Makes the run-time number of rows a constant: rows.count is in 1..kRows.
template <typename P, size_t kRows, bool kOneBlock>
void ScoreRows(const AttendCall& call, Rows rows, size_t block, size_t num_blocks) {
  if constexpr (kRows > 1) {
    if (rows.count < kRows) {
      return ScoreRows<P, kRows - 1, kOneBlock>(call, rows, block, num_blocks);
    }
  }
  constexpr size_t kBlocks = kOneBlock ? 1 : P::Blocks(kRows);
  P::template Tile<kRows, kBlocks>(call, rows.begin, block, num_blocks);
}

template <typename P>
void Scores(const AttendCall& call) {
  constexpr size_t kMax = P::kMaxRows;
  // More rows than one tile holds make tiles of more than kMax / 2 rows, whose step is the same.
  static_assert(P::Blocks(kMax / 2) == P::Blocks(kMax));
  const size_t num_blocks = (call.num_tokens + kBlockTokens - 1) / kBlockTokens;
  const size_t num_tiles = NumRowTiles<kMax>(call.num_rows);
  const size_t step = P::Blocks(call.num_rows < kMax ? call.num_rows : kMax);
  size_t block = 0;
  for (; block + step <= num_blocks; block += step) {
    for (size_t tile = 0; tile < num_tiles; ++tile) {
      const Rows rows = RowTile(tile, num_tiles, call.num_rows);
      ScoreRows<P, kMax, false>(call, rows, block, num_blocks);
    }
  }
  for (; block < num_blocks; ++block) {
    for (size_t tile = 0; tile < num_tiles; ++tile) {
      const Rows rows = RowTile(tile, num_tiles, call.num_rows);
      ScoreRows<P, kMax, true>(call, rows, block, num_blocks);
    }
  }
}

// ---- values ----

// Blocks [begin, end) of a call, of num_blocks in all.
struct Blocks {
  size_t begin;
  size_t end;
  size_t num_blocks;
};

// Vector or, with kPart, its first `part` lanes.
template <typename S, bool kPart>
typename S::Vec LoadOut(const float* p, size_t part) {
  if constexpr (kPart) return S::LoadPart(p, part);
  return S::Load(p);
}

template <typename S, bool kPart>
void StoreOut(float* p, typename S::Vec v, size_t part) {
  if constexpr (kPart) return S::StorePart(p, v, part);
  S::Store(p, v);
}

template <typename E, bool kPart>
auto LoadValue(const typename E::Type* p, size_t part) {
  if constexpr (kPart) {
    return E::LoadPart(p, part);
  } else {
    return E::Load(p);
  }
}

// sum[row][v] += weights[row] * V of one token. The shorter side of the tile waits in registers.
template <typename S, typename E, size_t kRows, size_t kVecs, bool kPart>
inline __attribute__((always_inline)) void AddToken(const typename E::Type* values, size_t part,
                                                    const float* weights, size_t stride,
                                                    typename S::Vec (&sum)[kRows][kVecs]) {
  typename S::Vec value[kVecs];
  typename S::Vec weight[kRows];
  if constexpr (kRows < kVecs) {
    TAEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) weight[r] = S::Set1(weights[r * stride]);
    TAEL_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      value[v] = LoadValue<E, kPart>(values + v * S::kLanes, part);
      TAEL_UNROLL
      for (size_t r = 0; r < kRows; ++r) sum[r][v] = S::Fma(value[v], weight[r], sum[r][v]);
    }
  } else {
    TAEL_UNROLL
    for (size_t v = 0; v < kVecs; ++v) value[v] = LoadValue<E, kPart>(values + v * S::kLanes, part);
    TAEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      weight[r] = S::Set1(weights[r * stride]);
      TAEL_UNROLL
      for (size_t v = 0; v < kVecs; ++v) sum[r][v] = S::Fma(value[v], weight[r], sum[r][v]);
    }
  }
}

// out[row][dim ...] += scores . V over the tokens of `blocks`, for kRows rows and kVecs vectors of
// dimensions; with kPart one vector whose first `part` lanes exist.
template <typename S, typename E, size_t kRows, size_t kVecs, bool kPart>
void ValueTile(const AttendCall& call, size_t first_row, size_t dim, size_t part, Blocks blocks) {
  using Type = typename E::Type;
  static_assert(!kPart || kVecs == 1);
  float* out = call.out + first_row * call.out_stride + dim;
  const float* weights = call.scores + first_row * call.score_stride;
  typename S::Vec sum[kRows][kVecs];
  TAEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    TAEL_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      sum[r][v] = LoadOut<S, kPart>(out + r * call.out_stride + v * S::kLanes, part);
    }
  }
  for (size_t block = blocks.begin; block < blocks.end; ++block) {
    const Type* values = Tile<E>(call, block) + dim;
    const Type* next = block + 1 < blocks.num_blocks ? Tile<E>(call, block + 1) + dim : values;
    const size_t begin = block * kBlockTokens;
    const size_t left = call.num_tokens - begin;
    const size_t count = left < kBlockTokens ? left : kBlockTokens;
    for (size_t t = 0; t < count; ++t) {
      constexpr size_t kBytes = kVecs * S::kLanes * sizeof(Type);
      for (size_t line = 0; line < kBytes; line += kCacheLine) {
        __builtin_prefetch(next + t * call.head_dim + line / sizeof(Type));
      }
      AddToken<S, E, kRows, kVecs, kPart>(values + t * call.head_dim, part, weights + begin + t,
                                          call.score_stride, sum);
    }
  }
  TAEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    TAEL_UNROLL
    for (size_t v = 0; v < kVecs; ++v) {
      StoreOut<S, kPart>(out + r * call.out_stride + v * S::kLanes, sum[r][v], part);
    }
  }
}

template <typename S, typename E>
struct FloatValues {
  using Simd = S;
  static constexpr size_t kMaxRows = S::kMaxValueRows;
  static constexpr size_t Vecs(size_t rows) { return S::ValueVectors(rows); }
  static constexpr size_t kDimStep = 1;
  static size_t TileBytes(size_t head_dim) { return kernels::TileBytes<E>(head_dim); }
  template <size_t kRows, size_t kVecs, bool kPart>
  static void Tile(const AttendCall& call, size_t first_row, size_t dim, size_t part,
                   Blocks blocks) {
    ValueTile<S, E, kRows, kVecs, kPart>(call, first_row, dim, part, blocks);
  }
};

// All dimensions for kRows rows: as many vectors at once as fit the registers, then fewer.
template <typename P, size_t kRows>
void ValueDims(const AttendCall& call, size_t first_row, Blocks blocks) {
  constexpr size_t kLanes = P::Simd::kLanes;
  constexpr size_t kVecs = P::Vecs(kRows);
  const size_t head_dim = call.head_dim;
  size_t dim = 0;
  for (; dim + kVecs * kLanes <= head_dim; dim += kVecs * kLanes) {
    P::template Tile<kRows, kVecs, false>(call, first_row, dim, 0, blocks);
  }
  if constexpr (kVecs > 2 && 2 * kLanes % P::kDimStep == 0) {
    for (; dim + 2 * kLanes <= head_dim; dim += 2 * kLanes) {
      P::template Tile<kRows, 2, false>(call, first_row, dim, 0, blocks);
    }
  }
  if constexpr (P::kDimStep == 1) {
    for (; dim + kLanes <= head_dim; dim += kLanes) {
      P::template Tile<kRows, 1, false>(call, first_row, dim, 0, blocks);
    }
    if constexpr (kHasPart<typename P::Simd>) {
      if (dim < head_dim) {
        P::template Tile<kRows, 1, true>(call, first_row, dim, head_dim - dim, blocks);
      }
    }
  }
}

template <typename P, size_t kRows>
void ValueRows(const AttendCall& call, Rows rows, Blocks blocks) {
  if constexpr (kRows > 1) {
    if (rows.count < kRows) {
      return ValueRows<P, kRows - 1>(call, rows, blocks);
    }
  }
  ValueDims<P, kRows>(call, rows.begin, blocks);
}

template <typename P>
void Values(const AttendCall& call) {
  constexpr size_t kMax = P::kMaxRows;
  constexpr size_t kChunkBytes = 16384;  // V of a chunk of blocks stays in L1 for all rows
  const size_t num_blocks = (call.num_tokens + kBlockTokens - 1) / kBlockTokens;
  const size_t fitting = kChunkBytes / P::TileBytes(call.head_dim);
  const size_t chunk = fitting > 4 ? fitting : 4;
  const size_t num_tiles = NumRowTiles<kMax>(call.num_rows);
  for (size_t begin = 0; begin < num_blocks; begin += chunk) {
    const size_t end = begin + chunk < num_blocks ? begin + chunk : num_blocks;
    for (size_t tile = 0; tile < num_tiles; ++tile) {
      // Later tiles find the next block prefetched; within the chunk they find it loaded.
      ValueRows<P, kMax>(call, RowTile(tile, num_tiles, call.num_rows), {begin, end, num_blocks});
    }
  }
}

template <typename S, typename E>
constexpr KvTable MakeKvTable() {
  return {.k_tile_bytes = TileBytes<E>,
          .v_tile_bytes = TileBytes<E>,
          .pack_q = nullptr,
          .store_k = StoreK<S, E>,
          .store_v = StoreV<S, E>,
          .scores = Scores<FloatKeys<S, E>>,
          .exact_scores = nullptr,
          .values = Values<FloatValues<S, E>>};
}

}  // namespace
}  // namespace tael::kernels
