// Attention over tiles of integers (q8 and q4 of KvType, whose layouts kernels.h draws), written
// once over a vector type S and a dot product of bytes D. Only the *_kv_quantised.cpp of an ISA
// includes this file.
//
//   S    see simd_vector.h; also StoreI8, LoadI8 and LoadI4, and LoadI8Part where there are parts
//   D    Sum, Keys, Quad: vectors of S::kLanes sums, of as many keys' four dimensions, and of a
//        query's four for all lanes
//        LoadKeys(p), LoadQuad(q), Start(sum of the query's integers), Dot(sum, keys, quad),
//        Times128Plus(sum, start), ToFloat(sum)
//
// Dot products of q8 keys are whole numbers: every ISA finds the same, in any order. Values are
// added in f32, in order of tokens, each weight times the scale first: as in simd_kv.h, neither
// the number of rows nor a split of the tokens over several calls changes a result.
#pragma once

#include "kernels/isa/exact_scales.h"
#include "kernels/isa/quantised_tiles.h"
#include "kernels/isa/simd_kv.h"

namespace tael::kernels {
namespace {

// ---- storing ----

template <typename S>
typename S::Vec LoadFirst(const float* p, size_t n) {
  if constexpr (kHasPart<S>) {
    if (n < S::kLanes) return S::LoadPart(p, n);
  }
  return S::Load(p);
}

template <typename S>
float MaxAbs(const float* x, size_t n) {
  auto most = S::Set1(0.0f);
  for (size_t i = 0; i < n; i += S::kLanes) {
    most = S::Max(most, S::Abs(LoadFirst<S>(x + i, n - i)));
  }
  return S::ReduceMax(most);
}

// x * factor within [least, most], to the nearest whole number where it is stored.
template <typename S>
typename S::Vec Scaled(typename S::Vec x, float factor, float least, float most) {
  return S::Max(S::Min(S::Mul(x, S::Set1(factor)), S::Set1(most)), S::Set1(least));
}

template <typename S>
void Quantise(const float* x, size_t n, float factor, int8_t* out) {
  size_t i = 0;
  for (; i + S::kLanes <= n; i += S::kLanes) {
    S::StoreI8(out + i, Scaled<S>(S::Load(x + i), factor, -127.0f, 127.0f));
  }
  if constexpr (kHasPart<S>) {
    if (i < n) {
      int8_t last[S::kLanes];
      S::StoreI8(last, Scaled<S>(S::LoadPart(x + i, n - i), factor, -127.0f, 127.0f));
      __builtin_memcpy(out + i, last, n - i);
    }
  }
}

inline QueryTail TailOf(const int8_t* q, size_t head_dim) {
  QueryTail tail;
  __builtin_memcpy(&tail, q + 2 * head_dim, sizeof tail);
  return tail;
}

template <typename S>
void PackQ(const float* q, size_t head_dim, float* out) {
  auto* bytes = reinterpret_cast<int8_t*>(out);
  const float most = MaxAbs<S>(q, head_dim);
  QueryTail tail{0.0f, 0, 0};
  if (most < kLeastActivation) {
    __builtin_memset(bytes, 0, 2 * head_dim);
  } else {
    const float factor = 127.0f / most;
    for (size_t d = 0; d < head_dim; d += S::kLanes) {
      const auto scaled = Scaled<S>(LoadFirst<S>(q + d, head_dim - d), factor, -127.0f, 127.0f);
      const auto rest = S::Sub(scaled, S::Round(scaled));
      int8_t coarse[S::kLanes], fine[S::kLanes];
      S::StoreI8(coarse, scaled);
      S::StoreI8(fine, S::Mul(rest, S::Set1(128.0f)));
      const size_t count = head_dim - d < S::kLanes ? head_dim - d : S::kLanes;
      __builtin_memcpy(bytes + d, coarse, count);
      __builtin_memcpy(bytes + head_dim + d, fine, count);
    }
    tail.scale = most / 127.0f;
    for (size_t d = 0; d < head_dim; ++d) tail.sum += bytes[d];
    for (size_t d = 0; d < head_dim; ++d) tail.fine_sum += bytes[head_dim + d];
  }
  __builtin_memcpy(bytes + 2 * head_dim, &tail, sizeof tail);
}

template <typename S>
void StoreQ8K(const float* k, size_t head_dim, size_t slot, std::byte* tile) {
  const F16Scale scale = ScaleAbove(MaxAbs<S>(k, head_dim) / 127.0f);
  for (size_t d = 0; d < head_dim; d += 8) {
    int8_t column[8];
    Quantise<S>(k + d, 8, scale.inverse, column);
    std::byte* out = tile + d * kBlockTokens + slot * 4;
    __builtin_memcpy(out, column, 4);
    __builtin_memcpy(out + 4 * kBlockTokens, column + 4, 4);
  }
  __builtin_memcpy(tile + kBlockTokens * head_dim + slot * 2, &scale.half, 2);
}

template <typename S>
void StoreQ8V(const float* v, size_t head_dim, size_t slot, std::byte* tile) {
  const F16Scale scale = ScaleAbove(MaxAbs<S>(v, head_dim) / 127.0f);
  auto* row = reinterpret_cast<int8_t*>(tile + kScaleBytes) + slot * head_dim;
  Quantise<S>(v, head_dim, scale.inverse, row);
  __builtin_memcpy(tile + slot * 2, &scale.half, 2);
}

// The scale takes the value of the largest magnitude to -8, the one number that has no opposite.
template <typename S>
void StoreQ4Group(const float* v, uint16_t* scale, uint8_t* out) {
  auto most = S::Load(v), least = most;
  for (size_t i = S::kLanes; i < kQ4Group; i += S::kLanes) {
    most = S::Max(most, S::Load(v + i));
    least = S::Min(least, S::Load(v + i));
  }
  const float high = S::ReduceMax(most);
  const float low = S::ReduceMax(S::Sub(S::Set1(0.0f), least));
  const F16Scale step = ScaleAbove((high >= low ? high : low) / 8.0f);
  const float factor = high >= low ? -step.inverse : step.inverse;
  *scale = static_cast<uint16_t>(step.half | (high >= low ? 0x8000u : 0u));
  int8_t q[kQ4Group];
  for (size_t i = 0; i < kQ4Group; i += S::kLanes) {
    S::StoreI8(q + i, Scaled<S>(S::Load(v + i), factor, -8.0f, 7.0f));
  }
  for (size_t i = 0; i < kQ4Group / 2; ++i) {
    const int low_half = q[i] + 8, high_half = q[i + kQ4Group / 2] + 8;
    out[i] = static_cast<uint8_t>(low_half | high_half << 4);
  }
}

template <typename S>
void StoreQ4V(const float* v, size_t head_dim, size_t slot, std::byte* tile) {
  const size_t num_groups = head_dim / kQ4Group;
  auto* scales = reinterpret_cast<uint16_t*>(tile);
  auto* row = reinterpret_cast<uint8_t*>(tile + num_groups * kScaleBytes) + slot * head_dim / 2;
  for (size_t g = 0; g < num_groups; ++g) {
    StoreQ4Group<S>(v + g * kQ4Group, scales + g * kBlockTokens + slot, row + g * kQ4Group / 2);
  }
}

// ---- scores ----

// sum[row][key vector] += q[row] . keys over all dimensions; `next` is prefetched beside.
template <typename S, typename D, size_t kRows, size_t kBlocks, size_t kKeys>
inline __attribute__((always_inline)) void AddDots(const int8_t* q, size_t q_bytes,
                                                   const int8_t* const (&keys)[kBlocks],
                                                   const int8_t* const (&next)[kBlocks],
                                                   size_t head_dim,
                                                   typename D::Sum (&sum)[kRows][kKeys]) {
  constexpr size_t kVecs = kKeys / kBlocks;
  for (size_t d = 0; d < head_dim; d += 4) {
    typename D::Keys key[kKeys];
    TAEL_UNROLL
    for (size_t b = 0; b < kBlocks; ++b) __builtin_prefetch(next[b] + d * kBlockTokens);
    TAEL_UNROLL
    for (size_t i = 0; i < kKeys; ++i) {
      key[i] = D::LoadKeys(keys[i / kVecs] + d * kBlockTokens + i % kVecs * S::kLanes * 4);
    }
    TAEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const auto quad = D::LoadQuad(q + r * q_bytes + d);
      TAEL_UNROLL
      for (size_t i = 0; i < kKeys; ++i) sum[r][i] = D::Dot(sum[r][i], key[i], quad);
    }
  }
}

// As ScoreTile() of simd_kv.h, four dimensions at a time. kExact: a second time for the fine part
// of the query, which finds the keys in L1.
template <typename S, typename D, bool kExact, size_t kRows, size_t kBlocks>
void Q8ScoreTile(const AttendCall& call, size_t first_row, size_t block, size_t num_blocks) {
  constexpr size_t kVecs = kBlockTokens / S::kLanes;  // per block
  constexpr size_t kKeys = kBlocks * kVecs;
  const size_t head_dim = call.head_dim, q_bytes = call.q_stride * sizeof(float);
  const auto* q = reinterpret_cast<const int8_t*>(call.q + first_row * call.q_stride);
  const int8_t* keys[kBlocks];
  const int8_t* next[kBlocks];  // prefetched: the same lines kBlocks further on
  TAEL_UNROLL
  for (size_t b = 0; b < kBlocks; ++b) {
    const size_t ahead = block + kBlocks + b < num_blocks ? block + kBlocks + b : block + b;
    keys[b] = reinterpret_cast<const int8_t*>(call.blocks[block + b] + call.tile_offset);
    next[b] = reinterpret_cast<const int8_t*>(call.blocks[ahead] + call.tile_offset);
    __builtin_prefetch(next[b] + head_dim * kBlockTokens);
  }
  typename D::Sum sum[kRows][kKeys];
  TAEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    const auto start = D::Start(TailOf(q + r * q_bytes, head_dim).sum);
    TAEL_UNROLL
    for (size_t i = 0; i < kKeys; ++i) sum[r][i] = start;
  }
  AddDots<S, D>(q, q_bytes, keys, next, head_dim, sum);
  if constexpr (kExact) {
    TAEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const auto start = D::Start(TailOf(q + r * q_bytes, head_dim).fine_sum);
      TAEL_UNROLL
      for (size_t i = 0; i < kKeys; ++i) sum[r][i] = D::Times128Plus(sum[r][i], start);
    }
    AddDots<S, D>(q + head_dim, q_bytes, keys, next, head_dim, sum);
  }
  typename S::Vec scale[kKeys];
  TAEL_UNROLL
  for (size_t i = 0; i < kKeys; ++i) {
    const int8_t* scales = keys[i / kVecs] + head_dim * kBlockTokens;
    scale[i] = S::LoadF16(reinterpret_cast<const uint16_t*>(scales) + i % kVecs * S::kLanes);
  }
  TAEL_UNROLL
  for (size_t r = 0; r < kRows; ++r) {
    float* out = call.scores + (first_row + r) * call.score_stride + block * kBlockTokens;
    const float q_scale = TailOf(q + r * q_bytes, head_dim).scale * (kExact ? 0x1p-7f : 1.0f);
    TAEL_UNROLL
    for (size_t i = 0; i < kKeys; ++i) {
      const auto both = S::Mul(scale[i], S::Set1(q_scale));
      S::Store(out + i * S::kLanes, S::Mul(D::ToFloat(sum[r][i]), both));
    }
  }
}

template <typename S, typename D, bool kExact>
struct Q8Keys {
  static constexpr size_t kMaxRows = D::kMaxScoreRows;
  static constexpr size_t Blocks(size_t rows) { return D::ScoreBlocks(rows); }
  template <size_t kRows, size_t kBlocks>
  static void Tile(const AttendCall& call, size_t first_row, size_t block, size_t num_blocks) {
    Q8ScoreTile<S, D, kExact, kRows, kBlocks>(call, first_row, block, num_blocks);
  }
};

// ---- values ----

// Where the integers of a tile are, and how some dimensions of a token become vectors: Load() gives
// kCount of a register tile's kVecs vectors, from the first-th on.
template <typename S>
struct Q8Row {
  static constexpr size_t kDimStep = 1;
  static constexpr size_t kLeastVecs = S::kLanes < 8 ? 16 / S::kLanes : 1;  // worth a load
  static constexpr size_t Vecs(size_t rows) { return S::ValueVectors(rows); }
  static constexpr size_t NumScales(size_t /*vecs*/) { return 1; }  // that a register tile needs
  static constexpr size_t ScaleOf(size_t /*vec*/) { return 0; }
  static size_t TileBytes(size_t head_dim) { return Q8TileBytes(head_dim); }
  static size_t FirstScale(size_t /*dim*/) { return 0; }
  static const uint8_t* Integers(const std::byte* tile, size_t /*head_dim*/) {
    return reinterpret_cast<const uint8_t*>(tile + kScaleBytes);
  }
  static size_t Bytes(size_t dims) { return dims; }
  template <size_t kVecs, bool kPart, size_t kCount>
  static void Load(const uint8_t* row, size_t dim, size_t first, size_t part,
                   typename S::Vec (&out)[kCount]) {
    const auto* p = reinterpret_cast<const int8_t*>(row + dim + first * S::kLanes);
    if constexpr (kPart) {
      out[0] = S::LoadI8Part(p, part);
    } else {
      S::LoadI8(p, out);
    }
  }
};

// A register tile covers units of 16 dimensions, halves of a group: an even number of them from the
// start of a group, or one.
template <typename S>
struct Q4Row {
  static constexpr size_t kUnit = kQ4Group / 2;
  static constexpr size_t kDimStep = kUnit;
  static constexpr size_t kLeastVecs = kUnit / S::kLanes;
  // With 16 registers three rows of four vectors leave none for two vectors at once.
  static constexpr size_t Vecs(size_t rows) {
    return S::kLanes == 8 && rows > 2 ? 2 : S::ValueVectors(rows);
  }
  static constexpr size_t NumUnits(size_t vecs) { return vecs * S::kLanes / kUnit; }
  static constexpr size_t NumScales(size_t vecs) { return (NumUnits(vecs) + 1) / 2; }
  static constexpr size_t ScaleOf(size_t vec) { return vec * S::kLanes / kQ4Group; }
  static size_t TileBytes(size_t head_dim) { return Q4TileBytes(head_dim); }
  static size_t FirstScale(size_t dim) { return dim / kQ4Group; }
  static const uint8_t* Integers(const std::byte* tile, size_t head_dim) {
    return reinterpret_cast<const uint8_t*>(tile + head_dim / kQ4Group * kScaleBytes);
  }
  static size_t Bytes(size_t dims) { return dims / 2; }
  template <size_t kVecs, bool kPart, size_t kCount>
  static void Load(const uint8_t* row, size_t dim, size_t first, size_t /*part*/,
                   typename S::Vec (&out)[kCount]) {
    constexpr size_t kUnits = NumUnits(kVecs), kPerUnit = kUnit / S::kLanes;
    static_assert(!kPart && (kUnits == 1 || kUnits % 2 == 0) && kCount % kPerUnit == 0);
    TAEL_UNROLL
    for (size_t i = 0; i < kCount; i += kPerUnit) {
      const size_t in_tile = (first + i) / kPerUnit, unit = dim / kUnit + in_tile;
      const size_t half = kUnits == 1 ? unit % 2 : in_tile % 2;
      typename S::Vec values[kPerUnit];
      S::LoadI4(row + unit / 2 * kUnit, half != 0 ? 4 : 0, values);
      TAEL_UNROLL
      for (size_t j = 0; j < kPerUnit; ++j) out[i + j] = values[j];
    }
  }
};

// Weights of a block's tokens times the scales of the tile's dimensions: [scale][row][token].
template <typename S, size_t kScales, size_t kRows>
inline __attribute__((always_inline)) void ScaleWeights(
    const uint16_t* scales, const float* weights, size_t stride,
    float (&out)[kScales][kRows][kBlockTokens]) {
  for (size_t i = 0; i < kBlockTokens; i += S::kLanes) {
    TAEL_UNROLL
    for (size_t s = 0; s < kScales; ++s) {
      const auto scale = S::LoadF16(scales + s * kBlockTokens + i);
      TAEL_UNROLL
      for (size_t r = 0; r < kRows; ++r) {
        S::Store(&out[s][r][i], S::Mul(S::Load(weights + r * stride + i), scale));
      }
    }
  }
}

// sum[row][v] += weight of the row and of v's scale * V of one token; vectors that share a scale at
// a time, so that one weight waits in a register.
template <typename S, typename R, bool kPart, size_t kScales, size_t kRows, size_t kVecs>
inline __attribute__((always_inline)) void AddScaledToken(
    const uint8_t* row, size_t dim, size_t part,
    const float (&weights)[kScales][kRows][kBlockTokens], size_t token,
    typename S::Vec (&sum)[kRows][kVecs]) {
  constexpr size_t kSharing = kVecs / kScales;
  constexpr size_t kCount = kRows < kSharing && R::kLeastVecs < kSharing ? R::kLeastVecs : kSharing;
  TAEL_UNROLL
  for (size_t first = 0; first < kVecs; first += kCount) {
    typename S::Vec value[kCount];
    R::template Load<kVecs, kPart>(row, dim, first, part, value);
    TAEL_UNROLL
    for (size_t r = 0; r < kRows; ++r) {
      const auto weight = S::Set1(weights[R::ScaleOf(first)][r][token]);
      TAEL_UNROLL
      for (size_t v = 0; v < kCount; ++v) {
        sum[r][first + v] = S::Fma(value[v], weight, sum[r][first + v]);
      }
    }
  }
}

// As ValueTile() of simd_kv.h.
template <typename S, typename R, size_t kRows, size_t kVecs, bool kPart>
void ScaledValueTile(const AttendCall& call, size_t first_row, size_t dim, size_t part,
                     Blocks blocks) {
  constexpr size_t kScales = R::NumScales(kVecs);
  const size_t row_bytes = R::Bytes(call.head_dim);
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
    const std::byte* tile = call.blocks[block] + call.tile_offset;
    const size_t ahead = block + 1 < blocks.num_blocks ? block + 1 : block;
    const std::byte* next_tile = call.blocks[ahead] + call.tile_offset;
    const uint8_t* row = R::Integers(tile, call.head_dim);
    const uint8_t* next = R::Integers(next_tile, call.head_dim) + R::Bytes(dim);
    const size_t begin = block * kBlockTokens;
    const size_t left = call.num_tokens - begin;
    const size_t count = left < kBlockTokens ? left : kBlockTokens;
    alignas(kCacheLine) float scaled[kScales][kRows][kBlockTokens];
    const auto* scales = reinterpret_cast<const uint16_t*>(tile);
    ScaleWeights<S>(scales + R::FirstScale(dim) * kBlockTokens, weights + begin, call.score_stride,
                    scaled);
    __builtin_prefetch(next_tile);
    for (size_t t = 0; t < count; ++t) {
      __builtin_prefetch(next + t * row_bytes);
      AddScaledToken<S, R, kPart>(row + t * row_bytes, dim, part, scaled, t, sum);
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

template <typename S, typename R>
struct ScaledValues {
  using Simd = S;
  static constexpr size_t kMaxRows = S::kMaxValueRows;
  static constexpr size_t Vecs(size_t rows) { return R::Vecs(rows); }
  static constexpr size_t kDimStep = R::kDimStep;
  static size_t TileBytes(size_t head_dim) { return R::TileBytes(head_dim); }
  template <size_t kRows, size_t kVecs, bool kPart>
  static void Tile(const AttendCall& call, size_t first_row, size_t dim, size_t part,
                   Blocks blocks) {
    ScaledValueTile<S, R, kRows, kVecs, kPart>(call, first_row, dim, part, blocks);
  }
};

template <typename S, typename D>
constexpr KvTable MakeQ8Table() {
  return {.k_tile_bytes = Q8TileBytes,
          .v_tile_bytes = Q8TileBytes,
          .pack_q = PackQ<S>,
          .store_k = StoreQ8K<S>,
          .store_v = StoreQ8V<S>,
          .scores = Scores<Q8Keys<S, D, false>>,
          .exact_scores = Scores<Q8Keys<S, D, true>>,
          .values = Values<ScaledValues<S, Q8Row<S>>>};
}

template <typename S>
constexpr KvTable MakeQ4Table() {
  return {.k_tile_bytes = nullptr,
          .v_tile_bytes = Q4TileBytes,
          .pack_q = nullptr,
          .store_k = nullptr,
          .store_v = StoreQ4V<S>,
          .scores = nullptr,
          .exact_scores = nullptr,
          .values = Values<ScaledValues<S, Q4Row<S>>>};
}

}  // namespace
}  // namespace tael::kernels
