// Products with f32 activations: rows are dequantised into scratch, a few at a time, and multiplied
// by all tokens in register tiles. Shared by the ISAs through a Lanes type; internal linkage only.
//
// Lanes run along k, so neither operand is rearranged. One accumulator vector per (row, token) and
// one order of summation, whatever the tile: a result does not depend on its neighbours.
//
//   struct Lanes {
//     using V = ...;                              // kWidth floats
//     static constexpr size_t kWidth, kRows, kTokens;  // kRows * kTokens accumulators fit
//     registers static V Zero(); static V Load(const float*); static V LoadPart(const float*,
//     size_t n);  // n < kWidth values, then zeros static V MulAdd(V a, V b, V acc); static float
//     Sum(V);
//   };
#pragma once

#include "kernels/isa/scalar_rows.h"

namespace tael::kernels {
namespace {

// Dequantised rows that stay in cache while the tokens pass by: in the first level for a few
// tokens, which read each row once or twice, in the second for many.
template <typename Lanes>
constexpr size_t F32RowsPerPass(size_t num_tokens, size_t k) {
  if (num_tokens <= Lanes::kTokens) return Lanes::kRows;
  constexpr size_t kScratchBytes = 192 << 10, kMostRows = 64;
  const size_t tiles = kScratchBytes / (k * sizeof(float)) / Lanes::kRows;
  const size_t most = kMostRows / Lanes::kRows;
  return (tiles < 1 ? 1 : (tiles > most ? most : tiles)) * Lanes::kRows;
}

// One tile: y[t][r] for kRows x kTokens.
template <typename Lanes, size_t kRows, size_t kTokens>
inline void F32Tile(const float* w, const float* x, size_t k, float* y, size_t y_stride) {
  typename Lanes::V acc[kTokens][kRows];
#pragma GCC unroll 8
  for (size_t t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) acc[t][r] = Lanes::Zero();
  }
  const auto step = [&](size_t i, auto load) __attribute__((always_inline)) {
    typename Lanes::V row[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) row[r] = load(w + r * k + i);
#pragma GCC unroll 8
    for (size_t t = 0; t < kTokens; ++t) {
      const typename Lanes::V v = load(x + t * k + i);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) acc[t][r] = Lanes::MulAdd(row[r], v, acc[t][r]);
    }
  };
  size_t i = 0;
  for (; i + Lanes::kWidth <= k; i += Lanes::kWidth) {
    step(
        i, [](const float* p) __attribute__((always_inline)) { return Lanes::Load(p); });
  }
  if (i < k) {
    const size_t rest = k - i;
    step(
        i, [=](const float* p) __attribute__((always_inline)) { return Lanes::LoadPart(p, rest); });
  }
#pragma GCC unroll 8
  for (size_t t = 0; t < kTokens; ++t) {
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) y[t * y_stride + r] = Lanes::Sum(acc[t][r]);
  }
}

template <typename Lanes, size_t kTokens>
inline void F32Rows(const float* w, size_t num_rows, const float* x, size_t k, float* y,
                    size_t y_stride) {
  size_t r = 0;
  for (; r + Lanes::kRows <= num_rows; r += Lanes::kRows) {
    F32Tile<Lanes, Lanes::kRows, kTokens>(w + r * k, x, k, y + r, y_stride);
  }
  for (; r < num_rows; ++r) F32Tile<Lanes, 1, kTokens>(w + r * k, x, k, y + r, y_stride);
}

// The product for one dequantiser; rows that are f32 already are read where they are.
template <typename Lanes, DequantizeRowFn kDequantize, bool kInPlace>
void MatmulF32(const MatmulCall& call) {
  const size_t pass = F32RowsPerPass<Lanes>(call.num_tokens, call.k);
  const auto* x = reinterpret_cast<const float*>(call.act);
  for (size_t begin = call.row_begin; begin < call.row_end; begin += pass) {
    const size_t left = call.row_end - begin;
    const size_t num_rows = left < pass ? left : pass;
    const std::byte* raw = call.w + begin * call.row_bytes;
    const float* rows = reinterpret_cast<const float*>(raw);
    if constexpr (!kInPlace) {
      auto* scratch = reinterpret_cast<float*>(call.scratch);
      for (size_t r = 0; r < num_rows; ++r) {
        kDequantize(raw + r * call.row_bytes, call.k, scratch + r * call.k);
      }
      rows = scratch;
    }
    size_t t = 0;
    for (; t + Lanes::kTokens <= call.num_tokens; t += Lanes::kTokens) {
      F32Rows<Lanes, Lanes::kTokens>(rows, num_rows, x + t * call.k, call.k,
                                     call.y + t * call.y_stride + begin, call.y_stride);
    }
    for (; t < call.num_tokens; ++t) {
      F32Rows<Lanes, 1>(rows, num_rows, x + t * call.k, call.k, call.y + t * call.y_stride + begin,
                        call.y_stride);
    }
  }
}

// f32 weights with an odd row_bytes cannot occur (rows lie back to back), so kInPlace is safe.
template <typename Lanes>
size_t ScratchF32Bytes(WeightType type, size_t num_tokens, size_t k) {
  if (type == WeightType::kF32) return 0;
  return F32RowsPerPass<Lanes>(num_tokens, k) * k * sizeof(float);
}

// Sets the f32 product and the dequantiser of one type; they are one piece, because the product
// dequantises. For types that are not quantised it is also the ordinary product.
template <typename Lanes, DequantizeRowFn kDequantize, bool kInPlace = false>
constexpr void SetF32(MatmulTable& table, WeightType type) {
  const auto i = static_cast<size_t>(type);
  table.matmul_f32[i] = &MatmulF32<Lanes, kDequantize, kInPlace>;
  table.dequantize_row[i] = kDequantize;
  if (IsFloatType(type)) table.matmul[i] = table.matmul_f32[i];
  table.scratch_f32_bytes = &ScratchF32Bytes<Lanes>;
}

// The same for all types, with the plain dequantisers.
template <typename Lanes>
constexpr void FillF32Columns(MatmulTable& table) {
  SetF32<Lanes, &DequantizeF32, true>(table, WeightType::kF32);
  SetF32<Lanes, &DequantizeF16>(table, WeightType::kF16);
  SetF32<Lanes, &DequantizeBF16>(table, WeightType::kBF16);
  ForEachFormat(
      [&table]<typename Format>() { SetF32<Lanes, &DequantizeRow<Format>>(table, Format::kType); });
}

}  // namespace
}  // namespace tael::kernels
