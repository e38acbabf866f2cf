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

// Dequantised rows that stay in the second-level cache while the tokens pass by.
constexpr size_t kF32ScratchBytes = 192 << 10;

template <typename Lanes>
constexpr size_t F32RowsPerPass(size_t k) {
  const size_t rows = kF32ScratchBytes / (k * sizeof(float)) / Lanes::kRows * Lanes::kRows;
  return rows < Lanes::kRows ? Lanes::kRows : (rows > 64 ? 64 : rows);
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
  const size_t pass = F32RowsPerPass<Lanes>(call.k);
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
size_t ScratchF32Bytes(WeightType type, size_t /*num_tokens*/, size_t k) {
  if (type == WeightType::kF32) return 0;
  return F32RowsPerPass<Lanes>(k) * k * sizeof(float);
}

// Fills in what every ISA does in the same way: the f32 products and dequantisation.
template <typename Lanes>
constexpr void FillF32Columns(MatmulTable& table) {
  const auto set = [&table](WeightType type, MatmulFn matmul, DequantizeRowFn dequantize) {
    const auto i = static_cast<size_t>(type);
    table.matmul_f32[i] = matmul;
    table.dequantize_row[i] = dequantize;
    if (IsFloatType(type)) table.matmul[i] = matmul;
  };
  set(WeightType::kF32, &MatmulF32<Lanes, &DequantizeF32, true>, &DequantizeF32);
  set(WeightType::kF16, &MatmulF32<Lanes, &DequantizeF16, false>, &DequantizeF16);
  set(WeightType::kBF16, &MatmulF32<Lanes, &DequantizeBF16, false>, &DequantizeBF16);
  ForEachFormat([&set]<typename Format>() {
    set(Format::kType, &MatmulF32<Lanes, &DequantizeRow<Format>, false>, &DequantizeRow<Format>);
  });
  table.scratch_f32_bytes = &ScratchF32Bytes<Lanes>;
}

}  // namespace
}  // namespace tael::kernels
